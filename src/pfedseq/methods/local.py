"""Local: each client tunes its own adapter and head; nothing is shared.

Sent: nothing. Evaluated: the client's own φ_i.

Deviations: none.
"""

from collections.abc import Mapping

from pfedseq.federation import Client, Method, MethodConfig, Reply, Server, Tensors
from pfedseq.params import Params


class LocalServer(Server):
    """A server that sends and receives nothing."""

    def payload(self, i: int) -> Tensors:
        """Send nothing."""
        return {}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Take in nothing."""


class LocalClient(Client):
    """Plain SGD on the client's own data."""

    config: MethodConfig
    sent_model = None

    def train(self, down: Tensors) -> Reply:
        """φ_i ← SGD(φ_i; D_i)."""
        phi = self.fit(self.personal(down))
        self.state.update(phi.tensors())
        return Reply()

    def personal(self, down: Tensors) -> Params:
        """φ_i; the initial model before the first round."""
        return Params.of(self.task.initial.tensors() | self.state)


METHOD = Method(
    name="local",
    server=LocalServer,
    client=LocalClient,
    config=MethodConfig,
    title="Local",
    summary="each client alone; nothing is shared",
    training="apply to every local step; optimizer_state = 'average' is refused: nothing is "
    "averaged",
)
