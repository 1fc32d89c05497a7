"""Ditto: a personal model beside FedAvg's, pulled towards it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
Algorithm 1.

Sent down and up: θ and ω of the global w. Evaluated: the client's own v_i, which stays with it.

Deviations: the server weighs clients by |D_i|, as Eq. (1) does for every method here. The authors
alternate a step of v_i and a step of w_i on each batch; here v_i makes its passes first, then w_i.
Neither reads the other's steps (v_i is pulled to the w that was received), so only the order of
the batches differs.
"""

from pydantic import Field

from pfedseq.federation import Client, Method, MethodConfig, Reply, Tensors
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.optim import local_sgd
from pfedseq.params import Params


class DittoConfig(MethodConfig):
    """Options of Ditto."""

    proximal_weight: float = Field(
        0.1, ge=0, description="λ, pull of v_i to the global w; paper: 0.1 of {0.01, 0.1, 1, 10}"
    )


class DittoClient(Client):
    """Two trainings: v_i for oneself, w_i for the others."""

    config: DittoConfig

    def train(self, down: Tensors) -> Reply:
        """v_i ← SGD(L + λ/2 ‖v_i − w‖²) from v_i; then w_i ← SGD(L) from w."""
        lr, epochs = self.config.lr, self.config.local_epochs
        received = Params(down["adapter"], down["head"])

        def pull(own: Params) -> Params:
            return self.config.proximal_weight * (own - received)

        own = local_sgd(self.task, self.personal(down), lr, epochs, penalty=pull)
        self.state.update(adapter=own.adapter, head=own.head)
        shared = local_sgd(self.task, received, lr, epochs)
        return Reply({"adapter": shared.adapter, "head": shared.head})

    def personal(self, down: Tensors) -> Params:
        """v_i, which starts as the w received first."""
        return Params(
            self.state.get("adapter", down["adapter"]), self.state.get("head", down["head"])
        )


METHOD = Method(
    "ditto",
    FedAvgServer,
    DittoClient,
    DittoConfig,
    "Ditto",
    "personal models pulled towards FedAvg's by a proximal term",
)
