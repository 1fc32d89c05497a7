"""Duplicates: identical examples, and images that look almost identical.

Equal examples have equal 64-bit checksums. Similar images are found by a difference hash (is a
cell of an 8 × 9 grid brighter than its right neighbour?) and then compared by their pixels.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import ClientData, ExampleSet, ImageSet
from pfedseq.words import count, some

ROWS, COLUMNS = 8, 9
BATCH = 256
NEIGHBOURS = 8
"""How many images of the most similar hash an image is compared with, in each of four orders."""
MOST_BITS, MOST_LEVELS = 4, 6.0
"""Images look alike if at most this many bits of the hash, and grey levels on average, differ."""


def checksums(contents: Sequence[bytes]) -> NDArray[np.uint64]:
    """(n,) one number per content, equal only for equal content."""
    digests = b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def image_hashes(images: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """(n, 2): checksum and difference hash of every image (n, 3, S, S)."""
    hashes = np.empty((len(images), 2), dtype=np.uint64)
    for start in range(0, len(images), BATCH):
        batch = np.ascontiguousarray(images[start : start + BATCH])
        hashes[start : start + BATCH, 0] = checksums([image.tobytes() for image in batch])
        hashes[start : start + BATCH, 1] = _difference_hashes(batch)
    return hashes


def _difference_hashes(images: NDArray[np.uint8]) -> NDArray[np.uint64]:
    side = images.shape[-1]
    grey = images.mean(axis=1, dtype=np.float64)
    rows, columns = (np.arange(cells) * side // cells for cells in (ROWS, COLUMNS))
    sums = np.add.reduceat(np.add.reduceat(grey, rows, axis=1), columns, axis=2)
    areas = np.outer(np.diff([*rows, side]), np.diff([*columns, side])).clip(1)
    means = sums / areas
    bits = (means[:, :, :-1] > means[:, :, 1:]).reshape(len(images), -1)
    weights = np.left_shift(np.uint64(1), np.arange(ROWS * (COLUMNS - 1), dtype=np.uint64))
    return np.asarray((bits * weights).sum(axis=1, dtype=np.uint64))


def same_numbers(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(n,) equal numbers for equal values."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def look_alike(images: NDArray[np.uint8], hashes: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Pairs of images that are almost, but not exactly, equal; finds most of them quickly."""
    found: set[tuple[int, int]] = set()
    content, look = hashes.T
    for turn in range(0, 64, 16):  # each quarter of the hash comes first in one of the orders
        rotated = (look << np.uint64(turn)) | (look >> np.uint64((64 - turn) % 64))
        order = np.argsort(rotated, kind="stable")
        for step in range(1, min(NEIGHBOURS, len(order) - 1) + 1):
            left, right = order[:-step], order[step:]
            close = _ones(look[left] ^ look[right]) <= MOST_BITS
            close &= content[left] != content[right]
            found |= {
                (min(a, b), max(a, b))
                for a, b in zip(left[close].tolist(), right[close].tolist(), strict=True)
            }
    return sorted(pair for pair in found if _differ_little(images, *pair))


def _ones(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many bits of each number are set."""
    eight = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)
    return np.asarray(np.unpackbits(eight, axis=1).sum(axis=1, dtype=np.int64))


def _differ_little(images: NDArray[np.uint8], a: int, b: int) -> bool:
    difference = np.abs(images[a].astype(np.int16) - images[b].astype(np.int16))
    return bool(difference.mean() <= MOST_LEVELS)


def copies(examples: ExampleSet, clients: Sequence[ClientData]) -> list[str]:
    """Sentences about examples that occur twice, exactly or almost, within or across clients."""
    if examples.hashes is None:
        return []
    held = _Held.of(examples, clients)
    return [*_exact(examples.hashes[:, 0], held), *_almost(_alike(examples), held)]


@dataclass(frozen=True)
class _Held:
    """Where each example (n,) is."""

    unit: str
    names: Sequence[str]
    """The clients' names."""
    labels: NDArray[np.int64]
    holder: NDArray[np.int64]
    """The number of the client that has it, or -1."""
    tested: NDArray[np.bool_]

    @classmethod
    def of(cls, examples: ExampleSet, clients: Sequence[ClientData]) -> "_Held":
        holder = np.full(len(examples.labels), -1, dtype=np.int64)
        tested = np.zeros(len(examples.labels), dtype=bool)
        for number, client in enumerate(clients):
            holder[np.concatenate([client.train, client.validation, client.test])] = number
            tested[client.test] = True
        names = [client.name for client in clients]
        return cls(examples.unit, names, examples.labels, holder, tested)

    def who(self, members: Iterable[int]) -> str:
        """The clients that have these examples, for a sentence."""
        return some(sorted({self.names[int(self.holder[member])] for member in members}))


def _exact(contents: NDArray[np.uint64], held: _Held) -> list[str]:
    """About examples with equal content."""
    members = np.flatnonzero(held.holder >= 0)
    same: dict[int, list[int]] = {}
    for number, member in zip(same_numbers(contents[members]), members.tolist(), strict=True):
        same.setdefault(int(number), []).append(member)
    twice = [group for group in same.values() if len(group) > 1]
    clients_of = [{int(held.holder[member]) for member in group} for group in twice]
    said = []
    extra = sum(len(group) - len(at) for group, at in zip(twice, clients_of, strict=True))
    if extra:
        said.append(
            f"{count(extra, held.unit)} {'is a copy' if extra == 1 else 'are copies'} of another "
            f"one of the same client; copies are kept on one side of its split"
        )
    spread = [group for group, at in zip(twice, clients_of, strict=True) if len(at) > 1]
    if spread:
        said.append(
            f"{count(len(spread), held.unit)} {'is' if len(spread) == 1 else 'are'} held by "
            f"several clients ({held.who(itertools.chain(*spread))}): one client may be tested on "
            "examples that another trains on"
        )
    torn = [group for group in twice if len({int(held.labels[member]) for member in group}) > 1]
    if torn:
        said.append(
            f"{count(len(torn), held.unit)} {'occurs' if len(torn) == 1 else 'occur'} with "
            f"different classes ({held.who(itertools.chain(*torn))}): check the labels"
        )
    return said


def _almost(alike: Sequence[tuple[int, int]], held: _Held) -> list[str]:
    """About test examples that look almost like a training example."""
    leaks = [
        (test, train)
        for pair in alike
        for test, train in (pair, pair[::-1])
        if held.tested[test] and held.holder[train] >= 0 and not held.tested[train]
    ]
    own = {test for test, train in leaks if held.holder[test] == held.holder[train]}
    foreign = {test for test, train in leaks if held.holder[test] != held.holder[train]}
    said = []
    if own:
        said.append(
            f"{_look(own, held)} of the same client ({held.who(own)}): if they show the same "
            "patient, scene or object, mark it as a group (see data.layout and data.group_column)"
        )
    if foreign:
        said.append(
            f"{_look(foreign, held)} of another client ({held.who(foreign)}): scores may be too "
            "good"
        )
    return said


def _look(tests: set[int], held: _Held) -> str:
    looks = "looks" if len(tests) == 1 else "look"
    return f"{count(len(tests), f'test {held.unit}')} {looks} almost like a training {held.unit}"


def _alike(examples: ExampleSet) -> list[tuple[int, int]]:
    assert examples.hashes is not None
    if isinstance(examples, ImageSet):
        return look_alike(examples.images, examples.hashes)
    content, folded = examples.hashes.T
    order = np.argsort(folded, kind="stable")
    return [
        (int(a), int(b))
        for a, b in itertools.pairwise(order)
        if folded[a] == folded[b] and content[a] != content[b]
    ]
