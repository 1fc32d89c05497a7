"""The wire engine: every message and every client's memory becomes bytes and back.

Slower than the in-process engine and equal to it bit for bit; anything that a method shares
outside its messages is lost here, so a difference between the two engines is a bug in the method.
"""

from __future__ import annotations

import json
import math

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from pfedseq.engines.local import LocalClients
from pfedseq.errors import InputError
from pfedseq.federation import Reply, Site, Tensors

_METRICS = "metrics"
_UNREADABLE = (
    *(SafetensorError, ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),  # numbers of 400 digits, brackets within brackets
)
"""What reading a message raises that somebody else has written."""


def encode(tensors: Tensors, metrics: dict[str, float] | None = None) -> bytes:
    """Tensors as safetensors bytes, the metrics in their header."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(plain, metadata={_METRICS: json.dumps(metrics or {})})


def decode(message: bytes, device: torch.device | None = None) -> Reply:
    """What `encode` wrote; anything else is refused."""
    try:
        tensors = load(message)
        length = int.from_bytes(message[:8], "little")
        header = json.loads(message[8 : 8 + length])
        metrics = json.loads(header["__metadata__"][_METRICS])
        numbers = {str(name): float(value) for name, value in metrics.items()}
    except _UNREADABLE as problem:
        raise InputError(f"a message of {len(message)} bytes is not readable: {problem}") from None
    if any(math.isinf(value) for value in numbers.values()):
        raise InputError("a message carries an infinite metric")
    return Reply({name: t.to(device) for name, t in tensors.items()}, numbers)


class WireClients(LocalClients):
    """Clients behind serialisation: only messages and stored state survive a call."""

    def deliver(self, i: int, site: Site, step: str, t: int, down: Tensors) -> Reply:
        """Encode the message, rebuild the client from its stored bytes, encode its reply."""
        device = site.task(t, step).initial.adapter.device
        state = decode(encode(self.states.get(i)), device).tensors
        received = decode(encode(down), device).tensors
        reply = self.answered(i, site, state, step, t, received)
        return decode(encode(reply.tensors, reply.metrics), device)
