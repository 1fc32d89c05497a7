"""FedAvgM: FedAvg with momentum at the server.

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, Section 4.3.

Sent down and up: θ and ω. Evaluated: the global φ on each client's data.

Deviations: as FedAvg's. Other averaging methods offer the same as an option, `server_momentum`.
"""

from pydantic import Field

from pfedseq.federation import Method
from pfedseq.methods.fedavg import FedAvgClient, FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig


class FedAvgMConfig(AveragingConfig):
    """FedAvg's options with another default."""

    server_momentum: float = Field(
        0.9, ge=0, lt=1, description="β, of the server's momentum; authors: 0.7 to 0.99"
    )


METHOD = Method(
    name="fedavgm",
    server=FedAvgServer,
    client=FedAvgClient,
    config=FedAvgMConfig,
    title="FedAvgM",
    summary="FedAvg with momentum at the server",
    grid={"server_momentum": (0.5, 0.7, 0.9, 0.97), "server_lr": (0.3, 1.0)},
)
