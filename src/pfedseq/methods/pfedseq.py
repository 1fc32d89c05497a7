"""pFedSeq: a sequential learner reads everyone's past updates and calibrates each adapter.

Peng et al., "Look Back for More: Harnessing Historical Sequential Updates for Personalized
Federated Adapter Tuning", AAAI 2025, Algorithm 1, Eqs. (1)–(7).

Sent down: θ_i. Sent up: Δ_i = θ̃_i − θ_i (`OwnHeadClient`). Evaluated: the received θ_i with the
client's own ω_i.

Deviations: by default the learner departs from Appendix A (blocks without RMSNorm and without SiLU
before the scan) and from the experimental setup (a rate of 1e-4, where the paper has 1e-3, and an
Adam ε of 1e-16, where PyTorch's is 1e-8). The paper leaves open the scale of inputs and outputs,
the initialisation and the forgetting. All are options of `LearnerConfig`; the evidence is in
docs/explanation/learner.md, and the preset `literal` is the plain reading. Clients that are drawn
the same way share a mean adapter (`Groups`), where the paper has one for all. A client that misses
a round keeps its last Δ in the history and is left out of Eq. (1); a client without any update in
the window, such as a newcomer, gets no ξ. When clients join or leave, learner and history are
resized (`reseat`).
"""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.federation import Method, Reply, Setup, Tensors
from pfedseq.learners.calibration import CalibrationLearner, LearnerConfig
from pfedseq.learners.history import Gap, Lengths, bounded
from pfedseq.methods.parts.groups import GroupingConfig, Groups
from pfedseq.methods.parts.own_head import OwnHeadClient, OwnHeadServer
from pfedseq.methods.parts.server_steps import server_steps
from pfedseq.methods.parts.step_along import step_along
from pfedseq.params import weighted_mean


class PFedSeqConfig(GroupingConfig, LearnerConfig):
    """Options of pFedSeq: the schedule here, the learner's in `LearnerConfig`."""

    warmup_rounds: int | None = Field(
        None,
        ge=0,
        description="W, rounds that only train the learner; default: a sixth of all, from 2 to 10; "
        "paper: 10 of {5, …, 40}",
    )
    history_gap: Gap = Field(
        "last",
        description="what the history holds of a client that missed a round: nothing, its last "
        "update again, or half of that",
    )

    history_clip: float = Field(
        1.5,
        ge=0,
        description="bound on the length of an update as the learner sees it, per layer, "
        "as a multiple of the median of that client's last L updates; longer ones are scaled "
        "down; 0 (the paper): no bound",
    )
    group_cosine: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="clients whose adapters deviate from the mean in similar directions in the "
        "first rounds, with a mean cosine of at least this, share a mean adapter; 0 (the paper): "
        "one mean for all",
    )

    def warmup(self, rounds: int) -> int:
        """W for a run of `rounds` rounds."""
        given = self.warmup_rounds
        return min(10, max(2, rounds // 6)) if given is None else given

    def advice(self, rounds: int) -> list[str]:
        """Warn if the warm-up lasts as long as the run, so that the learner is never used."""
        if self.warmup(rounds) < rounds:
            return []
        return [
            f"warmup_rounds = {self.warmup(rounds)} is not below run.rounds = {rounds}: "
            "pFedSeq will send only the mean adapter and never a personal one"
        ]


class PFedSeqServer(OwnHeadServer):
    """Algorithm 1, the server's part."""

    config: PFedSeqConfig
    persistent = (
        *("adapters", "shared", "groups", "history", "lengths", "learner", "optimizer"),
        *OwnHeadServer.persistent,
        "steps",
    )
    takes = ("delta",)

    def __init__(self, config: PFedSeqConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.adapters = setup.initial.adapter.expand(setup.num_clients, -1, -1)  # θ_i (N, K, D)
        self.shared = setup.initial.adapter  # the mean adapter (K, D)
        self.steps = server_steps(config, shared=self.shared)
        warmup = config.warmup(setup.num_rounds)
        self.groups = Groups(config, setup, warmup, used=config.aggregates)
        self.learner = CalibrationLearner(config, setup)
        self.history = self.learner.empty_history(config.history_gap)
        self.lengths = Lengths(config.max_sequence_length)
        self.notes = self.learner.notes(setup)
        self.optimizer = self.learner.optimizer()

    def payload(self, i: int) -> Tensors:
        """θ_i."""
        return {"adapter": self.adapters[i]} | self.common_head()

    def mean(self) -> Tensors:
        """The mean adapter of all clients: without groups, what θ_i is without ξ_i."""
        return {"adapter": self.shared} | self.common_head()

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Train the learner on Δ^t, aggregate, and generate the next personal adapters."""
        deltas, present = self.setup.stack(replies, "delta")  # Δ^t (N, K, D)
        self.take_heads(replies)
        seen = self._bounded(deltas)  # as the learner sees them
        if self.history and self.config.ablation != "frozen":  # empty at t = 1
            rows = self.config.training_rows(self.setup, t)
            past = self.history.inputs(rows)  # Δ^{max(1, t−L) : t−1}, which made ξ^{t−1}
            calibrations = self.learner(past, self.history.known())
            step_along(self.optimizer, calibrations, _of_rows(seen, rows))  # Eq. (5)
        self.history.append(seen, present)
        updated = self.adapters + deltas  # θ̃_i
        mean = self.setup.aggregate(updated, present)  # Eq. (1)
        weights = self.setup.weights(present)
        self.groups.take(t, updated, self.shared, mean, present, weights)
        self.shared = self.steps["shared"](self.shared, mean)
        self.adapters = self.shared.expand_as(deltas)  # t ≤ W
        calibrations = torch.zeros_like(self.shared).expand_as(deltas)
        if t > self.config.warmup(self.setup.num_rounds):
            calibrations = self._calibrations()
            self.adapters = self._base() + calibrations  # Eq. (3)
        self.figures = self._sizes(deltas, calibrations)

    def _bounded(self, deltas: Tensor) -> Tensor:
        """Δ^t without outliers: one very long update would set the scale of everyone's ξ."""
        limit, seen = self.config.history_clip, deltas
        if limit and self.lengths:
            seen = bounded(deltas, self.lengths.usual(), limit)
        self.lengths.append(deltas.norm(dim=-1))
        return seen

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Newcomers get the mean adapter; the remaining clients keep what was learnt for them."""
        super().reseat(kept, newcomers)
        start = self.shared if self.config.aggregates else self.setup.initial.adapter
        joined = start.expand(len(newcomers), -1, -1)
        self.adapters = torch.cat([self.adapters[list(kept)], joined])
        self.groups.reseat(kept, len(newcomers))
        self.history.reseat(kept, len(newcomers))
        self.lengths.reseat(kept, len(newcomers))
        self.learner, self.optimizer = self.learner.reseated(kept, self.setup, self.optimizer)

    def _base(self) -> Tensor:
        """What ξ_i is added to: (K, D), or (N, K, D) with groups."""
        if not self.config.aggregates:
            return self.setup.initial.adapter
        return self.groups.around(self.shared)

    @torch.no_grad()
    def _calibrations(self) -> Tensor:
        """ξ^t (N, K, D), Eqs. (2) and (6); two of the ablations keep only one part of it."""
        known = self.history.known()
        calibrations: Tensor = self.learner(self.history.inputs(), known)
        match self.config.ablation:
            case "common":
                calibrations = self._common(calibrations).expand_as(calibrations)
            case "personal":
                calibrations = calibrations - self._common(calibrations)
        if known.all():
            return calibrations
        return torch.where(known[:, None, None], calibrations, 0.0)  # newcomers get the mean

    def _common(self, calibrations: Tensor) -> Tensor:
        """Σ_i |D_i| ξ_i / Σ_i |D_i| (K, D): what Eq. (1) adds to the mean each round."""
        return weighted_mean(calibrations, self.setup.all_weights)

    def _sizes(self, deltas: Tensor, calibrations: Tensor) -> dict[str, list[float]]:
        """The RMS of Δ, of ξ and its two parts, and of the distance from θ^0, in each layer."""
        common = self._common(calibrations)
        of = {  # one layer at a time, (N, D) or (D,): nothing of size (N, K, D) is allocated
            "delta_rms": deltas.unbind(1),
            "calibration_rms": calibrations.unbind(1),
            "common_rms": common.unbind(),
            "personal_rms": (x - c for x, c in zip(calibrations.unbind(1), common, strict=True)),
            "distance_rms": (self.shared - self.setup.initial.adapter).unbind(),
        }
        sizes = {name: [float(_rms(x)) for x in layers] for name, layers in of.items()}
        return sizes | self.groups.figures()


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def _of_rows(deltas: Tensor, rows: Tensor | None) -> Tensor:
    """Δ^t of the sampled rows, times D/R, so that the sum of Eq. (5) is unbiased."""
    return deltas if rows is None else deltas[..., rows] * (deltas.shape[-1] / len(rows))


METHOD = Method(
    name="pfedseq",
    server=PFedSeqServer,
    client=OwnHeadClient,
    config=PFedSeqConfig,
    title="pFedSeq",
    summary="a learner over everyone's past updates calibrates the mean adapter for each client",
    grid={
        "max_sequence_length": (5, 10, 15, 20, 25, 30),
        "state_dim": (4, 8, 16, 32),
        "learner_lr": (0.0001, 0.0005, 0.001, 0.005, 0.01),
    },
)
