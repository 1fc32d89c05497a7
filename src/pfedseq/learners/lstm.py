"""Variant E of the paper's Table 3: an LSTM as the sequential learner.

Long Short-Term Memory, Hochreiter and Schmidhuber 1997. The paper gives no sizes; ours are those
of its Mamba: two recurrent layers with 2N hidden units, and a projection of the last step's
hidden state to the N clients.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from pfedseq.learners.layerwise import check_sizes, check_window, run_layerwise


class LSTMLearner(nn.Module):
    """K LSTMs: windows of updates (K, D, L, N) in, calibrations (K, D, N) out.

    Args:
        num_layers: K, the backbone's layers; each has its own LSTM.
        num_clients: N.
        num_blocks: stacked recurrent layers.
        expand: hidden units per client.
        zero_projections: start the projection at zero.
    """

    def __init__(
        self,
        num_layers: int,
        num_clients: int,
        num_blocks: int = 2,
        expand: int = 2,
        *,
        zero_projections: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(
            self,
            num_layers=num_layers,
            num_clients=num_clients,
            num_blocks=num_blocks,
            expand=expand,
        )
        self.num_layers = num_layers
        self.num_clients = num_clients
        hidden = expand * num_clients
        self.recurrent = nn.ModuleList(
            nn.LSTM(num_clients, hidden, num_blocks, batch_first=True) for _ in range(num_layers)
        )
        self.projections = nn.ModuleList(nn.Linear(hidden, num_clients) for _ in range(num_layers))
        if zero_projections:
            for parameter in self.projections.parameters():
                nn.init.zeros_(parameter)
        self._step_values = 8 * num_blocks * hidden  # gates, cell and hidden states

    def forward(self, window: Tensor) -> Tensor:
        """ξ (K, D, N) from a window (K, D, L, N) of any length L ≥ 1, oldest step first."""
        check_window(window, self, self.num_layers, self.num_clients)
        networks = [
            partial(_last_step, recurrent, projection)
            for recurrent, projection in zip(self.recurrent, self.projections, strict=True)
        ]
        row_bytes = window.shape[2] * self._step_values * window.element_size()
        return run_layerwise(window, networks, row_bytes)

    def output_weights(self) -> list[nn.Parameter]:
        """The projections of the hidden states."""
        return list(self.projections.parameters())

    def of_client(self, client: int) -> list[tuple[nn.Parameter, Any]]:
        """What the first recurrent layer reads of it, and its row of the projection."""
        of_inputs = [lstm.get_parameter("weight_ih_l0") for lstm in self.recurrent]
        read: list[tuple[nn.Parameter, Any]] = [(weight, (..., client)) for weight in of_inputs]
        return read + [(parameter, client) for parameter in self.projections.parameters()]


def _last_step(recurrent: nn.Module, projection: nn.Module, rows: Tensor) -> Tensor:
    """The projected hidden state (R, N) after the last of the steps of `rows` (R, L, N)."""
    hidden, _ = recurrent(rows)  # (R, L, hidden)
    output: Tensor = projection(hidden[:, -1])
    return output
