"""Damped: FedAvg whose server moves only part of the way towards the mean.

Sent down and up: θ and ω. Evaluated: the global φ on each client's data.

Also without installing: `pfedseq run demo --plugin damped.py --method damped`.
"""

from collections.abc import Mapping

from pydantic import Field

from pfedseq.federation import Method, MethodConfig, Reply
from pfedseq.methods.fedavg import FedAvgClient, FedAvgServer


class DampedConfig(MethodConfig):
    """Options of Damped."""

    share: float = Field(0.5, gt=0, le=1, description="β, the step towards the mean")


class DampedServer(FedAvgServer):
    """φ ← φ + β (Σ_i |D_i| / |D| · φ_i − φ)."""

    config: DampedConfig

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Move part of the way towards the mean of the replies."""
        adapter, head, share = self.adapter, self.head, self.config.share
        super().update(t, replies)
        self.adapter = adapter + share * (self.adapter - adapter)
        self.head = head + share * (self.head - head)


METHOD = Method(
    name="damped",
    server=DampedServer,
    client=FedAvgClient,
    config=DampedConfig,
    title="Damped",
    summary="FedAvg whose server moves only part of the way towards the mean",
    grid={"share": (0.25, 0.5, 0.75, 1.0)},
)
