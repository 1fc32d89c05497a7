"""pFedLA: each client's adapter is a mixture of all clients' adapters, with weights per layer.

Ma et al., "Layer-wised Model Aggregation for Personalized Federated Learning", CVPR 2022,
Algorithm 1 (pFedLA, not HeurpFedLA).

Sent down: θ_i. Sent up: Δ_i = θ̃_i − θ_i. Evaluated: the mixed θ_i with the client's own ω_i.

Deviations: Adam, as the pFedSeq paper has it. The step lets θ_i move along Δ_i, as the paper's
equations say; a public implementation has the opposite sign. A layer is one backbone block. All
clients are updated at once, from the same pool; public implementations process them one by one,
so that later clients see the new adapters of earlier ones. In round 1 all adapters are equal,
every mixture of them is the same and the gradient is zero: no step is taken, since Adam would
blow up the rounding errors. A client that misses a round keeps its last adapter in the pool.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pfedseq.federation import Method, Reply, Setup, Tensors
from pfedseq.methods.parts.hypernets import HypernetConfig, LayerWeights, build
from pfedseq.methods.parts.own_head import OwnHeadClient, OwnHeadServer
from pfedseq.methods.parts.step_along import step_along


class PFedLAServer(OwnHeadServer):
    """θ_i^k = Σ_j α_ij^k θ_j^k with α_i = HN_i(e_i; ψ_i); ψ_i, e_i ascend (∇ θ_i)ᵀ Δ_i."""

    config: HypernetConfig
    persistent = ("pool", "hypernets", "optimizer", *OwnHeadServer.persistent)
    takes = ("delta",)
    needs_everyone = "every client's hypernetwork emits a weight for each other client"

    def __init__(self, config: HypernetConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        num_layers, num_clients = len(setup.initial.adapter), setup.num_clients
        self.pool = setup.initial.adapter.expand(num_clients, -1, -1)  # θ_j as trained, (N, K, D)
        self.hypernets = build(
            lambda: nn.ModuleList(
                LayerWeights(i, num_layers, num_clients, config.hidden_dim)
                for i in range(num_clients)
            ),
            setup,
            "layer weights",
        )
        # Adam is elementwise: one optimizer is equivalent to one per hypernetwork.
        self.optimizer = torch.optim.Adam(self.hypernets.parameters(), lr=config.hypernet_lr)

    def mix(self, i: int) -> Tensor:
        """θ_i (K, D): row k is Σ_j α_ij^k θ_j^k."""
        return torch.einsum("kj,jkd->kd", self.hypernets[i](), self.pool)

    @torch.no_grad()
    def payload(self, i: int) -> Tensors:
        """θ_i."""
        return {"adapter": self.mix(i)} | self.common_head()

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Step each present client's hypernetwork along its Δ_i; update its adapter in the pool."""
        deltas, _ = self.setup.stack(replies, "delta")
        self.take_heads(replies)
        ids = sorted(replies)
        mixed = torch.stack([self.mix(i) for i in ids])  # from the pool that made what was sent
        if t > 1:
            step_along(self.optimizer, mixed, deltas[ids])
        pool = self.pool.clone()
        pool[ids] = mixed.detach() + deltas[ids]  # θ̃_i
        self.pool = pool


METHOD = Method(
    name="pfedla",
    server=PFedLAServer,
    client=OwnHeadClient,
    config=HypernetConfig,
    title="pFedLA",
    summary="each client's hypernetwork weighs all clients' adapters, layer by layer",
    grid={"hypernet_lr": (0.0001, 0.0005, 0.001, 0.005, 0.01)},
)
