"""[federation]: who takes part in a round, and what of their updates is believed."""

from __future__ import annotations

from pydantic import Field

from pfedseq.base_config import BaseConfig
from pfedseq.engines.payload import Precision
from pfedseq.federation import Aggregation


class FederationConfig(BaseConfig):
    """[federation]: clients that come and go, and protection from bad updates."""

    participation: float = Field(
        1.0, gt=0, le=1, description="share of the clients that is asked in a round; paper: 1"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="chance of a client that is asked to vanish without an answer"
    )
    late_clients: float = Field(
        0.0, ge=0, lt=1, description="share of the clients, the last ones, that joins later"
    )
    late_round: int = Field(1, ge=1, description="first round of the late clients")
    leaving_clients: float = Field(
        0.0, ge=0, lt=1, description="share of the clients, the first ones, that leaves for good"
    )
    leaving_round: int = Field(1, ge=1, description="first round without those that leave")
    gone_after: int | None = Field(
        None,
        ge=2,
        description="rounds without an answer after which a client is taken to have left for good; "
        "if it comes back, then as a newcomer; default: never",
    )
    max_update_ratio: float = Field(
        100.0,
        gt=1,
        description="an update longer than so many times the round's median is refused",
    )
    clip_ratio: float | None = Field(
        None,
        gt=0,
        description="an update longer than so many times the round's median is cut down to that, "
        "for the mean and for the learner's input; default: none is",
    )
    aggregation: Aggregation = Field(
        "mean",
        description="Eq. (1), or in its place, number by number and every client alike, the median "
        "or the mean without the extremes",
    )
    payload: Precision = Field(
        "float32",
        description="how clients send their tensors up: exactly, or rounded to half or a quarter "
        "of the bytes, with what was rounded off sent in later rounds",
    )
    trim: float = Field(0.1, ge=0, lt=0.5, description="share left out at each end by trimmed_mean")

    @property
    def members_change(self) -> bool:
        """Whether clients join or leave for good in the course of a run."""
        return bool(self.late_clients or self.leaving_clients or self.gone_after)
