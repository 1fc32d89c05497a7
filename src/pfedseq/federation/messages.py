"""Messages: named tensors down, a `Reply` up, and a `Hello` before round 1."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from pfedseq.errors import InputError

Tensors = dict[str, Tensor]
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Reply:
    """What a client sends up: tensors for the server, numbers for the log."""

    tensors: Tensors = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def checked(self, client: int, key: str, like: Tensor) -> Tensor:
        """Tensor `key` of a client's reply; refuses one that is not finite or has another shape."""
        tensor = self.tensors.get(key)
        if tensor is None:
            raise InputError(f"client {client}'s reply has no tensor {key!r}")
        if tensor.shape != like.shape:
            raise InputError(
                f"client {client}'s tensor {key!r} has shape {tuple(tensor.shape)} where "
                f"{tuple(like.shape)} is expected: is its adapter configured as the server's?"
            )
        if not tensor.isfinite().all():
            raise InputError(
                f"client {client}'s tensor {key!r} holds NaN or infinity: its local training "
                "diverged; lower the learning rate (training.lr)"
            )
        return tensor


MOST = 10**15
"""Examples that nobody has; sums of such numbers still fit into 64 bits."""


MOST_NAMES = 10_000_000
"""Bytes of names of classes that nobody has."""


@dataclass(frozen=True)
class Hello:
    """A client's introduction before round 1: counts and class names, no examples."""

    train_examples: int
    """|D_i|: the client's aggregation weight in Eq. (1)."""
    validation_examples: int
    test_examples: int
    class_names: tuple[str, ...]

    def reply(self) -> Reply:
        """The hello as a message; the names are the bytes of a JSON list."""
        counts = {f"{split}_examples": getattr(self, f"{split}_examples") for split in SPLITS}
        names = torch.tensor(list(json.dumps(self.class_names).encode()), dtype=torch.uint8)
        return Reply({"class_names": names}, counts)

    @classmethod
    def of(cls, reply: Reply) -> Hello:
        """Read what `reply` wrote; anything else is refused."""
        try:
            train, validation, test = (int(reply.metrics[f"{s}_examples"]) for s in SPLITS)
            written = reply.tensors["class_names"]
            if written.numel() > MOST_NAMES:
                raise ValueError(f"{written.numel():,} bytes of names of classes")
            names = json.loads(bytes(written.tolist()))
            possible = 0 <= min(train, validation, test) <= max(train, validation, test) <= MOST
            if not possible or not all(isinstance(n, str) for n in names):
                raise ValueError(f"{train}, {validation}, {test} examples of {names}")
        except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as problem:
            raise InputError(f"a client's hello is not readable: {problem}") from None
        return cls(train, validation, test, tuple(names))
