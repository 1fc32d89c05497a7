"""The registry entry of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pfedseq.federation.client import Client
from pfedseq.federation.server import Server
from pfedseq.training.config import LocalTraining


class MethodConfig(LocalTraining):
    """Options that every method has; a method's own options extend it."""

    def advice(self, rounds: int) -> list[str]:
        """Warnings about valid but probably unintended options in a run of `rounds`."""
        return []

    @property
    def rank_blocks(self) -> int:
        """How many LoRAs of the configured rank, side by side, the method's θ consists of."""
        return 1


RATES: Mapping[str, Sequence[float]] = {"lr": (0.001, 0.005, 0.01, 0.05)}
"""The default search grid: the paper's learning rates."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A registered method: its name, both halves, options and description."""

    name: str
    server: type[Server]
    client: type[Client]
    config: type[MethodConfig]
    title: str
    """Its name in tables."""
    summary: str
    """One line for `pfedseq methods`."""
    training: str = "every local step takes them"
    """How the method uses the options of local training, for `pfedseq methods --verbose`."""
    adapters: tuple[str, ...] = ("lora", "dora", "ia3")
    """Kinds of adapter that it works with; the first is recommended in place of any other."""
    needs_head: bool = False
    """Whether it requires classes and a head, which language models do not have."""
    needs_auxiliary: bool = False
    """Whether the server must be given `Setup.auxiliary`."""
    grid: Mapping[str, Sequence[float]] = field(default_factory=lambda: RATES)
    """The values of each option that `pfedseq tune` tries."""
