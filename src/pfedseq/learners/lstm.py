"""Variant E of the paper's Table 3: an LSTM as the sequential learner.

Long Short-Term Memory, Hochreiter and Schmidhuber 1997. The paper gives no sizes; ours are those
of its Mamba: two recurrent layers with 2N hidden units, and a projection of the last step's
hidden state to the N clients.
"""

from functools import partial

from torch import Tensor, nn

from pfedseq.learners.layerwise import check_sizes, check_window, run_layerwise
from pfedseq.learners.resizing import Axis, Sizes


class LSTMLearner(nn.Module):
    """K LSTMs: windows of updates (K, D, L, N) in, calibrations (K, D, N) out.

    Args:
        num_layers: K, the backbone's layers; each has its own LSTM.
        num_clients: N.
        num_blocks: stacked recurrent layers.
        expand: hidden units per client.
        zero_projections: start the projection at zero.
        width: the number of clients that hidden units are sized for; default N.
    """

    def __init__(
        self,
        num_layers: int,
        num_clients: int,
        num_blocks: int = 2,
        expand: int = 2,
        *,
        zero_projections: bool = False,
        width: int | None = None,
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
        self.hidden = hidden = expand * (width or num_clients)
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

    def sizes(self) -> Sizes:
        """Sizes of the axes that depend on the number of clients: clients and hidden units."""
        return {"client": self.num_clients, "hidden": self.hidden}

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """A hidden unit has four gates; the first layer reads clients, the others hidden units."""
        client: Axis = ("client",)
        hidden: Axis = ("hidden",)
        gates: Axis = ("hidden", "hidden", "hidden", "hidden")
        found: dict[str, tuple[Axis, ...]] = {}
        for name, parameter in self.recurrent.named_parameters(prefix="recurrent"):
            inputs = client if name.endswith("weight_ih_l0") else hidden
            found[name] = (gates, inputs)[: parameter.dim()]
        for name, parameter in self.projections.named_parameters(prefix="projections"):
            found[name] = (client, hidden)[: parameter.dim()]
        return found


def _last_step(recurrent: nn.Module, projection: nn.Module, rows: Tensor) -> Tensor:
    """The projected hidden state (R, N) after the last of the steps of `rows` (R, L, N)."""
    hidden, _ = recurrent(rows)  # (R, L, hidden)
    output: Tensor = projection(hidden[:, -1])
    return output
