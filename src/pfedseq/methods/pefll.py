"""PeFLL: a network embeds each client's data, and a hypernetwork generates its adapter from it.

Scott, Zakerinia and Lampert, "PeFLL: Personalized Federated Learning by Learning to Learn",
ICLR 2024, Algorithm 1.

Sent down: the embedding network f, θ_i, ∂/∂v_i. Sent up: v_i, Δ_i = θ̃_i − θ_i, the gradient of
f. Evaluated: h(v_i) with v_i over all of the client's training data, and the client's own ω_i.

Deviations: plain local SGD over the round's passes, where the original makes 50 inner steps with
momentum 0.9 and a weight decay; f has the 16 and 32 channels of the original's code, where the
pFedSeq paper speaks of 32. All clients answer, with one Adam step a round for h and f. `describe`
ends a round, where the original starts with it: having received f once, the client embeds a batch
for the next round's training and all its data for the evaluation. The scalars that standardise v
are taken once, as in the original, but over all clients' first batches: one client's v has no
deviation where d = 1. v is a mean over examples (the original's code divides by 2); absent classes
are not masked in the test. Texts, which the original does not cover, are embedded by an MLP over
the mean of their words' frozen embeddings. θ_i starts at θ^0 (see `AdapterGenerator`). A client
without a descriptor does not train; one that leaves before `backprop` contributes nothing to the
gradient of f.
"""

from collections.abc import Mapping, Sequence

import torch

from pfedseq.errors import InputError
from pfedseq.federation import Clients, Method, Reply, Setup, Tensors
from pfedseq.methods.parts.hypernets import (
    GeneratorConfig,
    Standardise,
    build,
    build_generator,
    descriptor_dim,
    embed,
    embedding_network,
)
from pfedseq.methods.parts.own_head import OwnHeadClient, OwnHeadServer
from pfedseq.methods.parts.step_along import clipped_step, pull_back

_KEPT = "embedding/"
"""Prefix of f's weights in a client's state, where they are kept for `backprop`."""


class PeFLLServer(OwnHeadServer):
    """θ_i = h(v_i), v_i = the mean of f over client i's data; h and f ascend (∇ θ_i)ᵀ Δ_i."""

    config: GeneratorConfig
    persistent = (
        *("descriptors", "described", "profiles", "f", "standardise", "h", "optimizer"),
        *OwnHeadServer.persistent,
    )
    takes = ("delta",)

    def __init__(self, config: GeneratorConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        num_classes, num_clients, dim = setup.num_classes, setup.num_clients, descriptor_dim(setup)
        if num_classes is None:
            raise InputError("pefll embeds labels: its server needs the number of classes")
        self.f = build(
            lambda: embedding_network(setup.sketch_shape, num_classes, dim), setup, "embedding"
        )
        self.standardise = build(Standardise, setup, "standardise")
        self.h = build_generator(setup, config.hidden_dim)
        learned = [*self.h.parameters(), *self.f.parameters()]
        self.optimizer = torch.optim.Adam(learned, lr=config.hypernet_lr)
        self.descriptors = setup.initial.adapter.new_zeros(num_clients, dim)  # v_i of one batch
        self.described = self.descriptors.new_zeros(num_clients, dtype=torch.bool)
        self.profiles = self.descriptors  # v_i of all the data

    @torch.no_grad()
    def payload(self, i: int) -> Tensors:
        """θ_i from all of client i's training data."""
        adapter = self.h(self.standardise(self.profiles[i : i + 1]))[0]
        return {"adapter": adapter} | self.common_head()

    def run_round(self, t: int, clients: Clients) -> None:
        """Train from the last descriptors, finish the gradient of f, step, describe again."""
        if t == 1:
            self._describe(0, clients)
        with torch.no_grad():
            adapters = self.h(self.standardise(self.descriptors))
        present = [i for i in clients.participants(t) if self.described[i]]
        down = {i: {"adapter": adapters[i]} | self.common_head() for i in present}
        if replies := clients.call("train", t, down):
            self.update(t, replies)
            gradients = self.descriptors.grad
            assert gradients is not None  # update() has filled it
            down = {i: {"gradient": gradients[i]} for i in replies}
            if replies := clients.call("backprop", t, down):
                for name, weight in self.f.named_parameters():
                    weight.grad = self.setup.stack(replies, name, weight.detach())[0].sum(0)
            clipped_step(self.optimizer, self.config.max_grad_norm)
        self._describe(t, clients)

    def expected(self, step: str) -> Tensors:
        """`describe` gives two vectors v_i, `backprop` a gradient of every weight of f."""
        if step == "describe":
            return dict.fromkeys(("descriptor", "profile"), self.profiles[0])
        if step == "backprop":
            return {name: weight.detach() for name, weight in self.f.named_parameters()}
        return super().expected(step)

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Pull the mean over clients of Δ_i back through h, into h's and the descriptors' .grad."""
        deltas, _ = self.setup.stack(replies, "delta")
        self.take_heads(replies)
        self.optimizer.zero_grad()
        self.descriptors = self.descriptors.detach().requires_grad_()
        pull_back(self.h(self.standardise(self.descriptors)), deltas / len(replies))

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """A newcomer is described at the end of its first round and trains from the next."""
        super().reseat(kept, newcomers)
        places = torch.tensor([*kept, *[-1] * len(newcomers)])
        stays = places >= 0
        self.described = self.described[places] & stays.to(self.described.device)
        self.descriptors, self.profiles = (
            torch.where(stays.to(rows.device)[:, None], rows.detach()[places], 0.0)
            for rows in (self.descriptors, self.profiles)
        )

    def _describe(self, t: int, clients: Clients) -> None:
        """Send f to the next participants and collect v_i, of one batch and of all the data."""
        weights = {name: weight.detach().clone() for name, weight in self.f.named_parameters()}
        replies = clients.call("describe", t, dict.fromkeys(clients.participants(t + 1), weights))
        if not replies:
            self.described = torch.zeros_like(self.described)
            return
        first, like = not self.profiles.any(), self.profiles[0]
        self.descriptors, self.described = self.setup.stack(replies, "descriptor", like)
        profiles, _ = self.setup.stack(replies, "profile", like)
        self.profiles = torch.where(self.described[:, None], profiles, self.profiles)
        if first:
            self.standardise.fit(self.descriptors[self.described])


class PeFLLClient(OwnHeadClient):
    """Embeds its data, trains the adapter generated from it, and finishes the gradient of f."""

    steps = (*OwnHeadClient.steps, "describe", "backprop")
    sends_updates = False  # it also sends descriptors and gradients of f

    def describe(self, down: Tensors) -> Reply:
        """v_i = the mean of f(x, y), over a first batch and over all of an epoch's batches."""
        batches = list(self.task.batches(1))
        with torch.no_grad():
            sums = [embed(down, *self.task.sketches(batch)).sum(0) for batch in batches]
        self.state["described"] = batches[0]
        self.state.update({_KEPT + name: weight for name, weight in down.items()})
        profile = torch.stack(sums).sum(0) / sum(map(len, batches))
        return Reply({"descriptor": sums[0] / len(batches[0]), "profile": profile})

    def backprop(self, down: Tensors) -> Reply:
        """(∂v_i / ∂f)ᵀ g over the batch that v_i was made of; g = ∂/∂v_i came from the server."""
        weights = {
            name.removeprefix(_KEPT): kept.detach().requires_grad_()
            for name, kept in self.state.items()
            if name.startswith(_KEPT)
        }
        descriptor = embed(weights, *self.task.sketches(self.state["described"])).mean(0)
        gradients = torch.autograd.grad(descriptor, list(weights.values()), down["gradient"])
        return Reply(dict(zip(weights, gradients, strict=True)))


METHOD = Method(
    name="pefll",
    server=PeFLLServer,
    client=PeFLLClient,
    config=GeneratorConfig,
    title="PeFLL",
    summary="a hypernetwork generates each client's adapter from an embedding of its data",
    grid={"hypernet_lr": (0.0001, 0.0005, 0.001, 0.005, 0.01)},
    needs_head=True,
)
