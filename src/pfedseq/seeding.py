"""Random streams by name: each choice depends on the seed and on what it is for, not on order."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the purpose that `names` spell out."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """A separate CPU generator for one purpose, e.g. ("batches", client, round)."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator seeded like `generator`."""
    return np.random.default_rng(derive_seed(seed, *names))


@contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """PyTorch's own CPU generator for one purpose, for layers that draw their weights from it.

    Without names it is seeded with `seed` itself. Its former state is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, *names) if names else seed)
        yield
