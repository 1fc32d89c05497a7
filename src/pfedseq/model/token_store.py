"""Outputs of the frozen layers below the first adapter, computed once per image for all runs.

A store is a folder that only grows:

- `tokens.npy`: (n, T, F) for all n images of an image store, opened as a read-only memory map;
  an image that no run has needed yet is a hole in the file and takes no disk space;
- `checksums.npy`: (n,) uint64, 1 + the CRC-32 of the tokens of each image present, else 0.

The folder's name encodes everything that the tokens depend on. An image's tokens are always
bit-identical to those it has when computed alone. Because a matrix product may round a row
differently depending on the other rows, images are processed in batches only if a test on this
machine shows no such difference, and one by one otherwise. If a run's images exist only in memory
(the digits), so do their tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.data.config import default_store
from pfedseq.data.dataset import ClientData
from pfedseq.data.image_store import Report
from pfedseq.errors import InputError
from pfedseq.files import only_one_process, write_atomically
from pfedseq.model.encoders.parts import Part

FORMAT = 1
Storage = Literal["float32", "float16", "none"]
Indices = NDArray[np.int64]
Rows = np.memmap[Any, np.dtype[Any]]
AT_ONCE = 16
"""Images per batch: about twice as fast as one by one, and no slower than larger batches."""
SAVED_EVERY = 2.0
"""Seconds between writes of the checksums to disk."""
_STAGE = "computing the frozen layers"


@dataclass(frozen=True)
class Prefix:
    """The frozen layers as a function of one image, independent of the rest of its batch."""

    tower: Part
    read: Callable[[Indices], Tensor]
    """The layers' inputs for examples by index."""
    device: torch.device

    def each(self, indices: Indices) -> Tensor:
        """Compute the tokens (B, T, F) of images."""
        return torch.cat([self._of(some) for some in self._batches(indices)])

    def stream(self, indices: Indices) -> Iterator[tuple[int, Tensor]]:
        """Compute with all cores, yielding one image and its tokens (T, F) at a time."""
        batches, at_a_time = self._batches(indices), 2 * (os.cpu_count() or 1)
        with _one_thread_each() as pool:
            for start in range(0, len(batches), at_a_time):  # so that interrupts are handled soon
                some = batches[start : start + at_a_time]
                for batch, tokens in zip(some, pool.map(self._of, some), strict=True):
                    yield from zip(batch.tolist(), tokens, strict=True)

    def _batches(self, indices: Indices) -> list[Indices]:
        size = self.at_once
        return [indices[start : start + size] for start in range(0, len(indices), size)]

    @torch.no_grad()
    def _of(self, some: Indices) -> Tensor:
        """Tokens of a batch, padded with its first image to the batch size that was tested."""
        filled = np.append(some, np.repeat(some[:1], self.at_once - len(some)))
        tokens: Tensor = self.tower(self.read(filled))[: len(some)]
        return tokens

    @cached_property
    def at_once(self) -> int:
        """`AT_ONCE` if images give the same bits alone and at every position in a batch, else 1.

        The operations on a position do not depend on its content, so testing one noise image, or
        one text, is sufficient.
        """

        @torch.no_grad()
        def tried() -> bool:
            one = self.read(np.array([0]))
            if one.is_floating_point():
                noise = torch.randn(one.shape, generator=torch.Generator().manual_seed(0))
                one = noise.to(self.device)
            among = self.tower(one.repeat(AT_ONCE, *[1] * (one.dim() - 1)))
            return torch.equal(among, self.tower(one).expand_as(among))

        with _one_thread_each() as pool:
            return AT_ONCE if pool.submit(tried).result() else 1


def _one_thread_each() -> ThreadPoolExecutor:
    """One thread per core, with one PyTorch thread each: their number can change the last bits."""
    cores = os.cpu_count() or 1
    return ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))


@dataclass(frozen=True)
class Tokens:
    """Stored tokens, by image."""

    rows: NDArray[Any]
    """(n, T, F), in memory or a read-only memory map."""

    def of(self, indices: Indices) -> Tensor:
        """Tokens (B, T, F) of images."""
        return torch.from_numpy(self.rows[indices])


@dataclass(frozen=True)
class Kept:
    """The facts that identify a store of tokens."""

    name: str
    count: int
    """The number of examples in the data set."""
    fingerprint: str | None
    """Changes when an example does; None keeps tokens in memory."""
    facts: tuple[object, ...] = ()
    """Settings of the preprocessing for the frozen layers."""


def keep_tokens(
    prefix: Prefix,
    wanted: Indices,
    num_images: int,
    storage: Storage,
    folder: Path | None,
    report: Report | None = None,
) -> Callable[[Indices], Tensor]:
    """Compute the tokens of the requested images that are missing; returns a reader by index.

    Tokens are kept in `folder`, or in memory if it is None.
    """
    if storage == "none":
        return prefix.each
    report = report or spoken()
    shape = (num_images, *prefix.each(wanted[:1]).shape[1:])
    if folder is None:
        rows = np.empty(
            shape, storage
        )  # the system allocates memory only for rows that are written
        for done, (index, tokens) in enumerate(prefix.stream(wanted), 1):
            rows[index] = tokens.cpu().numpy()
            report(_STAGE, done, len(wanted))
        return Tokens(rows).of
    with only_one_process(folder):
        rows = _open(folder, shape, storage)
        _fill(folder, rows, prefix, wanted, report)
    return Tokens(rows).of


def tokens_for(
    prefix: Prefix,
    clients: Sequence[ClientData],
    kept: Kept,
    storage: Storage,
    store: Path | None,
    report: Report | None = None,
) -> Callable[[Indices], Tensor]:
    """`keep_tokens` for all clients' examples, under `store` or the user's cache."""
    folder = None
    if kept.fingerprint is not None and storage != "none":
        # The kind of device as well, since GPUs round differently.
        facts = [FORMAT, kept.fingerprint, *kept.facts, prefix.device.type, storage]
        tower = prefix.tower
        key = hashlib.sha256(json.dumps([*facts, tower.checksum()]).encode()).hexdigest()[:16]
        root = (store or default_store()).expanduser() / "tokens"
        folder = root / f"{kept.name}-{tower.num_layers}-layers-{storage}-{key}"
    parts = [part for client in clients for part in (client.train, client.validation, client.test)]
    wanted = np.unique(np.concatenate(parts))
    return keep_tokens(prefix, wanted, kept.count, storage, folder, report)


def spoken() -> Report:
    """A `Report` to standard error every ten seconds, for work of more than two seconds."""
    due = time.monotonic() + 2

    def report(stage: str, done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + 10
            print(f"pfedseq: {stage}: {done:,} of {total:,} images", file=sys.stderr)

    return report


def _open(folder: Path, shape: tuple[int, ...], storage: Storage) -> Rows:
    """Map the store's tokens, after creating an empty store if there is no readable one."""
    file = folder / "tokens.npy"
    try:
        rows = _map(file)
        if rows.shape == shape and rows.dtype == storage:
            return rows
    except (OSError, ValueError):
        pass  # missing or damaged: created below
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        np.lib.format.open_memmap(file, "w+", storage, shape)
    except OSError as fault:
        raise InputError(f"cannot write to {folder.parent}: {fault.strerror}") from fault
    return _map(file)


def _map(file: Path) -> Rows:
    rows: Rows = np.load(file, mmap_mode="r", allow_pickle=False)
    return rows


def _fill(folder: Path, rows: Rows, prefix: Prefix, wanted: Indices, report: Report) -> None:
    """Compute and write requested tokens that are missing or do not match their checksum."""
    checksums = _checksums(folder, len(rows))
    missing = [i for i in wanted.tolist() if checksums[i] != _checksum(rows[i])]
    if not missing:
        return
    _check_room(folder, len(missing) * rows[0].nbytes)
    saved = time.monotonic()
    try:
        # Written through the file, not the map, so that a full disk is an error and not a crash.
        with (folder / "tokens.npy").open("r+b") as file:
            for done, (index, tokens) in enumerate(prefix.stream(np.array(missing)), 1):
                row = np.ascontiguousarray(tokens.cpu().numpy(), rows.dtype)
                file.seek(rows.offset + index * row.nbytes)
                file.write(row.data)
                checksums[index] = _checksum(row)
                report(_STAGE, done, len(missing))
                if time.monotonic() - saved > SAVED_EVERY:
                    file.flush()
                    _save_checksums(folder, checksums)
                    saved = time.monotonic()
    except OSError as fault:
        raise InputError(f"cannot write tokens to {folder}: {fault.strerror}") from fault
    _save_checksums(folder, checksums)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"the tokens of the frozen layers need {needed / 1e9:.1f} GB, but {folder.parent} has "
            f"only {free / 1e9:.1f} GB free: choose another data.store, or set model.tokens to "
            "'float16' (half the size) or 'none' (computed in every round)"
        )


def _checksums(folder: Path, count: int) -> NDArray[np.uint64]:
    try:
        checksums: NDArray[np.uint64] = np.load(folder / "checksums.npy", allow_pickle=False)
        if checksums.shape == (count,) and checksums.dtype == np.uint64:
            return checksums
    except (OSError, ValueError):
        pass  # missing or damaged: all tokens count as missing
    return np.zeros(count, np.uint64)


def _save_checksums(folder: Path, checksums: NDArray[np.uint64]) -> None:
    content = BytesIO()
    np.save(content, checksums)
    write_atomically(folder / "checksums.npy", content.getvalue())


def _checksum(row: NDArray[Any]) -> int:
    return 1 + zlib.crc32(np.ascontiguousarray(row).data)
