"""pFedLA: two rounds by hand, the explicit Jacobian, the sign, and who is absent."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pfedseq.federation import Reply
from pfedseq.methods import METHODS
from pfedseq.params import Params
from tests.toys import make_setup, random_centers

PFEDLA = METHODS["pfedla"]
CENTERS = random_centers(3)


class Raw(nn.Module):
    """The simplest hypernetwork: its parameters are the weights before they are normalised."""

    def __init__(self, *values):
        super().__init__()
        self.raw = nn.Parameter(torch.tensor([values]))

    def forward(self):
        return self.raw / self.raw.sum(1, keepdim=True)


def scalar_server():
    """Two clients with a one-number adapter that starts at 0, weights ½ and ½, SGD of rate 0.1."""
    center = Params(torch.zeros(1, 1), torch.zeros(1))
    server = PFEDLA.server(PFEDLA.config(), make_setup([center, center], (1, 3)))
    server.hypernets = nn.ModuleList([Raw(1.0, 1.0), Raw(1.0, 1.0)])
    server.optimizer = torch.optim.SGD(server.hypernets.parameters(), lr=0.1)
    return server


def scalars(*deltas):
    return {
        i: Reply({"delta": torch.tensor([[float(d)]])})
        for i, d in enumerate(deltas)
        if d is not None
    }


def adapters(server):
    return [server.payload(i)["adapter"].item() for i in range(2)]


def test_two_rounds_by_hand():
    """α from raw weights a_i = (1, 1), normalised by their sum.

    t = 1: both train from 0; Δ = (4, 8), so the pool is (4, 8). No step. θ = (6, 6), whatever
           the sizes 1 and 3.
    t = 2: Δ = (2, −2). ∂θ_i/∂a_ij = (θ̃_j − θ_i) / Σa_i = (4 − 6, 8 − 6) / 2 = (−1, 1), so
           a_0 = (1, 1) + 0.1 · 2 · (−1, 1) = (0.8, 1.2), a_1 = (1.2, 0.8).
           The pool becomes (6 + 2, 6 − 2) = (8, 4), both at once, and
           θ_0 = 0.4 · 8 + 0.6 · 4 = 5.6, θ_1 = 0.6 · 8 + 0.4 · 4 = 6.4.
    """
    server = scalar_server()
    server.update(1, scalars(4, 8))
    assert server.pool.flatten().tolist() == pytest.approx([4, 8])
    assert adapters(server) == pytest.approx([6, 6])
    server.update(2, scalars(2, -2))
    assert server.hypernets[0].raw.tolist()[0] == pytest.approx([0.8, 1.2])
    assert server.hypernets[1].raw.tolist()[0] == pytest.approx([1.2, 0.8])
    assert server.pool.flatten().tolist() == pytest.approx([8, 4])
    assert adapters(server) == pytest.approx([5.6, 6.4])


def test_an_absent_client_stays_in_the_pool_and_its_hypernetwork_rests():
    """Client 1 misses t = 2: a_1 = (1, 1); pool (8, 8); θ_0 = θ_1 = 8."""
    server = scalar_server()
    server.update(1, scalars(4, 8))
    server.update(2, scalars(2, None))
    assert server.hypernets[0].raw.tolist()[0] == pytest.approx([0.8, 1.2])
    assert server.hypernets[1].raw.tolist()[0] == [1, 1]
    assert server.pool.flatten().tolist() == pytest.approx([8, 8])
    assert adapters(server) == pytest.approx([8, 8])


def make_server(**options):
    """A server with a pool of different adapters, as it is after a round."""
    server = PFEDLA.server(PFEDLA.config(**options), make_setup(CENTERS, (4, 2, 3)))
    server.pool = torch.stack([center.adapter for center in CENTERS])
    return server


def some_deltas():
    return torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(2))


def replies_with(deltas, ids=(0, 1, 2)):
    return {i: Reply({"delta": deltas[i]}) for i in ids}


def test_every_layer_is_mixed_by_its_own_weights():
    server = make_server()
    for i in range(3):
        weights, mixed = server.hypernets[i]().detach(), server.payload(i)["adapter"]
        for k in range(2):
            expected = sum(weights[k, j] * CENTERS[j].adapter[k] for j in range(3))
            torch.testing.assert_close(mixed[k], expected)


def test_the_update_equals_the_explicit_jacobian():
    """ψ_i ← ψ_i + κ (∂θ_i/∂ψ_i)ᵀ Δ_i for the embedding and every weight of each hypernetwork."""
    server, deltas = make_server(hidden_dim=8), some_deltas()
    server.optimizer = torch.optim.SGD(server.hypernets.parameters(), lr=0.7)
    pool, expected = server.pool, []
    for i, network in enumerate(server.hypernets):
        names = list(dict(network.named_parameters()))
        values = tuple(p.detach().clone() for p in network.parameters())

        def mixed(*weights, network=network, names=names):
            alpha = functional_call(network, dict(zip(names, weights, strict=True)), ())
            return torch.stack([alpha[k] @ pool[:, k] for k in range(2)])

        jacobians = torch.autograd.functional.jacobian(mixed, values)
        expected += [
            value + 0.7 * torch.tensordot(deltas[i], jacobian, dims=2)
            for value, jacobian in zip(values, jacobians, strict=True)
        ]
    server.update(2, replies_with(deltas))
    for new, wanted in zip(server.hypernets.parameters(), expected, strict=True):
        torch.testing.assert_close(new.detach(), wanted, rtol=1e-4, atol=1e-6)


def test_each_mixture_moves_along_its_clients_update():
    """The sign, with the method's own Adam: ⟨θ_i' − θ_i, Δ_i⟩ > 0 for each i on the old pool.

    The two public implementations that descend along +Δ fail this.
    """
    server, deltas = make_server(), some_deltas()
    pool = server.pool
    before = torch.stack([server.mix(i) for i in range(3)]).detach()
    server.update(2, replies_with(deltas))
    server.pool = pool
    after = torch.stack([server.mix(i) for i in range(3)]).detach()
    assert (((after - before) * deltas).sum((1, 2)) > 0).all()


def test_the_first_round_takes_no_step():
    """All adapters are still equal: the gradient is rounding error, which Adam would enlarge."""
    server, untouched = make_server(), make_server()
    server.pool = CENTERS[0].adapter.expand(3, -1, -1)
    server.update(1, replies_with(some_deltas()))
    for a, b in zip(server.hypernets.parameters(), untouched.hypernets.parameters(), strict=True):
        assert torch.equal(a, b)


def test_clients_begin_with_different_hypernetworks():
    first, second, _ = make_server().hypernets
    assert not torch.equal(first.embedding, second.embedding)
    assert not torch.equal(first.heads.weight, second.heads.weight)
