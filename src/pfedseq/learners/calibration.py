"""From a window of updates to a calibration: a sequence model between two changes of scale.

Updates are tiny (1e-4 … 1e-2) and differ in size between adapter parameters. So
each row of the window, one parameter's updates by all clients, is divided by its root mean square,
and the model's output is multiplied by it and by a gain: ξ has the scale of the updates, and the
gain lets it grow beyond them at Adam's rate. The measurements behind
it: docs/explanation/learner.md.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pfedseq.base_config import BaseConfig
from pfedseq.federation import Setup
from pfedseq.learners.history import Gap, History
from pfedseq.learners.linear import LinearLearner
from pfedseq.learners.lstm import LSTMLearner
from pfedseq.learners.mamba import MambaLearner
from pfedseq.learners.mlp import MLPLearner
from pfedseq.learners.pooled import PooledLearner
from pfedseq.learners.resizing import Move
from pfedseq.learners.running_sums import Past, RunningSums
from pfedseq.seeding import seeded, torch_generator

SMALLEST_SCALE = 1e-12
"""Avoids division by zero for a row of zeros (every client absent or converged)."""


DENSE_UP_TO = 100
"""Clients up to which `mixing = "auto"` is Appendix A's network; its work grows with N²."""
FEWEST_ROWS = 256
"""Minimum number of rows of a layer that `row_share = "auto"` trains on."""

Mixing = Literal["dense", "pooled"]


class LearnerConfig(BaseConfig):
    """Options of the sequential learner, including those that the paper leaves open."""

    max_sequence_length: int = Field(
        20, ge=1, description="L, rounds the learner looks back; paper: 20, DomainNet/Omniglot 10"
    )
    architecture: Literal["mamba", "lstm", "mlp", "linear"] = Field(
        "mamba",
        description="the sequence model; lstm and mlp are variants E and D of Table 3, linear a "
        "matrix over the window's sum",
    )
    mixing: Literal["auto", "dense", "pooled"] = Field(
        "auto",
        description="how clients are mixed: dense, Appendix A's network over all clients; pooled, "
        "one small network for every client that reads its own past and the mean of all; auto is "
        f"dense up to {DENSE_UP_TO} clients at the start of a run",
    )
    row_share: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = Field(
        "auto",
        description="share of the D adapter parameters, redrawn each round, on which the learner "
        f"is trained; paper: 1; auto: 1 up to {DENSE_UP_TO} clients, then fewer",
    )
    state_dim: int = Field(16, ge=1, description="M, Mamba's states; paper: 16 of {4, 8, 16, 32}")
    num_blocks: int = Field(2, ge=1, description="Mamba blocks or LSTM layers; paper: 2")
    ablation: Literal[
        "none",
        "no_aggregation",
        "no_cross_step",
        "no_cross_client",
        "frozen",
        "common",
        "personal",
    ] = Field(
        "none",
        description="variants A, B and C of the paper's Table 2; the learner never trained "
        "(frozen); only the mean of ξ over clients (common), or only the deviation "
        "from it (personal)",
    )
    scale: Literal["row", "none"] = Field(
        "row",
        description="divide each adapter parameter's window by its RMS, and multiply ξ by it and "
        "by the gain; none: neither",
    )
    gain: float = Field(100.0, gt=0, description="factor of ξ in addition to the row's RMS")
    learner_lr: float = Field(
        1e-4, gt=0, description="Adam's rate for ψ; paper: 1e-3 of {1e-4, 5e-4, 1e-3, 5e-3, 1e-2}"
    )
    learner_eps: float = Field(
        1e-16,
        gt=0,
        description="Adam's ε: far below ψ's gradients, which are products of two updates and tiny "
        "where these are; PyTorch's 1e-8 holds ψ back where RMS(Δ) is 1e-5 or less",
    )
    forgetting: float = Field(
        1 / 15,
        ge=0,
        lt=1,
        description="weight decay of the learner's output weights per round, before Eq. (5): "
        "pulls ξ to zero unless the updates counteract it; paper: 0",
    )
    signed: bool = Field(
        True,
        description="Mamba adapted to updates, which are as often negative as positive: constant "
        "terms in gate, B and C, no normalisation of single steps; false: as for language",
    )
    residual: Literal["none", "newest"] = Field(
        "none", description="what the model's output is added to: nothing, or the newest Δ_i"
    )
    zero_projections: bool = Field(
        True, description="start the out-projections at zero, so that ξ starts as the residual"
    )

    @model_validator(mode="after")
    def _pooled_is_a_signed_block(self) -> Self:
        if self.mixing == "pooled" and not self._can_be_pooled:
            raise ValueError(
                'mixing = "pooled" is a separate architecture and requires architecture = '
                '"mamba", signed = true and any ablation but "no_cross_client"; use mixing = '
                '"dense" with others'
            )
        return self

    @property
    def _can_be_pooled(self) -> bool:
        return self.architecture == "mamba" and self.signed and self.mixes_clients

    def mixing_of(self, num_clients: int) -> Mixing:
        """Resolve `mixing = "auto"` for this many clients."""
        if self.mixing != "auto":
            return self.mixing
        return "pooled" if num_clients > DENSE_UP_TO and self._can_be_pooled else "dense"

    def num_rows(self, dim: int, num_clients: int) -> int:
        """R: how many of the D rows the learner is trained on.

        The automatic share keeps rows × clients at its value for the largest federation that is
        trained on all rows.
        """
        if self.row_share != "auto":
            return max(1, round(self.row_share * dim))
        share = min(1.0, DENSE_UP_TO / num_clients)
        return min(dim, max(FEWEST_ROWS, round(share * dim)))

    def training_rows(self, setup: Setup, t: int) -> Tensor | None:
        """The rows (R,) that Eq. (5) of round t is computed on; None: all D."""
        dim = setup.initial.adapter.shape[1]
        rows = self.num_rows(dim, setup.num_clients)
        if rows == dim:
            return None
        drawn = torch.randperm(dim, generator=torch_generator(setup.seed, "learner rows", t))
        return drawn[:rows].sort().values.to(setup.initial.adapter.device)

    @property
    def window_length(self) -> int:
        """L, or 1 in variant B."""
        return 1 if self.ablation == "no_cross_step" else self.max_sequence_length

    @property
    def aggregates(self) -> bool:
        """Whether ξ is added to the mean adapter; in variant A it is the adapter itself."""
        return self.ablation != "no_aggregation"

    @property
    def mixes_clients(self) -> bool:
        """Whether a client's ξ may depend on other clients' updates; false in variant C."""
        return self.ablation != "no_cross_client"


class CalibrationLearner(nn.Module):
    """SeqLearner(·; ψ) of Eq. (2): one sequence model per backbone layer, D its batch."""

    def __init__(self, config: LearnerConfig, setup: Setup, mixing: Mixing | None = None) -> None:
        super().__init__()
        self.config = config
        self.mixing = mixing or config.mixing_of(setup.num_clients)
        """Fixed by the number of clients at the start; it does not change when clients join."""
        self.model: SequenceModel | PooledLearner
        layers, zero = len(setup.initial.adapter), config.zero_projections
        with seeded(setup.seed, "learner"):
            if self.mixing == "pooled":
                sums = len(RunningSums(config.window_length).times)
                self.model = PooledLearner(layers, sums, zero_projections=zero)
            else:
                self.model = _sequence_model(
                    config,
                    num_layers=layers,
                    num_clients=setup.num_clients if config.mixes_clients else 1,
                    width=setup.width if config.mixes_clients else 1,
                )
        self.to(setup.initial.adapter.device)

    def empty_history(self, gaps: Gap) -> History | RunningSums:
        """An empty history for this learner to read."""
        kind = RunningSums if self.mixing == "pooled" else History
        return kind(self.config.window_length, gaps)

    def notes(self, setup: Setup) -> list[str]:
        """Remarks for the user where the learner differs from the paper's."""
        dim, clients = setup.initial.adapter.shape[1], setup.num_clients
        rows = self.config.num_rows(dim, clients)
        share = [f"the learner is trained on {rows:,} of {dim:,} rows, redrawn each round"]
        pooled = [
            f'mixing = "pooled" for {clients:,} clients: one small network for all reads running '
            "sums of each client's updates and of their mean"
        ]
        return pooled * (self.mixing == "pooled") + share * (rows < dim)

    def optimizer(self) -> torch.optim.Optimizer:
        """Adam for ψ, with the forgetting as its decoupled weight decay."""
        rate = self.config.learner_lr
        output_weights = self.model.output_weights()
        inside = [p for p in self.parameters() if not any(p is o for o in output_weights)]
        groups = [
            {"params": output_weights, "weight_decay": self.config.forgetting / rate},
            {"params": inside, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups[: 2 if inside else 1], lr=rate, eps=self.config.learner_eps)

    def reseated(
        self, kept: Sequence[int], setup: Setup, optimizer: torch.optim.Optimizer
    ) -> tuple["CalibrationLearner", torch.optim.Optimizer]:
        """A learner for the clients at places `kept`, then newcomers, and its Adam state.

        Remaining clients get the same ξ on a window without the others' updates; see
        `resizing`. With Adam's second moments at zero so late in a run, new parameters would move
        six times faster than the rest, so they get the mean of the existing ones.
        """
        if not self.config.mixes_clients or isinstance(self.model, PooledLearner):
            return self, optimizer  # the weights are shared by all clients
        learner = CalibrationLearner(self.config, setup, self.mixing)
        assert not isinstance(learner.model, PooledLearner)
        memory, axes = learner.optimizer(), self.model.axes()
        move = Move(self.model.sizes(), learner.model.sizes(), kept)
        olds, outputs = dict(self.model.named_parameters()), learner.model.output_weights()
        for name, new in learner.model.named_parameters():
            old, along = olds[name], axes[name]
            output = any(new is weight for weight in outputs)
            new.data = move.weights(old.detach(), new, along, output=output)
            if state := optimizer.state.get(old):
                memory.state[new] = {
                    "step": state["step"].clone(),
                    "exp_avg": move.memory(state["exp_avg"], along, new="zero"),
                    "exp_avg_sq": move.memory(state["exp_avg_sq"], along, new="mean"),
                }
        if isinstance(learner.model, MambaLearner):
            learner.model.keep_norms(self.model.num_clients)
        return learner, memory

    def forward(self, past: Tensor | Past, known: Tensor | None = None) -> Tensor:
        """ξ (N, K, D) from the history's `inputs`."""
        if isinstance(past, Past):
            return self._from_sums(past)
        return self._from_window(past, known)

    def _from_sums(self, past: Past) -> Tensor:
        """ξ (N, K, D) from everyone's running sums."""
        rms = past.rms if self.config.scale == "row" else torch.ones_like(past.rms)
        outputs: Tensor = self.model(past, rms.clamp_min(SMALLEST_SCALE), self.config.gain * rms)
        return outputs + past.sums[0] if self.config.residual == "newest" else outputs

    def _from_window(self, window: Tensor, known: Tensor | None) -> Tensor:
        """ξ (N, K, D) from Δ's window (K, D, L', N).

        Only `known` clients (N,) count in the scale of the rows: the window holds no update of
        the others, and they would make everyone's ξ smaller; by default all count.
        """
        layers, dim, length, clients = window.shape
        if not self.config.mixes_clients:  # clients join the batch: each sees only its own window
            window = window.transpose(2, 3).reshape(layers, dim * clients, length, 1)
        outputs: Tensor
        if self.config.scale == "row":
            rms = window.square().mean((2, 3), keepdim=True).sqrt()
            if known is not None and self.config.mixes_clients:
                rms = rms * (clients / known.sum().clamp_min(1)).sqrt()
            emitted = self.model(window / rms.clamp_min(SMALLEST_SCALE))
            outputs = self.config.gain * rms.squeeze(2) * emitted
        else:
            outputs = self.config.gain * self.model(window)
        if self.config.residual == "newest":
            outputs = outputs + window[:, :, -1]
        return outputs.reshape(layers, dim, clients).permute(2, 0, 1)


SequenceModel = MambaLearner | LSTMLearner | MLPLearner | LinearLearner


def _sequence_model(
    config: LearnerConfig, num_layers: int, num_clients: int, width: int
) -> SequenceModel:
    """K sequence models as one module: (K, D, L, N) in, (K, D, N) out; hidden for `width`."""
    zero = config.zero_projections
    match config.architecture:
        case "mamba":
            return MambaLearner(
                num_layers,
                num_clients,
                config.state_dim,
                config.num_blocks,
                signed=config.signed,
                zero_projections=zero,
                width=width,
            )
        case "lstm":
            return LSTMLearner(
                num_layers, num_clients, config.num_blocks, zero_projections=zero, width=width
            )
        case "mlp":
            return MLPLearner(num_layers, num_clients, config.window_length, zero_projections=zero)
        case "linear":
            return LinearLearner(num_layers, num_clients)
