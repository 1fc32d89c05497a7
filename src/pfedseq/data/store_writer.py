"""Creates the store of prepared images, in parallel and atomically.

A store is written under a temporary name and renamed when complete. Meanwhile a journal lists the
finished blocks with their checksums, so that an interrupted preparation can be resumed.
"""

import json
import os
import shutil
import zlib
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.decode import Window, decode
from pfedseq.data.framing import WHOLE, Framing
from pfedseq.data.image_store import (
    FORMAT,
    VALIDATION,
    Report,
    is_finished,
    read_manifest,
    sha256_of,
    silent,
)
from pfedseq.data.source import Block, Source, block_ranges
from pfedseq.errors import InputError
from pfedseq.files import only_one_process
from pfedseq.words import count, size


@dataclass(frozen=True)
class _BlockResult:
    """The result of one block; a line of the journal."""

    crc: int
    deep: int
    """Images of more than 8 bits, which were rescaled."""
    paged: int
    """Images with several pages, of which the first was taken."""
    unreadable: tuple[tuple[int, str], ...]
    """Positions in the block that could not be filled, and why."""


def write_store(
    source: Source,
    folder: Path,
    image_size: int,
    origin: dict[str, Any],
    report: Report = silent,
    *,
    window: Window | None = None,
    framing: Framing = WHOLE,
    skip_unreadable: bool = False,
) -> None:
    """Decode all images of a source into a new store at `folder`, with all cores.

    `origin` describes the source; an unfinished store of the same origin is continued.
    Images that cannot be read are an error that names all of them, or are left out and recorded.
    """
    workplace = folder.with_name(folder.name + ".partial")
    plan = {"format": FORMAT, "num_found": len(source.labels), "image_size": image_size, **origin}
    plan |= {"framing": framing.differences()} if framing != WHOLE else {}
    with only_one_process(folder):
        if is_finished(folder) and plan.items() <= read_manifest(folder).items():
            return  # another process has written it
        results = _start_or_continue(workplace, plan, source, image_size)
        try:
            _decode_blocks(source, workplace, results, (window, framing), report)
            unreadable = _unreadable(source, results)
            if unreadable and not (skip_unreadable and len(unreadable) < len(source.labels)):
                raise _refusal(list(unreadable.values()), len(source.labels))
        except InputError:
            shutil.rmtree(workplace)
            raise
        source = replace(source, notes=(*source.notes, *_notes(results, unreadable, window)))
        if unreadable:
            source = _leave_out(source, workplace, list(unreadable))
        _finish(source, workplace, plan, list(unreadable.values()), report)
        _publish(workplace, folder)


def _unreadable(source: Source, results: dict[int, _BlockResult]) -> dict[int, str]:
    """Index and reason of every image that could not be read."""
    starts = [start for start, _ in _places(source)]
    return {
        starts[number] + place: why
        for number in sorted(results)
        for place, why in results[number].unreadable
    }


def _refusal(reasons: list[str], num_images: int) -> InputError:
    way_out = "skip them with --skip-unreadable (data.skip_unreadable = true)"
    if len(reasons) == 1:
        return InputError(f"{reasons[0]}: repair or delete it, or {way_out.replace('them', 'it')}")
    listed = "".join(f"\n  {reason}" for reason in reasons)
    return InputError(
        f"{len(reasons)} of {count(num_images, 'image')} cannot be read: repair or delete them, or "
        f"{way_out}:{listed}"
    )


def _notes(
    results: dict[int, _BlockResult], unreadable: dict[int, str], window: Window | None
) -> list[str]:
    """Remarks for the user about conversions and images left out."""
    notes = []
    if unreadable:
        notes.append(
            f"left out {count(len(unreadable), 'image')} that cannot be read, listed in the "
            "store's manifest.json"
        )
    if deep := sum(result.deep for result in results.values()):
        how = (
            "each from its own darkest to its brightest value (data.window = [low, high] sets one "
            "scale for all)"
            if window is None
            else f"from {window[0]:g} (black) to {window[1]:g} (white)"
        )
        notes.append(f"rescaled {count(deep, 'grey image')} of more than 8 bits to 8, {how}")
    if paged := sum(result.paged for result in results.values()):
        notes.append(
            f"read only the first page of {count(paged, 'image')} with several pages or frames"
        )
    return notes


def _leave_out(source: Source, workplace: Path, unreadable: list[int]) -> Source:
    """The source without some images; the remaining pixels move up in `images.npy`."""
    kept = np.delete(np.arange(len(source.labels)), unreadable)
    old = np.load(workplace / "images.npy", mmap_mode="r")
    shape = (len(kept), *old.shape[1:])
    new = np.lib.format.open_memmap(workplace / "kept.npy", "w+", np.uint8, shape)
    for start, stop in block_ranges(len(kept)):
        new[start:stop] = old[kept[start:stop]]
    new.flush()
    (workplace / "kept.npy").replace(workplace / "images.npy")
    return replace(
        source,
        labels=source.labels[kept],
        owners=None if source.owners is None else source.owners[kept],
        is_test=None if source.is_test is None else source.is_test[kept],
        groups=None if source.groups is None else source.groups[kept],
        is_validation=None if source.is_validation is None else source.is_validation[kept],
        blocks=(),
    )


def _start_or_continue(
    workplace: Path, plan: dict[str, Any], source: Source, image_size: int
) -> dict[int, _BlockResult]:
    """Create the working folder, or find the finished blocks in one with the same plan."""
    plan_text = json.dumps(plan, sort_keys=True)
    plan_file = workplace / "plan.json"
    if plan_file.is_file() and plan_file.read_text(encoding="utf-8") == plan_text:
        return _verified_blocks(source, workplace)
    if workplace.exists():
        shutil.rmtree(workplace)
    needed = len(source.labels) * 3 * image_size**2
    try:
        workplace.mkdir(parents=True)
        free = shutil.disk_usage(workplace).free
        if needed > free:
            workplace.rmdir()
            raise InputError(
                f"the prepared images need {size(needed)}, but {workplace.parent} has only "
                f"{size(free)} free: choose another data.store or a smaller data.image_size"
            )
        shape = (len(source.labels), 3, image_size, image_size)
        np.lib.format.open_memmap(workplace / "images.npy", "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # detects a full disk now
            with (workplace / "images.npy").open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        plan_file.write_text(plan_text, encoding="utf-8")
    except OSError as fault:
        shutil.rmtree(workplace, ignore_errors=True)
        raise InputError(f"cannot write to {workplace.parent}: {fault.strerror}") from fault
    return {}


def _verified_blocks(source: Source, workplace: Path) -> dict[int, _BlockResult]:
    """The journal's blocks whose pixels really are on disk (a crash may have lost some)."""
    images = np.load(workplace / "images.npy", mmap_mode="r")
    places = _places(source)
    done = {}
    journal = workplace / "journal.jsonl"
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else []
    for line in lines:
        try:
            number, fields = json.loads(line)
        except ValueError:  # the line that a crash cut off
            continue
        start, stop = places[number]
        if _crc32(images[start:stop]) == fields["crc"]:
            unreadable = tuple((place, why) for place, why in fields.pop("unreadable"))
            done[number] = _BlockResult(**fields, unreadable=unreadable)
    return done


def _places(source: Source) -> list[tuple[int, int]]:
    stops = np.cumsum([block.size for block in source.blocks]).tolist()
    return [(stop - block.size, stop) for block, stop in zip(source.blocks, stops, strict=True)]


def _decode_blocks(
    source: Source,
    workplace: Path,
    results: dict[int, _BlockResult],
    reading: tuple[Window | None, Framing],
    report: Report,
) -> None:
    """Decode the blocks missing from `results`, add them and record each in the journal."""
    images = np.lib.format.open_memmap(workplace / "images.npy", "r+")
    places = _places(source)
    finished = sum(source.blocks[number].size for number in results)
    report("reading images", finished, len(source.labels))
    # Pillow and zlib release the interpreter's lock, so threads use all cores.
    with (
        (workplace / "journal.jsonl").open("a", encoding="utf-8") as journal,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        waiting: dict[Future[_BlockResult], int] = {
            pool.submit(_decode_block, block, images[slice(*places[number])], *reading): number
            for number, block in enumerate(source.blocks)
            if number not in results
        }
        try:
            while waiting:
                ready, _ = wait(waiting, return_when=FIRST_EXCEPTION, timeout=0.2)
                for future in ready:
                    number = waiting.pop(future)
                    results[number] = future.result()
                    journal.write(json.dumps([number, asdict(results[number])]) + "\n")
                    finished += source.blocks[number].size
                journal.flush()
                report("reading images", finished, len(source.labels))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode_block(
    block: Block, target: NDArray[np.uint8], window: Window | None, framing: Framing
) -> _BlockResult:
    """Fill `target` (block size, 3, size, size); what cannot be read stays black."""
    deep = paged = 0
    unreadable = []
    for number, (place, raw) in enumerate(zip(target, block.read(), strict=True)):
        try:
            image = decode(raw, target.shape[-1], window, framing)
        except InputError as fault:
            unreadable.append((number, str(fault)))
            continue
        place[:] = image.pixels
        deep, paged = deep + image.deep, paged + image.paged
    return _BlockResult(_crc32(target), deep, paged, tuple(unreadable))


def _finish(
    source: Source, workplace: Path, plan: dict[str, Any], unreadable: list[str], report: Report
) -> None:
    columns = 3 if source.groups is None else 4
    samples = np.full((len(source.labels), columns), -1, dtype=np.int32)
    samples[:, 0] = source.labels
    if source.owners is not None:
        samples[:, 1] = source.owners
    if source.is_test is not None:
        samples[:, 2] = source.is_test
    if source.is_validation is not None:
        samples[source.is_validation, 2] = VALIDATION
    if source.groups is not None:
        samples[:, 3] = source.groups
    np.save(workplace / "samples.npy", samples)
    report("computing the checksum", 0, 1)
    manifest = {
        **plan,
        "num_images": len(source.labels),
        "name": source.name,
        "class_names": source.class_names,
        "owner_names": source.owner_names,
        "has_test": source.is_test is not None,
        "notes": source.notes,
        "unreadable": unreadable,
        "images_sha256": sha256_of(workplace / "images.npy"),
        "samples_sha256": sha256_of(workplace / "samples.npy"),
    }
    for scaffold in ("journal.jsonl", "plan.json"):
        (workplace / scaffold).unlink()
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (workplace / "manifest.json").write_text(text + "\n", encoding="utf-8")
    report("computing the checksum", 1, 1)


def _publish(workplace: Path, folder: Path) -> None:
    """Rename the complete store, after moving an older one of that name aside."""
    if folder.exists():
        outdated = folder.with_name(folder.name + ".old")
        shutil.rmtree(outdated, ignore_errors=True)
        folder.rename(outdated)
        workplace.rename(folder)
        shutil.rmtree(outdated)
    else:
        workplace.rename(folder)


def _crc32(pixels: NDArray[np.uint8]) -> int:
    return zlib.crc32(np.ascontiguousarray(pixels).data)
