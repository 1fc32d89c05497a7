"""SCAFFOLD: FedAvg whose clients correct their drift with control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
Algorithm 1 with option II.

Sent down: θ, ω and the common control c. Sent up: θ_i, ω_i and the client's control c_i, each of
the size of φ. Evaluated: the global φ on each client's data.

Option II sets c_i ← c_i − c + (x − y_i) / (K η). Each of the K steps of plain SGD is
−η (g − c_i + c), so c_i is the mean of the K gradients g and is computed as such here: this holds
for heads with their own rate and for any local optimiser.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here, in x and in
c = Σ_i p_i c_i, where the paper takes unweighted means. It stores every client's c_i, so that c
stays correct when clients join (with c_i = 0) and leave.
"""

from collections.abc import Mapping, Sequence

import torch

from pfedseq.federation import Method, Reply, Setup, Tensors
from pfedseq.methods.fedavg import FedAvgClient, FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params, weighted_mean


class ScaffoldServer(FedAvgServer):
    """FedAvg's server, with the mean of the clients' controls."""

    persistent = (*FedAvgServer.persistent, "controls")

    def __init__(self, config: AveragingConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.controls = setup.initial.flat().new_zeros(  # c_i (N, K·D + H)
            setup.num_clients, len(setup.initial.flat())
        )

    def payload(self, i: int) -> Tensors:
        """The global φ and c = Σ_i |D_i| / |D| · c_i."""
        control = weighted_mean(self.controls, self.setup.all_weights)
        return {**self.mean(), "control": control}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Average; absent clients keep their c_i."""
        controls, present = self.setup.stack(replies, "control", self.controls[0])
        super().update(t, replies)
        self.controls = torch.where(present[:, None], controls, self.controls)

    def expected(self, step: str) -> Tensors:
        """A control beside φ."""
        found = super().expected(step)
        return {**found, "control": self.controls[0]} if step == "train" else found

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Give newcomers a control of zero."""
        super().reseat(kept, newcomers)
        joined = self.controls.new_zeros(len(newcomers), self.controls.shape[1])
        self.controls = torch.cat([self.controls[list(kept)], joined])


class ScaffoldClient(FedAvgClient):
    """Steps along g − c_i + c."""

    config: AveragingConfig

    def train(self, down: Tensors) -> Reply:
        """y_i ← y_i − η (g − c_i + c); then c_i ← the mean of the g."""
        optimizer, phi = self.optimizer(), Params.of(down)
        common = phi.unflat(down["control"])
        own = phi.unflat(self.state.get("control", torch.zeros_like(down["control"])))
        total, steps = own * 0.0, 0
        for batch in self.task.batches(self.config.local_epochs):
            gradient = self.task.grad(phi, batch)
            phi = optimizer.step(phi, gradient - own + common)
            total, steps = total + gradient, steps + 1
        self.state["control"] = (total * (1 / steps)).flat()
        return Reply({**phi.tensors(), "control": self.state["control"]})


METHOD = Method(
    name="scaffold",
    server=ScaffoldServer,
    client=ScaffoldClient,
    config=AveragingConfig,
    title="SCAFFOLD",
    summary="FedAvg whose clients correct their drift by control variates",
    training="apply to every local step; the controls are part of the gradient",
)
