"""Duplicates: identical examples, and images that look almost identical.

Equal examples have equal 64-bit checksums. Similar images are found by a difference hash (is a
cell of an 8 × 9 grid brighter than its right neighbour?) and then compared by their pixels.
"""

import hashlib
import itertools
from collections.abc import Sequence

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
    """Sentences about examples that occur twice within a client, or at several clients."""
    if examples.hashes is None:
        return []
    unit, names = examples.unit, [client.name for client in clients]
    holder = np.full(len(examples.labels), -1, dtype=np.int64)
    tested = np.zeros(len(examples.labels), dtype=bool)
    for number, client in enumerate(clients):
        holder[np.concatenate([client.train, client.validation, client.test])] = number
        tested[client.test] = True
    held = np.flatnonzero(holder >= 0)
    number_of = same_numbers(examples.hashes[held, 0])
    pairs = {(int(n), int(c)) for n, c in zip(number_of, holder[held], strict=True)}
    said = []
    if doubled := len(held) - len(pairs):
        said.append(
            f"{count(doubled, unit)} {'is a copy' if doubled == 1 else 'are copies'} of another "
            f"one of the same client; copies are kept on one side of its split"
        )
    at_clients: dict[int, set[int]] = {}
    for number, client_number in pairs:
        at_clients.setdefault(number, set()).add(client_number)
    if spread := [where for where in at_clients.values() if len(where) > 1]:
        who = sorted({names[number] for where in spread for number in where})
        said.append(
            f"{count(len(spread), unit)} {'is' if len(spread) == 1 else 'are'} held by several "
            f"clients ({some(who)}): one client may be tested on examples that another trains on"
        )
    alike = [
        (a, b)
        for a, b in _alike(examples)
        if holder[a] == holder[b] >= 0 and tested[a] != tested[b]
    ]
    if alike:
        seen = len({a if tested[a] else b for a, b in alike})
        who = sorted({names[int(holder[a])] for a, _ in alike})
        said.append(
            f"{count(seen, f'test {unit}')} {'looks' if seen == 1 else 'look'} almost like a "
            f"training {unit} of the same client ({some(who)}): if they show the same patient, "
            "scene or object, mark it as a group (see data.layout and data.group_column)"
        )
    return said


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
