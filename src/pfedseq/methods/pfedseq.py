"""pFedSeq: a sequential learner reads everyone's past updates and calibrates each adapter.

Peng et al., "Look Back for More: Harnessing Historical Sequential Updates for Personalized
Federated Adapter Tuning", AAAI 2025, Algorithm 1, Eqs. (1)–(7).

Sent down: θ_i. Sent up: Δ_i = θ̃_i − θ_i (`OwnHeadClient`). Evaluated: the received θ_i with the
client's own ω_i.

Deviations: what the paper leaves open (the scale of the learner's inputs and outputs, and where it
starts) is named in `LearnerConfig`. By default ξ starts from the client's decayed drift from the
mean and the mean's own momentum, which the paper does not have; docs/learner.md has the evidence. A
client that misses a round counts as Δ = 0 in the history and not at all in Eq. (1); one
without any update in the window, such as a newcomer, gets no ξ.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.federation import (
    Method,
    MethodConfig,
    Reply,
    Server,
    Setup,
    Tensors,
)
from pfedseq.learners.calibration import CalibrationLearner, LearnerConfig, bounded, decayed_sum
from pfedseq.learners.history import Gap, History, fill_gaps
from pfedseq.methods.parts.own_head import OwnHeadClient
from pfedseq.optim import step_along
from pfedseq.params import weighted_mean


class PFedSeqConfig(MethodConfig, LearnerConfig):
    """Options of pFedSeq: the schedule here, the learner's in `LearnerConfig`."""

    warmup_rounds: int = Field(
        10, ge=0, description="W, rounds that only train the learner; paper: 10 of {5, …, 40}"
    )
    learner_lr: float = Field(
        1e-3, gt=0, description="Adam's rate for ψ; paper: 1e-3 of {1e-4, 5e-4, 1e-3, 5e-3, 1e-2}"
    )
    learner_steps: int = Field(1, ge=1, description="steps of Eq. (5) a round; paper: 1")

    history_gap: Gap = Field(
        "zero",
        description="what the history holds of a client that missed a round: nothing, its last "
        "update again, or half of that",
    )

    def advice(self, rounds: int) -> list[str]:
        """A warm-up that outlasts the run never lets the learner speak."""
        if self.warmup_rounds < rounds:
            return []
        return [
            f"warmup_rounds = {self.warmup_rounds} is not below run.rounds = {rounds}: "
            "pFedSeq will send the mean adapter alone and never a personal one"
        ]


class PFedSeqServer(Server):
    """Algorithm 1, the server's part."""

    config: PFedSeqConfig
    persistent = ("adapters", "history", "learner", "optimizer")
    takes = ("delta",)

    def __init__(self, config: PFedSeqConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        num_clients = setup.num_clients
        self.adapters = setup.initial.adapter.expand(num_clients, -1, -1)  # θ_i (N, K, D)
        self.history = History(config.window_length)
        self.learner = CalibrationLearner(config, setup)
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=config.learner_lr)

    def payload(self, i: int) -> Tensors:
        """θ_i."""
        return {"adapter": self.adapters[i]}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Train the learner on Δ^t, aggregate, and generate the next personal adapters."""
        deltas, present = self.setup.stack(replies, "delta")  # Δ^t (N, K, D)
        if self.history:  # empty at t = 1
            window = self.history.window()  # Δ^{max(1, t−L) : t−1}, which made ξ^{t−1}
            for _ in range(self.config.learner_steps):
                step_along(self.optimizer, self.learner(window), deltas)  # Eq. (5)
        gaps = self.config.history_gap
        self.history.append(fill_gaps(deltas, present, self.history.newest(), gaps))
        updated = self.adapters + deltas  # θ̃_i
        shared = self.setup.aggregate(updated, present)  # Eq. (1)
        self.adapters = shared.expand_as(updated)
        if t > self.config.warmup_rounds:
            base = shared if self.config.aggregates else self.setup.initial.adapter
            calibrations = self._calibrations(t)
            if self.config.max_calibration is not None:
                calibrations = bounded(calibrations, shared, self.config.max_calibration)
            known = self.history.known()[:, None, None]  # who is new gets the mean adapter
            self.adapters = base + torch.where(known, calibrations, 0.0)  # Eq. (3)

    @torch.no_grad()
    def _calibrations(self, t: int) -> Tensor:
        """ξ^t (N, K, D), Eqs. (2) and (6)."""
        window = self.history.window()
        calibrations: Tensor = self.learner(window)
        if self.config.residual == "drift":
            calibrations = calibrations + self._drift(window, t - self.config.warmup_rounds)
        return calibrations

    def _drift(self, window: Tensor, personal_rounds: int) -> Tensor:
        """Σ_j ρ^{t−j} (Δ_i^j − Δ̄^j) + Σ_j μ^{t−j+1} Δ̄^j (N, K, D), docs/learner.md.

        The first sum, what is client i's own, begins after the warm-up: there every client starts
        from the mean, so it makes the same way again each round, which would be granted several
        times over. Variants A and C, which have no mean to stay around or mix no clients, keep Δ̄
        in it and have no second.
        """
        config = self.config
        own_way = decayed_sum(window[:, :, -personal_rounds:], config.drift_decay)
        if not (config.aggregates and config.mixes_clients):
            return own_way
        everyone = self.setup.weights(torch.ones(self.setup.num_clients, device=own_way.device))
        velocity = weighted_mean(decayed_sum(window, config.momentum), everyone)
        return own_way - weighted_mean(own_way, everyone) + config.momentum * velocity


METHOD = Method(
    name="pfedseq",
    server=PFedSeqServer,
    client=OwnHeadClient,
    config=PFedSeqConfig,
    title="pFedSeq",
    summary="a learner over everyone's past updates calibrates the mean adapter for each client",
)
