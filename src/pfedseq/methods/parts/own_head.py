"""The two halves of what methods with private heads share: who keeps which part of a head.

A client's head is ω_i = ω_g + u_i: a common part, which the server averages, and a private part,
which never leaves the client (as in FedRoD: Chen and Chao, ICLR 2022). Local training changes the
sum by δω_i. Of that change the client keeps a share κ, u_i ← u_i + κ δω_i, and the server adds the
mean, ω_g ← ω_g + Σ_i |D_i| δω_i / |D|:

- `private`: all is kept, nothing is sent; the paper's heads.
- `common`: nothing is kept; one head for all, as FedAvg's.
- `both`: a share (`head_keep`) is kept and all of it is averaged.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from pfedseq.federation import Client, MethodConfig, Reply, Server, Setup, Tensors
from pfedseq.params import Params


class OwnHeadServer(Server):
    """A server that makes adapters for its clients and keeps what their heads have in common."""

    config: MethodConfig
    persistent: ClassVar[tuple[str, ...]] = ("head",)

    def __init__(self, config: MethodConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.head = setup.initial.head  # ω_g

    def common_head(self) -> Tensors:
        """ω_g as a part of a message; nothing where heads are private."""
        return {} if self.config.head == "private" else {"head": self.head}

    def take_heads(self, replies: Mapping[int, Reply]) -> None:
        """ω_g ← ω_g + Σ_i |D_i| δω_i / |D|."""
        if self.config.head != "private":
            changes, present = self.setup.stack(replies, "head_change")
            self.head = self.head + self.setup.aggregate(changes, present)

    def expected(self, step: str) -> Tensors:
        """What the method takes, and the change of a head that is not private."""
        also = ("head_change",) if step == "train" and self.config.head != "private" else ()
        return super().expected(step) | {key: self.setup.like(key) for key in also}


class OwnHeadClient(Client):
    """Starts from the adapter that the server made for it, under a head of its own.

    The server decides: whoever is sent a common head adds its own part to it; without one the head
    is private.
    """

    config: MethodConfig

    def train(self, down: Tensors) -> Reply:
        """Tune θ_i and ω_i together; send Δ_i = θ̃_i − θ_i."""
        start = self.personal(down)
        phi = self.fit(start)
        return Reply({"delta": phi.adapter - down["adapter"]} | self.keep_head(start, phi, down))

    def keep_head(self, start: Params, phi: Params, down: Tensors) -> Tensors:
        """Remember the private part of the new head; give what the server averages."""
        if "head" not in down:
            self.state["head"] = phi.head
            return {}
        change = phi.head - start.head  # δω_i
        kept = self.config.head_keep if self.config.head == "both" else 0.0
        self.state["head"] = self.private_part() + kept * change
        return {"head_change": change}

    def private_part(self) -> Tensor:
        """u_i beside a common head."""
        return self.state.get("head", self.task.initial.head.new_zeros(()))

    def personal(self, down: Tensors) -> Params:
        """(θ_i, ω_i)."""
        if "head" in down:
            return Params(down["adapter"], down["head"] + self.private_part())
        return Params(down["adapter"], self.state.get("head", self.task.initial.head))

    def mean_model(self, down: Tensors) -> Params:
        """The mean adapter under the client's head, both parts of it."""
        return self.personal(down)
