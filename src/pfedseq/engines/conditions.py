"""[federation]: participation, and protection from faulty updates."""

from __future__ import annotations

from pydantic import Field

from pfedseq.base_config import BaseConfig
from pfedseq.engines.payload import PayloadKind
from pfedseq.federation import Aggregation


class FederationConfig(BaseConfig):
    """[federation]: joining and leaving clients, and protection from bad updates."""

    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        description="participation rate: share of the clients asked in a round; paper: 1",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability that a client drops out of a round without answering",
    )
    late_clients: float = Field(
        0.0, ge=0, lt=1, description="share of the clients that joins later; the last ones in order"
    )
    late_round: int = Field(1, ge=1, description="first round of the late clients")
    leaving_clients: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the clients that leaves for good; the first ones in order",
    )
    leaving_round: int = Field(1, ge=1, description="first round without the leaving clients")
    gone_after: int | None = Field(
        None,
        ge=2,
        description="rounds without an answer after which a client counts as having left; if it "
        "returns, it joins as a newcomer; default: never",
    )
    max_update_ratio: float = Field(
        100.0,
        gt=1,
        description="refuse an update longer than this multiple of the round's median; with fewer "
        "than three updates, of the median of the client's own last five, or of everyone's",
    )
    clip_ratio: float | None = Field(
        None,
        gt=0,
        description="scale an update down to at most this multiple of the round's median, for the "
        "mean and for the learner's input; default: no limit",
    )
    max_weight: float = Field(
        0.5,
        gt=0,
        le=1,
        description="largest share of the weights of Eq. (1) that one client may have, whatever "
        "number of examples it declares; no limit where 1/max_weight clients or fewer answer",
    )
    aggregation: Aggregation = Field(
        "mean",
        description="the weighted mean of Eq. (1), or the coordinate-wise median or trimmed mean "
        "with equal weights",
    )
    payload: PayloadKind = Field(
        "float32",
        description="number format of uploads: exact, or rounded to half or a quarter of the "
        "bytes with error feedback in later rounds",
    )
    trim: float = Field(0.1, ge=0, lt=0.5, description="share that trimmed_mean drops at each end")

    @property
    def members_change(self) -> bool:
        """Whether clients join or leave for good during a run."""
        return bool(self.late_clients or self.leaving_clients or self.gone_after)
