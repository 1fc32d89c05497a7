"""A method as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pfedseq.federation.client import Client
from pfedseq.federation.server import Server
from pfedseq.training.config import LocalTraining


class MethodConfig(LocalTraining):
    """Options that every method has; a method's own options extend it."""

    def advice(self, rounds: int) -> list[str]:
        """Sentences about options that are allowed but hardly meant, in a run of `rounds`."""
        return []

    @property
    def rank_blocks(self) -> int:
        """How many LoRAs of the configured rank, side by side, the method's θ consists of."""
        return 1


RATES: Mapping[str, Sequence[float]] = {"lr": (0.001, 0.005, 0.01, 0.05)}
"""What is searched where a method names no other options: the paper's grid of rates."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A registered method: its name, its two halves, its options, and what it is."""

    name: str
    server: type[Server]
    client: type[Client]
    config: type[MethodConfig]
    title: str
    """As the paper's tables write it."""
    summary: str
    """One line for `pfedseq methods`."""
    training: str = "every local step takes them"
    """What the method does with the options of local training, for `pfedseq methods --verbose`."""
    adapters: tuple[str, ...] = ("lora", "dora", "ia3")
    """Kinds of adapter that it works with; the first is recommended in place of any other."""
    needs_head: bool = False
    """Whether it is about classes and their head, which language models do not have."""
    needs_auxiliary: bool = False
    """Whether the server must be given `Setup.auxiliary`."""
    grid: Mapping[str, Sequence[float]] = field(default_factory=lambda: RATES)
    """The values of each option that `pfedseq tune` goes through."""
