"""Images decoded and resized once, kept as uint8 in one memory-mapped file for all processes.

A finished store is a folder:

- `images.npy`: (n, 3, size, size) uint8, opened as a read-only memory map;
- `samples.npy`: (n, 3) int32, per image its class, its owner and whether it is a test image
  (-1 where the source names no owner or no split);
- `manifest.json`: names, counts, where the images came from, and the sha256 of both files.

It is made under another name and renamed when it is whole. While it is being made, a journal lists
the finished blocks with their checksums, so that preparing can be interrupted and run again.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import ImageSet
from pfedseq.data.decode import decode
from pfedseq.data.source import Block, Source
from pfedseq.errors import InputError
from pfedseq.files import only_one_process

FORMAT = 1
Report = Callable[[str, int, int], None]
"""Called as report(stage, done, total) while work goes on."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def is_finished(folder: Path) -> bool:
    """Whether a whole store is there."""
    return (folder / "manifest.json").is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a store says about itself."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise _damaged(folder, f"its manifest.json cannot be read: {fault}") from fault
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(folder, "its manifest.json is of another version")
    return manifest


def open_store(folder: Path) -> ImageSet:
    """Map a finished store into memory: a matter of milliseconds, whatever its size.

    Labels are checked against their checksum; pixels only by their number (`verify_store` reads
    them all).
    """
    manifest = read_manifest(folder)
    images = _load(folder, "images.npy", mapped=True)
    samples = _load(folder, "samples.npy", mapped=False)
    size, count = manifest["image_size"], manifest["num_images"]
    if images.shape != (count, 3, size, size) or images.dtype != np.uint8:
        raise _damaged(folder, f"images.npy holds {images.dtype} {images.shape}")
    if _sha256(folder / "samples.npy") != manifest["samples_sha256"]:
        raise _damaged(folder, "samples.npy does not match its checksum")
    labels, owners, is_test = samples.astype(np.int64).T
    return ImageSet(
        name=manifest["name"],
        images=images,
        labels=labels,
        class_names=tuple(manifest["class_names"]),
        owners=owners if manifest["owner_names"] else None,
        owner_names=tuple(manifest["owner_names"]),
        is_test=is_test.astype(bool) if manifest["has_test"] else None,
        fingerprint=manifest["images_sha256"],
    )


def verify_store(folder: Path) -> None:
    """Read every pixel and compare with the checksum."""
    if _sha256(folder / "images.npy") != read_manifest(folder)["images_sha256"]:
        raise _damaged(folder, "images.npy does not match its checksum")


def write_store(
    source: Source, folder: Path, image_size: int, origin: dict[str, Any], report: Report = silent
) -> None:
    """Decode all images of a source into a new store at `folder`, with all cores.

    `origin` says where the images come from; a half-made store of the same origin is continued.
    """
    workplace = folder.with_name(folder.name + ".partial")
    plan = {"format": FORMAT, "num_images": len(source.labels), "image_size": image_size, **origin}
    with only_one_process(folder):
        if is_finished(folder) and plan.items() <= read_manifest(folder).items():
            return  # another process was faster
        done = _start_or_continue(workplace, plan, source, image_size)
        try:
            _decode_blocks(source, workplace, done, report)
        except InputError:
            shutil.rmtree(workplace)
            raise
        _finish(source, workplace, plan, report)
        _publish(workplace, folder)


def _start_or_continue(
    workplace: Path, plan: dict[str, Any], source: Source, size: int
) -> set[int]:
    """Make the working folder, or find in one of the same plan the blocks that are done."""
    plan_text = json.dumps(plan, sort_keys=True)
    plan_file = workplace / "plan.json"
    if plan_file.is_file() and plan_file.read_text(encoding="utf-8") == plan_text:
        return _verified_blocks(source, workplace)
    if workplace.exists():
        shutil.rmtree(workplace)
    needed = len(source.labels) * 3 * size * size
    try:
        workplace.mkdir(parents=True)
        free = shutil.disk_usage(workplace).free
        if needed > free:
            workplace.rmdir()
            raise InputError(
                f"the prepared images need {needed / 1e9:.1f} GB, but {workplace.parent} has only "
                f"{free / 1e9:.1f} GB free: choose another data.store or a smaller data.image_size"
            )
        shape = (len(source.labels), 3, size, size)
        np.lib.format.open_memmap(workplace / "images.npy", "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # a full disk shows now, not as a crash in the map
            with (workplace / "images.npy").open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        plan_file.write_text(plan_text, encoding="utf-8")
    except OSError as fault:
        shutil.rmtree(workplace, ignore_errors=True)
        raise InputError(f"cannot write to {workplace.parent}: {fault.strerror}") from fault
    return set()


def _verified_blocks(source: Source, workplace: Path) -> set[int]:
    """The journal's blocks whose pixels are really on disk (a crash may have lost some)."""
    images = np.load(workplace / "images.npy", mmap_mode="r")
    places = _places(source)
    done = set()
    journal = workplace / "journal.txt"
    lines = journal.read_text().splitlines() if journal.is_file() else []
    for line in lines:
        number, _, checksum = line.partition(" ")
        if number.isdigit() and checksum.isdigit() and int(number) < len(places):
            start, stop = places[int(number)]
            if _crc32(images[start:stop]) == int(checksum):
                done.add(int(number))
    return done


def _places(source: Source) -> list[tuple[int, int]]:
    stops = np.cumsum([block.size for block in source.blocks]).tolist()
    return [(stop - block.size, stop) for block, stop in zip(source.blocks, stops, strict=True)]


def _decode_blocks(source: Source, workplace: Path, done: set[int], report: Report) -> None:
    images = np.lib.format.open_memmap(workplace / "images.npy", "r+")
    places = _places(source)
    finished = sum(source.blocks[number].size for number in done)
    report("reading images", finished, len(source.labels))
    # Pillow and zlib release the interpreter's lock, so threads use all cores.
    with (
        (workplace / "journal.txt").open("a") as journal,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        waiting: dict[Future[int], int] = {
            pool.submit(_decode_block, block, images[slice(*places[number])]): number
            for number, block in enumerate(source.blocks)
            if number not in done
        }
        try:
            while waiting:
                ready, _ = wait(waiting, return_when=FIRST_EXCEPTION, timeout=0.2)
                for future in ready:
                    number = waiting.pop(future)
                    journal.write(f"{number} {future.result()}\n")
                    finished += source.blocks[number].size
                journal.flush()
                report("reading images", finished, len(source.labels))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode_block(block: Block, target: NDArray[np.uint8]) -> int:
    """Fill `target` (block size, 3, size, size) and return its checksum."""
    for place, raw in zip(target, block.read(), strict=True):
        place[:] = decode(raw, target.shape[-1])
    return _crc32(target)


def _finish(source: Source, workplace: Path, plan: dict[str, Any], report: Report) -> None:
    samples = np.full((len(source.labels), 3), -1, dtype=np.int32)
    samples[:, 0] = source.labels
    if source.owners is not None:
        samples[:, 1] = source.owners
    if source.is_test is not None:
        samples[:, 2] = source.is_test
    np.save(workplace / "samples.npy", samples)
    report("computing the checksum", 0, 1)
    manifest = {
        **plan,
        "name": source.name,
        "class_names": source.class_names,
        "owner_names": source.owner_names,
        "has_test": source.is_test is not None,
        "notes": source.notes,
        "images_sha256": _sha256(workplace / "images.npy"),
        "samples_sha256": _sha256(workplace / "samples.npy"),
    }
    for scaffold in ("journal.txt", "plan.json"):
        (workplace / scaffold).unlink()
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (workplace / "manifest.json").write_text(text + "\n", encoding="utf-8")
    report("computing the checksum", 1, 1)


def _publish(workplace: Path, folder: Path) -> None:
    """Give the whole store its name; an older one of that name steps aside first."""
    if folder.exists():
        outdated = folder.with_name(folder.name + ".old")
        shutil.rmtree(outdated, ignore_errors=True)
        folder.rename(outdated)
        workplace.rename(folder)
        shutil.rmtree(outdated)
    else:
        workplace.rename(folder)


def _load(folder: Path, name: str, *, mapped: bool) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(
            folder / name, mmap_mode="r" if mapped else None, allow_pickle=False
        )
    except (OSError, ValueError) as fault:
        raise _damaged(folder, f"{name} cannot be read: {fault}") from fault
    return array


def _crc32(pixels: NDArray[np.uint8]) -> int:
    return zlib.crc32(np.ascontiguousarray(pixels).data)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _damaged(folder: Path, reason: str) -> InputError:
    return InputError(
        f"the prepared images in {folder} are damaged ({reason}): delete that folder and prepare "
        "the data set again"
    )
