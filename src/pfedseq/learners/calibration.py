"""From a window of updates to a calibration: a sequence model between two changes of scale.

Updates are tiny (1e-4 … 1e-2) and a block that begins with a normalisation emits numbers of
order 0.1 … 1; added to LoRA weights of about 0.05 these would destroy the adapter. So the window
is divided by its root mean square before the model and its output multiplied by it afterwards.
docs/learner.md has the measurements behind the defaults.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from pfedseq.base_config import BaseConfig
from pfedseq.federation import Setup
from pfedseq.learners.lstm import LSTMLearner
from pfedseq.learners.mamba import MambaLearner
from pfedseq.learners.mlp import MLPLearner
from pfedseq.seeding import derive_seed

SMALLEST_SCALE = 1e-12
"""Keeps an all-zero window (every client absent or converged) from dividing by zero."""

_SCALED_AXES = {"layer": (1, 2, 3), "client": (1, 2), "row": (2, 3)}
"""Axes of a window (K, D, L, N) over which one root mean square is taken."""


class LearnerConfig(BaseConfig):
    """The sequential learner: the paper's options, and those it leaves open."""

    max_sequence_length: int = Field(
        20, ge=1, description="L, rounds the learner looks back; paper: 20, DomainNet/Omniglot 10"
    )
    architecture: Literal["mamba", "lstm", "mlp"] = Field(
        "mamba", description="the sequence model; lstm and mlp are variants E and D of Table 3"
    )
    state_dim: int = Field(16, ge=1, description="M, Mamba's states; paper: 16 of {4, 8, 16, 32}")
    num_blocks: int = Field(2, ge=1, description="Mamba blocks or LSTM layers; paper: 2")
    ablation: Literal["none", "no_aggregation", "no_cross_step", "no_cross_client"] = Field(
        "none", description="variants A, B and C of the paper's Table 2"
    )
    scale: Literal["none", "layer", "client", "row"] = Field(
        "layer", description="over what one RMS is taken that divides Δ and multiplies ξ"
    )
    residual: Literal["none", "newest", "drift"] = Field(
        "drift",
        description="what the learner's output is added to: nothing, the newest Δ_i, or client "
        "i's drift from the mean since the warm-up and the mean's own momentum, "
        "Σ_j ρ^{t−j} (Δ_i^j − Δ̄^j) + Σ_j μ^{t−j+1} Δ̄^j",
    )
    drift_decay: float = Field(
        0.8, ge=0, lt=1, description="ρ, how much of the drift is kept from round to round"
    )
    momentum: float = Field(
        0.9, ge=0, lt=1, description="μ, as in Nesterov's method, of the mean adapter; 0: none"
    )
    zero_projections: bool = Field(
        True, description="start the out-projections at zero, so that ξ starts as the residual"
    )
    max_calibration: float | None = Field(
        None,
        gt=0,
        description="bound on ‖ξ_i‖ in each layer, as a multiple of ‖θ̃_g‖ there; default: none",
    )

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
        """Whether a client's ξ may depend on the others' updates; not in variant C."""
        return self.ablation != "no_cross_client"


class CalibrationLearner(nn.Module):
    """SeqLearner(·; ψ) of Eq. (2): one sequence model per backbone layer, D its batch."""

    def __init__(self, config: LearnerConfig, setup: Setup) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(setup.seed, "learner"))
            self.model = _sequence_model(
                config,
                num_layers=len(setup.initial.adapter),
                num_clients=setup.num_clients if config.mixes_clients else 1,
            )
        self.to(setup.initial.adapter.device)

    def forward(self, window: Tensor) -> Tensor:
        """ξ (N, K, D) from Δ's window (K, D, L', N)."""
        scale = self._scale(window)  # broadcasts over (K, D, L', N)
        scaled = window / scale
        if (
            not self.config.mixes_clients
        ):  # clients join the batch: each sees its own sequence alone
            layers, dim, length, clients = scaled.shape
            rows = scaled.transpose(2, 3).reshape(layers, dim * clients, length, 1)
            outputs: Tensor = self.model(rows).reshape(layers, dim, clients)
        else:
            outputs = self.model(scaled)  # (K, D, N)
        return (outputs * scale.squeeze(2)).permute(2, 0, 1)

    def _scale(self, window: Tensor) -> Tensor:
        if self.config.scale == "none":
            return window.new_ones(1, 1, 1, 1)
        axes = _SCALED_AXES[self.config.scale]
        return window.square().mean(axes, keepdim=True).sqrt().clamp_min(SMALLEST_SCALE)


def decayed_sum(window: Tensor, decay: float) -> Tensor:
    """Σ_j ρ^{t−j} Δ_i^j (N, K, D) over a window (K, D, L', N) that ends at t."""
    ages = torch.arange(window.shape[2] - 1, -1, -1, device=window.device)
    total: Tensor = torch.tensordot(window, decay ** ages.float(), dims=([2], [0]))
    return total.permute(2, 0, 1)


def bounded(calibrations: Tensor, shared: Tensor, ratio: float) -> Tensor:
    """ξ (N, K, D) with ‖ξ_i‖ ≤ ratio · ‖θ̃_g‖ in every layer: what is longer is scaled down."""
    longest = ratio * torch.linalg.vector_norm(shared, dim=-1)  # (K,)
    lengths = torch.linalg.vector_norm(calibrations, dim=-1).clamp_min(SMALLEST_SCALE)  # (N, K)
    shortened: Tensor = calibrations * (longest / lengths).clamp_max(1).unsqueeze(-1)
    return shortened


def _sequence_model(config: LearnerConfig, num_layers: int, num_clients: int) -> nn.Module:
    """K sequence models as one module: (K, D, L, N) in, (K, D, N) out."""
    through, zero = config.residual == "newest", config.zero_projections
    if config.architecture == "mamba":
        return MambaLearner(
            num_layers,
            num_clients,
            config.state_dim,
            config.num_blocks,
            pass_through=through,
            zero_projections=zero,
        )
    if config.architecture == "lstm":
        return LSTMLearner(
            num_layers,
            num_clients,
            config.num_blocks,
            pass_through=through,
            zero_projections=zero,
        )
    return MLPLearner(
        num_layers,
        num_clients,
        config.window_length,
        pass_through=through,
        zero_projections=zero,
    )
