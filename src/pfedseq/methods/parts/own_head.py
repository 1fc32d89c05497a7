"""The client half of the methods whose server makes adapters: tune all, keep ω, send Δ."""

from pfedseq.federation import Client, MethodConfig, Reply, Tensors
from pfedseq.params import Params


class OwnHeadClient(Client):
    """Starts from the adapter that the server made for it, under a head of its own."""

    config: MethodConfig

    def train(self, down: Tensors) -> Reply:
        """Tune θ_i and ω_i together; send Δ_i = θ̃_i − θ_i, keep ω_i."""
        phi = self.fit(self.personal(down))
        self.state["head"] = phi.head
        return Reply({"delta": phi.adapter - down["adapter"]})

    def personal(self, down: Tensors) -> Params:
        """(θ_i, ω_i)."""
        return Params(down["adapter"], self.state.get("head", self.task.initial.head))
