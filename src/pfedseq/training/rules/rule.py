"""The interface of an optimiser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from pfedseq.training.config import LocalTraining


class Rule(Protocol):
    """One step of one tensor."""

    def __call__(
        self,
        x: Tensor,
        gradient: Tensor,
        lr: float,
        memory: dict[str, Tensor],
        config: LocalTraining,
    ) -> Tensor:
        """`x` after the step, a new tensor.

        `memory` is the rule's state between steps: empty before the first one, and updated by
        putting new tensors into it.
        """
