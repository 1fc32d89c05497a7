"""Variant D of the paper's Table 3: a fully connected network as the sequential learner.

The L steps of N clients are concatenated and passed through four fully connected layers with 100
hidden units and ReLU, the sizes of pFedHN's network (Shamsian et al. 2021), which the paper names
as its model. Such a network reads sequences of one fixed length: the shorter windows of the
first rounds are padded with zeros at the front.
"""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from pfedseq.errors import InputError
from pfedseq.learners.layerwise import check_sizes, check_window, run_layerwise
from pfedseq.learners.resizing import Axis, Piece, Sizes


class MLPLearner(nn.Module):
    """K fully connected networks: windows (K, D, L', N), L' ≤ L, in, calibrations (K, D, N) out.

    Args:
        num_layers: K, the backbone's layers; each has its own network.
        num_clients: N.
        max_sequence_length: L, the fixed length that the networks read.
        hidden: units of each of the three hidden layers.
        zero_projections: start the last layer at zero.
    """

    def __init__(
        self,
        num_layers: int,
        num_clients: int,
        max_sequence_length: int,
        hidden: int = 100,
        *,
        zero_projections: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(
            self,
            num_layers=num_layers,
            num_clients=num_clients,
            max_sequence_length=max_sequence_length,
            hidden=hidden,
        )
        self.num_layers = num_layers
        self.num_clients = num_clients
        self.max_sequence_length = max_sequence_length
        self.hidden = hidden
        self.networks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(max_sequence_length * num_clients, hidden),
                nn.ReLU(),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Linear(hidden, num_clients),
            )
            for _ in range(num_layers)
        )
        if zero_projections:
            for parameter in self.output_weights():
                nn.init.zeros_(parameter)

    def forward(self, window: Tensor) -> Tensor:
        """ξ (K, D, N) from a window (K, D, L', N) of length 1 ≤ L' ≤ L, oldest step first."""
        check_window(window, self, self.num_layers, self.num_clients)
        missing = self.max_sequence_length - window.shape[2]
        if missing < 0:
            raise InputError(
                f"this MLPLearner reads at most {self.max_sequence_length} steps, not "
                f"{window.shape[2]}; pass the newest ones only"
            )
        networks = [partial(_flattened, network, missing) for network in self.networks]
        inputs = self.max_sequence_length * self.num_clients
        row_bytes = (inputs + 6 * self.hidden) * window.element_size()
        return run_layerwise(window, networks, row_bytes)

    def output_weights(self) -> list[nn.Parameter]:
        """Weights of the last layers."""
        return [p for network in self.networks for p in list(network.parameters())[-2:]]

    def sizes(self) -> Sizes:
        """Clients only: the number of hidden units does not depend on them."""
        return {"client": self.num_clients}

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """The first layers read all clients at each of L steps, the last write for all of them."""
        client: tuple[Piece, ...] = ("client",)
        steps = client * self.max_sequence_length
        found: dict[str, tuple[Axis, ...]] = {}
        for k, network in enumerate(self.networks):
            names = [f"networks.{k}.{name}" for name, _ in network.named_parameters()]
            found |= dict.fromkeys(names[:-2:2], (None, None))  # weights
            found |= dict.fromkeys(names[1:-2:2], (None,))  # biases
            found |= {names[0]: (None, steps), names[-2]: (client, None), names[-1]: (client,)}
        return found


def _flattened(network: nn.Module, missing: int, rows: Tensor) -> Tensor:
    """The network on rows (R, L', N), zero-filled at the front and read as (R, L·N)."""
    output: Tensor = network(F.pad(rows, (0, 0, missing, 0)).flatten(1))
    return output
