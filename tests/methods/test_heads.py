"""Heads with a common and a private part: who keeps what of a change, by hand."""

import pytest
import torch

from pfedseq.federation import Reply, Setup
from pfedseq.methods import METHODS
from pfedseq.methods.fedrep import FedRepClient, FedRepConfig, FedRepServer
from pfedseq.methods.parts.own_head import OwnHeadClient
from pfedseq.methods.pfedseq import PFedSeqConfig
from pfedseq.params import Params
from tests.toys import QuadraticTask, personal_models, play

WITH_HEADS = ("pfedseq", "fedrep", "pfedhn", "pfedla", "pefll")
CENTER = Params(torch.tensor([[1.0, 2.0]]), torch.tensor([4.0, -4.0]))
ADAPTER = torch.zeros(1, 2)
COMMON = torch.tensor([1.0, 0.0])


def train(head, keep=1.0, down=None, state=None):
    """One step of rate 0.5: the head goes half of the way from where it starts to (4, −4)."""
    config = PFedSeqConfig(lr=0.5, head=head, head_keep=keep)
    client = OwnHeadClient(config, QuadraticTask(CENTER), {} if state is None else state)
    message = {"adapter": ADAPTER} | ({"head": COMMON} if down is None else down)
    return client, client.train(message), message


def test_both_keeps_a_share_of_the_change_and_sends_all_of_it():
    """From ω_g + u = (1, 0) + (1, −2) = (2, −2) to (3, −3): δω = (1, −1), κ = 0.25."""
    state = {"head": torch.tensor([1.0, -2.0])}
    client, reply, message = train("both", 0.25, state=state)
    assert reply.tensors["head_change"].tolist() == [1.0, -1.0]
    assert state["head"].tolist() == [1.25, -2.25]
    assert client.personal(message).head.tolist() == [2.25, -2.25], "ω_g as sent, and the new u"


def test_a_common_head_keeps_nothing():
    """From (1, 0) to (2.5, −2): all of the change goes up, and the next head is the server's."""
    client, reply, message = train("common")
    assert reply.tensors["head_change"].tolist() == [1.5, -2.0]
    assert client.personal(message).head.tolist() == COMMON.tolist()


def test_a_private_head_sends_nothing():
    client, reply, message = train("private", down={})
    assert set(reply.tensors) == {"delta"}
    assert client.personal(message).head.tolist() == [2.0, -2.0], "half of the way from 0"


def test_the_server_adds_the_mean_change_weighted_by_examples():
    """|D| = 1 and 3: (1·(4, 0) + 3·(0, 8)) / 4 = (1, 6), on top of what the head was."""
    setup = Setup(Params(ADAPTER, COMMON), (1, 3), 5, 0)
    server = FedRepServer(FedRepConfig(head="both"), setup)
    changes = [torch.tensor([4.0, 0.0]), torch.tensor([0.0, 8.0])]
    replies = [Reply({"adapter": ADAPTER, "head_change": change}) for change in changes]
    server.update(1, dict(enumerate(replies)))
    assert server.payload(0)["head"].tolist() == [2.0, 6.0]
    assert set(server.expected("train")) == {"adapter", "head_change"}


def test_the_common_part_moves_on_with_momentum():
    """Mean changes (1, 6), then (4, 0): with β = 0.5, v = (1, 6), then (4.5, 3)."""
    setup = Setup(Params(ADAPTER, COMMON), (1, 3), 5, 0)
    server = FedRepServer(FedRepConfig(head="both", head_momentum=0.5), setup)
    for t, (one, other) in enumerate([((4.0, 0.0), (0.0, 8.0)), ((4.0, 0.0), (4.0, 0.0))], 1):
        changes = [torch.tensor(one), torch.tensor(other)]
        replies = [Reply({"adapter": ADAPTER, "head_change": change}) for change in changes]
        server.update(t, dict(enumerate(replies)))
    assert server.payload(0)["head"].tolist() == [1 + 1 + 4.5, 0 + 6 + 3]
    assert "head_velocity" in server.persistent, "a continued run goes on at the same speed"


def test_fedreps_change_is_that_of_its_head_phase():
    """One pass on ω from (1, 0): (2.5, −2); the pass on θ leaves it there."""
    client = FedRepClient(FedRepConfig(lr=0.5, head="both"), QuadraticTask(CENTER), {})
    reply = client.train({"adapter": ADAPTER, "head": COMMON})
    assert reply.tensors["head_change"].tolist() == [1.5, -2.0]
    assert reply.tensors["adapter"].tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize("name", WITH_HEADS)
def test_every_method_with_private_heads_can_share_them(name):
    """Heads that want 1, 2 and 3: one for all, or each its own, which learns faster from all."""
    heads = {}
    centers = [Params(torch.zeros(2, 5), torch.full((3,), c)) for c in (1.0, 2.0, 3.0)]
    for kind in ("private", "common", "both"):
        config = METHODS[name].config(lr=0.1, head=kind)
        server, clients = play(METHODS[name], config, centers, [1, 1, 1], 4)
        down = {i: server.payload(i) for i in clients.ids}
        heads[kind] = [phi.head for phi in personal_models(clients, 4, down).values()]
    assert all(torch.equal(head, heads["common"][0]) for head in heads["common"])
    for kind in ("private", "both"):
        assert (heads[kind][2] > heads[kind][0]).all(), "clients differ"
    faster = zip(heads["both"], heads["private"], strict=True)
    assert all((both > private).all() for both, private in faster)
