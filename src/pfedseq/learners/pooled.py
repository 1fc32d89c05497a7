"""A learner whose size does not depend on the number of clients.

Appendix A's network has the N clients as its channels, so its weights and its work grow with N².
Here clients join the batch: one network per backbone layer, the same for every client, reads, for
each row (one adapter parameter), the running sums of the client's own updates and of the mean over
all clients, and emits the client's calibration. It is a signed state-space block whose decays are
fixed (`running_sums`), so that the sums need not be computed from a window:

    u_i     = (h_i, h̄)                                own sums and their mean, 2S numbers
    x, z    = in_proj u_i + (0, gate_bias)            2S → E each
    f_i     = out_proj (x ⊙ SiLU(z))                  E → 1

Permuting the clients permutes the calibrations. A newcomer needs no new weights, and a learner
trained with fifty clients also serves a thousand.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pfedseq.learners.layerwise import check_sizes, num_threads
from pfedseq.learners.mamba import GATE_BIAS
from pfedseq.learners.running_sums import Past

_CHUNK_NUMBERS = 2**15
"""Rows × clients computed at once: their intermediate values fit the processor's cache."""


class PooledLearner(nn.Module):
    """K networks: running sums of updates (S, N, K, D) in, calibrations (N, K, D) out.

    Args:
        num_layers: K, the backbone's layers; each has its own network.
        num_sums: S.
        inner: E, the inner channels.
        zero_projections: start `out_proj` at zero.
    """

    def __init__(
        self, num_layers: int, num_sums: int, inner: int = 16, *, zero_projections: bool = False
    ) -> None:
        super().__init__()
        check_sizes(self, num_layers=num_layers, num_sums=num_sums, inner=inner)
        self.num_sums = num_sums

        def linear(*shape: int) -> nn.Parameter:
            bound = shape[-1] ** -0.5  # nn.Linear's initialisation
            return nn.Parameter(torch.empty(num_layers, *shape).uniform_(-bound, bound))

        self.in_proj = linear(2 * inner, 2 * num_sums)  # (K, 2E, 2S): x, z by own sums, means
        self.gate_bias = nn.Parameter(torch.full((num_layers, inner), GATE_BIAS))  # (K, E)
        self.out_proj = linear(inner)  # (K, E)
        if zero_projections:
            nn.init.zeros_(self.out_proj)

    def forward(self, past: Past, scale: Tensor, factor: Tensor) -> Tensor:
        """factor · f (N, K, D) of the past's sums / scale; both scales are (K, D), by row.

        A chunk's intermediate values are recomputed in the backward pass.
        """
        _, clients, layers, rows = past.sums.shape
        together = max(1, _CHUNK_NUMBERS // rows)
        chunks = [slice(begin, begin + together) for begin in range(0, clients, together)]

        def of_layer(k: int) -> Iterator[Tensor]:
            from_means = self._of_means(k, past.means[:, k] / scale[k])
            for some in chunks:
                arguments = (k, past.sums[:, some, k], scale[k], factor[k], from_means)
                yield checkpoint(
                    self._of_clients, *arguments, use_reentrant=False, preserve_rng_state=False
                )

        if torch.is_grad_enabled():
            return torch.stack([torch.cat([*of_layer(k)]) for k in range(layers)], 1)
        output = past.sums.new_empty(clients, layers, rows)

        @torch.no_grad()
        def fill(k: int) -> None:
            for some, of_some in zip(chunks, of_layer(k), strict=True):
                output[some, k] = of_some

        # Not torch's number of threads, which an engine sets to one for its clients.
        with ThreadPoolExecutor(num_threads()) as pool:
            list(pool.map(fill, range(layers)))
        return output

    def output_weights(self) -> list[nn.Parameter]:
        """The out-projection."""
        return [self.out_proj]

    def _of_means(self, k: int, means: Tensor) -> Tensor:
        """The means' and the gate bias's part of x and z, (2E, 1, D), shared by all clients."""
        bias = torch.cat([torch.zeros_like(self.gate_bias[k]), self.gate_bias[k]])
        part = torch.addmm(bias.unsqueeze(1), self.in_proj[k, :, self.num_sums :], means)
        return part.unsqueeze(1)

    def _of_clients(
        self, k: int, sums: Tensor, scale: Tensor, factor: Tensor, from_means: Tensor
    ) -> Tensor:
        """factor · f (n, D) from the sums (S, n, D) of some clients; the scales are the layer's."""
        own = (sums / scale).flatten(1)  # (S, n·D)
        projected = (self.in_proj[k, :, : self.num_sums] @ own).view(-1, *sums.shape[1:])
        x, z = (projected + from_means).chunk(2)  # (E, n, D) each
        emitted = self.out_proj[k] @ (x * F.silu(z)).flatten(1)
        return factor * emitted.view(sums.shape[1:])
