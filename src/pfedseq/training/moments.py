"""Exchange of AdamW's second moments: clients send them, the server averages.

As in FedAdamW (Liu et al., AAAI 2026) a client's first moment begins every round at zero and its
second moment at the mean of all clients'. Deviations: every number of v travels, where
the paper sends block-wise means; v's bias is corrected by the averaged share of its weights, where
the paper counts steps; the paper's correction towards the global update is left out. The
moments of a part that the method keeps at the client, such as a private head, stay there.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pfedseq.training.optimizer import PARTS, memory_key
from pfedseq.training.rules.adamw import SECOND

_PREFIX = "optimizer/"
_CARRIERS = {"adapter": ("adapter", "delta"), "head": ("head", "head_change")}
"""The tensors of a reply that carry each part of φ."""


def is_moment(name: str) -> bool:
    """Whether a tensor of a message belongs to the optimiser, not to a model."""
    return name.startswith(_PREFIX)


def message_key(part: str, what: str) -> str:
    """The key of a moment in a message."""
    return f"{_PREFIX}{part}/{what}"


def take_moments(
    down: dict[str, Tensor], state: dict[str, Tensor], model: str
) -> dict[str, Tensor]:
    """At the client: move the server's moments from a message into the state; return the rest."""
    for part in PARTS:
        for what in SECOND:
            if (tensor := down.get(message_key(part, what))) is not None:
                state[memory_key(model, part, what)] = tensor
    return {name: tensor for name, tensor in down.items() if not is_moment(name)}


def give_moments(
    sent: Mapping[str, Tensor], state: Mapping[str, Tensor], model: str
) -> dict[str, Tensor]:
    """At the client: the moments of the parts that a reply sends."""
    return {
        message_key(part, what): state[memory_key(model, part, what)]
        for part in sent_parts(sent)
        for what in SECOND
    }


def sent_parts(sent: Mapping[str, Tensor]) -> list[str]:
    """The parts of φ that tensors of these names carry."""
    return [part for part in PARTS if any(name in sent for name in _CARRIERS[part])]


def shapes(expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shapes of the moments that a reply must contain if the server expects these tensors."""
    found: dict[str, Tensor] = {}
    for part in sent_parts(expected):
        like = next(expected[name] for name in _CARRIERS[part] if name in expected)
        second, share = SECOND
        found |= {message_key(part, second): like, message_key(part, share): like.new_zeros(())}
    return found


class Moments:
    """The server's averaged moments; empty before the first round."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Tensor]:
        """State to be written to a checkpoint."""
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        self.tensors = dict(state)
