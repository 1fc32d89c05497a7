"""The paper's sequential learner: one small Mamba network per backbone layer (Appendix A).

Mamba: Linear-Time Sequence Modeling with Selective State Spaces, Gu and Dao 2023. The adapter's
D parameters are the batch, the last L rounds the steps and the N clients the channels, so a
network's size depends on N alone. The K networks are stored stacked, each parameter with a
leading axis K.

Deviations from Mamba's language model: no final normalisation and no output head (the last step
of the residual stream is the output), and the two options of `MambaLearner` about how the output
starts. Normalisation is RMSNorm, as in the authors' released models.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from pfedseq.learners.fused_mamba import fused_mamba
from pfedseq.learners.layerwise import check_sizes, check_window
from pfedseq.learners.mamba_block import BlockWeights, chunked_network
from pfedseq.learners.resizing import Axis, Sizes

STEP_SIZES = {False: (1e-3, 1e-1), True: (3e-2, 3e-1)}
"""The range of initial step sizes: Mamba's own, and that of a signed network."""
GATE_BIAS, SCAN_BIAS = 1.278, 0.5
"""The constant parts of a signed network's gate, for SiLU(1.278) = 1, and of B and C."""


class MambaBlock(nn.Module):
    """The parameters of one block for all K layers, initialised as Mamba's authors do.

    E = expand·width inner channels, M = state_dim, W = conv_width, and rank = ⌈width/16⌉ that
    of the step size's projection; width is N unless there were more clients earlier.
    """

    gate_bias: Tensor
    scan_bias: Tensor

    def __init__(
        self,
        num_layers: int,
        num_clients: int,
        width: int,
        state_dim: int,
        expand: int,
        conv_width: int,
        uniform: Callable[[tuple[int, ...], float], Tensor],
        *,
        signed: bool,
    ) -> None:
        super().__init__()
        inner = expand * width
        rank = math.ceil(width / 16)

        def linear(outputs: int, inputs: int) -> nn.Parameter:
            # nn.Linear's initialisation, kaiming_uniform(a=√5), is ±1/√inputs.
            return nn.Parameter(uniform((num_layers, outputs, inputs), inputs**-0.5))

        def convolution(*shape: int) -> nn.Parameter:
            return nn.Parameter(uniform((num_layers, *shape), conv_width**-0.5))

        def constant(name: str, value: float, size: int) -> None:
            if signed:
                self.register_parameter(name, nn.Parameter(torch.full((num_layers, size), value)))
            else:
                self.register_buffer(name, torch.zeros(num_layers, size), persistent=False)

        self.norm = nn.Parameter(torch.ones(num_layers, num_clients))  # (K, N)
        self.in_proj = linear(2 * inner, num_clients)  # (K, 2E, N)
        constant("gate_bias", GATE_BIAS, inner)  # (K, E)
        self.conv_weight = convolution(inner, conv_width)  # (K, E, W)
        self.conv_bias = convolution(inner)  # (K, E)
        self.x_proj = linear(rank + 2 * state_dim, inner)  # (K, rank + 2M, E)
        constant("scan_bias", SCAN_BIAS, 2 * state_dim)  # (K, 2M)
        self.step_proj = linear(inner, rank)  # (K, E, rank)
        self.step_bias = nn.Parameter(
            _initial_step_bias(uniform((num_layers, inner), 1.0), *STEP_SIZES[signed])
        )
        slowest = 1 / state_dim if signed else 1.0
        self.A_log = nn.Parameter(  # (K, E, M): A = −1 … −M, or −1/M … −1
            (slowest * torch.arange(1.0, state_dim + 1)).log().expand(num_layers, inner, -1).clone()
        )
        self.skip = nn.Parameter(torch.full((num_layers, inner), 0.0 if signed else 1.0))  # (K, E)
        self.out_proj = linear(num_clients, inner)  # (K, N, E)
        if signed:  # the convolution starts as the identity
            with torch.no_grad():
                self.conv_weight[..., :-1], self.conv_weight[..., -1] = 0, 1
                self.conv_bias.zero_()

    def weights(self) -> BlockWeights:
        """The parameters in the form used by the block: A = −exp(A_log)."""
        return BlockWeights(
            norm=self.norm,
            in_proj=self.in_proj,
            gate_bias=self.gate_bias,
            conv_weight=self.conv_weight,
            conv_bias=self.conv_bias,
            x_proj=self.x_proj,
            scan_bias=self.scan_bias,
            step_proj=self.step_proj,
            step_bias=self.step_bias,
            A=-self.A_log.exp(),
            skip=self.skip,
            out_proj=self.out_proj,
        )


class MambaLearner(nn.Module):
    """K Mamba networks: windows of updates (K, D, L, N) in, calibrations (K, D, N) out.

    The window may have any strides; fastest is a stack of rounds' updates (N, K, D), stored as (L,
    N, K, D) and viewed as `stored.permute(2, 3, 0, 1)`, which is read in place. The output has the
    strides of a stored (N, K, D).

    Args:
        num_layers: K, the backbone's layers; each has its own network.
        num_clients: N, the channels.
        state_dim: M, the states per channel.
        num_blocks: Mamba blocks per network; the paper uses two.
        expand: inner channels per client, E/N.
        conv_width: W, the steps that the causal convolution sees.
        signed: blocks for updates instead of words (see mamba_block.py): gate, B and C have trained
            constants, which start at 1, 0.5 and 0.5; the states start as sums over three to a
            few hundred steps (A from −1/M to −1, step sizes from 0.03 to 0.3) without a skip
            connection (`skip` 0), and the convolution starts as the identity.
        zero_projections: start every block's `out_proj` at zero, so that the blocks initially add
            nothing; the projections themselves have a non-zero gradient from the first step.
        generator: draws the initial values; torch's global generator if none is given.
        width: the number of clients that inner channels are sized for; default N.
    """

    def __init__(
        self,
        num_layers: int,
        num_clients: int,
        state_dim: int = 16,
        num_blocks: int = 2,
        expand: int = 2,
        conv_width: int = 4,
        *,
        signed: bool = False,
        zero_projections: bool = False,
        generator: torch.Generator | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(
            self,
            num_layers=num_layers,
            num_clients=num_clients,
            state_dim=state_dim,
            num_blocks=num_blocks,
            expand=expand,
            conv_width=conv_width,
        )
        self.num_layers = num_layers
        self.num_clients = num_clients
        self.signed = signed

        def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
            return torch.empty(shape).uniform_(-bound, bound, generator=generator)

        self.blocks = nn.ModuleList(
            MambaBlock(
                num_layers,
                num_clients,
                width or num_clients,
                state_dim,
                expand,
                conv_width,
                uniform,
                signed=signed,
            )
            for _ in range(num_blocks)
        )
        with torch.no_grad():
            # Each block adds to the residual stream: keep the sum's variance (GPT-2's scheme).
            for block in self._blocks():
                block.out_proj.mul_(0 if zero_projections else num_blocks**-0.5)

    def forward(self, window: Tensor) -> Tensor:
        """ξ (K, D, N) from a window (K, D, L, N) of any length L ≥ 1, oldest step first."""
        check_window(window, self, self.num_layers, self.num_clients)
        blocks = [block.weights() for block in self._blocks()]
        fusable = window.dtype == torch.float32 and window.device.type == "cpu"
        kernel = fused_mamba() if fusable else None
        return (kernel or chunked_network)(window, blocks, signed=self.signed)

    def output_weights(self) -> list[nn.Parameter]:
        """The blocks' out-projections."""
        return [block.out_proj for block in self._blocks()]

    def sizes(self) -> Sizes:
        """Clients N, inner channels E, and the rank."""
        _, hidden, rank = self._blocks()[0].step_proj.shape
        return {"client": self.num_clients, "hidden": hidden, "rank": rank}

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """Axes of the parameters, in the order of `BlockWeights`."""
        client: Axis = ("client",)
        hidden: Axis = ("hidden",)
        rank: Axis = ("rank",)
        states = self._blocks()[0].scan_bias.shape[1]  # 2M
        of_block: dict[str, tuple[Axis, ...]] = {
            "norm": (None, client),
            "in_proj": (None, ("hidden", "hidden"), client),
            "gate_bias": (None, hidden),
            "conv_weight": (None, hidden, None),
            "conv_bias": (None, hidden),
            "x_proj": (None, ("rank", states), hidden),
            "scan_bias": (None, None),
            "step_proj": (None, hidden, rank),
            "step_bias": (None, hidden),
            "A_log": (None, hidden, None),
            "skip": (None, hidden),
            "out_proj": (None, client, hidden),
        }
        return {name: of_block[name.rpartition(".")[2]] for name, _ in self.named_parameters()}

    @torch.no_grad()
    def keep_norms(self, before: int) -> None:
        """Rescale the norms for a number of channels other than `before`."""
        if not self.signed:
            for block in self._blocks():
                block.norm.mul_((before / self.num_clients) ** 0.5)

    def _blocks(self) -> list[MambaBlock]:
        return cast("list[MambaBlock]", list(self.blocks))


def _initial_step_bias(uniform: Tensor, smallest: float, largest: float) -> Tensor:
    """softplus⁻¹ of step sizes drawn log-uniformly; `uniform` is in (−1, 1)."""
    low, high = math.log(smallest), math.log(largest)
    step_size = torch.exp(low + (uniform + 1) / 2 * (high - low))
    return step_size + torch.log(-torch.expm1(-step_size))
