"""pFedHN: one hypernetwork generates every client's adapter from a learned descriptor.

Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021, Algorithm 1
(with local heads: the paper's pFedHN-PC).

Sent down: θ_i. Sent up: Δ_i = θ̃_i − θ_i. Evaluated: the generated θ_i with the client's own ω_i.

Deviations: plain local SGD over the round's passes, where the original makes 50 inner steps with
momentum 0.9 and a weight decay. The original visits one random client a step, with SGD; here, as
the pFedSeq paper has it, all clients answer and Adam steps once a round, along the mean of their
gradients. The heads start so that θ_i = θ^0 (see `AdapterGenerator`). A client that misses a
round adds nothing to the gradient, and its descriptor and Adam's state for it stay unchanged. A
client that joins later starts with the mean of the others' descriptors.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pfedseq.federation import Method, Reply, Setup, Tensors
from pfedseq.methods.parts.hypernets import GeneratorConfig, build, build_generator, descriptor_dim
from pfedseq.methods.parts.own_head import OwnHeadClient, OwnHeadServer
from pfedseq.methods.parts.step_along import step_along


class PFedHNServer(OwnHeadServer):
    """θ_i = h(v_i; φ); φ and v_i ascend Δ_i: (∇_φ θ_i)ᵀ Δ_i and (∇_v θ_i)ᵀ Δ_i."""

    config: GeneratorConfig
    persistent = ("descriptors", "generator", "optimizer", *OwnHeadServer.persistent)
    takes = ("delta",)

    def __init__(self, config: GeneratorConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        num_clients, dim = setup.num_clients, descriptor_dim(setup)
        self.descriptors = build(  # one parameter each: Adam skips parameters without a gradient
            lambda: nn.ParameterList(torch.randn(dim) for _ in range(num_clients)),
            setup,
            "descriptors",
        )
        self.generator = build_generator(setup, config.hidden_dim)
        learned = [*self.descriptors.parameters(), *self.generator.parameters()]
        self.optimizer = torch.optim.Adam(learned, lr=config.hypernet_lr)

    def generate(self, ids: Sequence[int]) -> Tensor:
        """θ_i = h(v_i) of the named clients, (n, K, D)."""
        generated: Tensor = self.generator(torch.stack([self.descriptors[i] for i in ids]))
        return generated

    @torch.no_grad()
    def payload(self, i: int) -> Tensors:
        """θ_i."""
        return {"adapter": self.generate([i])[0]} | self.common_head()

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """One Adam step along the mean over clients of Jᵢᵀ Δ_i."""
        deltas, _ = self.setup.stack(replies, "delta")
        self.take_heads(replies)
        ids = sorted(replies)
        direction = deltas[ids] / len(ids)
        step_along(self.optimizer, self.generate(ids), direction, self.config.max_grad_norm)

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Keep the remaining clients' descriptors and Adam's state for them."""
        super().reseat(kept, newcomers)
        former = list(self.descriptors)
        mean = torch.stack(former).detach().mean(0)
        self.descriptors = nn.ParameterList(
            [*(former[place] for place in kept), *(mean.clone() for _ in newcomers)]
        )
        learned = [*self.descriptors.parameters(), *self.generator.parameters()]
        optimizer = torch.optim.Adam(learned, lr=self.config.hypernet_lr)
        remembered = self.optimizer.state
        optimizer.state.update({p: remembered[p] for p in learned if p in remembered})
        self.optimizer = optimizer


METHOD = Method(
    name="pfedhn",
    server=PFedHNServer,
    client=OwnHeadClient,
    config=GeneratorConfig,
    title="pFedHN",
    summary="a hypernetwork generates each client's adapter from a learned descriptor",
    grid={"hypernet_lr": (0.0001, 0.0005, 0.001, 0.005, 0.01)},
)
