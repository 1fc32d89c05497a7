"""FedAdam: FedAvg whose server treats the mean update as a gradient for Adam or Yogi.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

Sent down and up: θ and ω. Evaluated: the global φ on each client's data.

Deviations: as FedAvg's. `server_optimizer = "yogi"` is FedYogi. Other averaging methods offer the
same as an option.
"""

from typing import Literal

from pydantic import Field

from pfedseq.federation import Method
from pfedseq.methods.fedavg import FedAvgClient, FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig


class FedAdamConfig(AveragingConfig):
    """FedAvg's options with other defaults."""

    server_optimizer: Literal["sgd", "adam", "yogi", "ghbm"] = Field(
        "adam", description="adam (FedAdam) or yogi (FedYogi)"
    )
    server_lr: float = Field(0.01, gt=0, description="η, the server's rate; authors: 0.01 to 0.1")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="β₁; authors: 0.9")


METHOD = Method(
    name="fedadam",
    server=FedAvgServer,
    client=FedAvgClient,
    config=FedAdamConfig,
    title="FedAdam",
    summary="FedAvg with Adam or Yogi at the server",
    grid={"server_lr": (0.001, 0.003, 0.01, 0.03, 0.1)},
)
