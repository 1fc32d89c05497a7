"""What a client sends is looked at before the server sees it; what is bad never reaches it.

The round goes on as if a client whose reply is refused were absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

import torch

from pfedseq.engines.answer import CLIENT, DIVERGED, ROUND
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.passing import PassingClients
from pfedseq.errors import InputError
from pfedseq.federation import Client, Clients, Reply, Server, Tensors

FEWEST_FOR_A_MEDIAN = 3
"""Of two updates nobody can say which is the absurd one."""


class ScreenedClients(PassingClients):
    """The clients of an engine, without the replies that `server` must not see."""

    def __init__(self, clients: Clients, server: Server, config: FederationConfig) -> None:
        super().__init__(clients)
        self.server, self.config = server, config
        self.answered: set[int] = set()
        """Clients whose training was taken in."""
        self.refused: dict[int, str] = {}
        """Why, by client."""

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Pass the call on and keep the replies that are sound."""
        replies = super().call(step, t, down)
        if step in Client.reading_steps:
            return replies
        expected = self.server.expected(step)
        faults = {
            i: fault
            for i, reply in replies.items()
            if (fault := _misplaced(reply, t, i, down) or _fault(reply, expected))
        }
        sound = {i: reply for i, reply in replies.items() if i not in faults}
        if step == "train" and expected:
            faults |= self._outsized(sound, down)
        accepted = {i: reply for i, reply in sound.items() if i not in faults}
        self.refused |= faults
        if step == "train":
            self.answered = set(accepted)
        if len(faults) == self.server.setup.num_clients:
            first = min(faults)
            raise InputError(
                f"no client's reply in round {t} can be used; of client {first}: {faults[first]}"
            )
        return accepted

    def _outsized(self, replies: dict[int, Reply], down: Mapping[int, Tensors]) -> dict[int, str]:
        """Refuse updates of absurd length; cut down, in `replies`, those that are too long."""
        if len(replies) < FEWEST_FOR_A_MEDIAN:
            return {}
        lengths = {i: _length(reply, down[i]) for i, reply in replies.items()}
        middle = median(lengths.values())
        if middle == 0:
            return {}
        faults = {}
        for i, length in lengths.items():
            if length > self.config.max_update_ratio * middle:
                faults[i] = (
                    f"its update is {length / middle:.3g} times as long as the median of this "
                    f"round's (federation.max_update_ratio is {self.config.max_update_ratio:g})"
                )
            elif self.config.clip_ratio and length > self.config.clip_ratio * middle:
                replies[i] = _cut(replies[i], down[i], self.config.clip_ratio * middle / length)
        return faults


def _misplaced(reply: Reply, t: int, i: int, down: Mapping[int, Tensors]) -> str | None:
    """Why a reply, whatever it holds, is none to what client i was sent in round t."""
    if i not in down:
        return "it answers a message that it was not sent"
    for what, name, wanted in (("round", ROUND, t), ("client", CLIENT, i)):
        said = reply.metrics.get(name)
        if said is None:
            return f"it does not say which {what}'s message it answers"
        if said != wanted:
            return f"it answers a message of {what} {said:g} in place of {wanted}"
    return None


def _fault(reply: Reply, expected: Tensors) -> str | None:
    """Why the content of a reply cannot be used."""
    if reply.metrics.get(DIVERGED):
        return "its training diverged; lower the learning rate (training.lr)"
    for name, like in expected.items():
        tensor = reply.tensors.get(name)
        if tensor is None:
            return f"its reply has no tensor {name!r}"
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            return (
                f"its tensor {name!r} is {_kind(tensor)} where {_kind(like)} is expected: is its "
                "adapter configured as the server's?"
            )
    for name, tensor in reply.tensors.items():
        if not tensor.isfinite().all():
            return f"its tensor {name!r} holds NaN or infinity"
    return None


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _update(reply: Reply, down: Tensors) -> Tensors:
    """What a reply changes in what was sent; a tensor that was not sent counts whole."""
    return {
        name: tensor - down[name] if name in down else tensor
        for name, tensor in reply.tensors.items()
    }


def _length(reply: Reply, down: Tensors) -> float:
    squares = (float(part.double().square().sum()) for part in _update(reply, down).values())
    return math.sqrt(sum(squares))


def _cut(reply: Reply, down: Tensors, factor: float) -> Reply:
    shortened = {
        name: down[name] + factor * part if name in down else factor * part
        for name, part in _update(reply, down).items()
    }
    return Reply(shortened, reply.metrics)
