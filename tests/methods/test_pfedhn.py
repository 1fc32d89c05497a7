"""pFedHN: a round in closed form, the explicit Jacobian, the sign, and who is absent."""

import pytest
import torch
from torch.func import functional_call

from pfedseq.federation import Reply
from pfedseq.methods import METHODS
from pfedseq.runs.checkpoint import server_state
from tests.toys import make_setup, play, random_centers

PFEDHN = METHODS["pfedhn"]
CENTERS = random_centers(3)
SIZES = (4, 2, 3)


def make_server(lively=True, **options):
    """A server; `lively` heads are not at zero, so that every parameter has a gradient."""
    server = PFEDHN.server(PFEDHN.config(**options), make_setup(CENTERS, SIZES))
    if lively:
        torch.manual_seed(1)
        with torch.no_grad():
            server.generator.heads.weight.normal_(std=0.3)
    return server


def descend_plainly(server, lr):
    parameters = [p for group in server.optimizer.param_groups for p in group["params"]]
    server.optimizer = torch.optim.SGD(parameters, lr=lr)


def some_deltas(scale=1.0):
    rng = torch.Generator().manual_seed(2)
    return scale * torch.randn(3, 2, 5, generator=rng)


def replies_with(deltas, ids=(0, 1, 2)):
    return {i: Reply({"delta": deltas[i]}) for i in ids}


def test_the_first_round_in_closed_form():
    """Heads W = 0, b = θ^0 = 0: only they move, since J of all below is a multiple of W.

    One local step from 0 gives Δ_j = η c_j. With features z_j of client j, an SGD step of rate κ
    adds κ/n Σ_j Δ_j z_jᵀ to W and κ/n Σ_j Δ_j to b, so client i's new adapter W z_i + b is
    θ_i = (κ η / n) Σ_j (1 + ⟨z_i, z_j⟩) c_j: all clients in equal parts, nearer ones with more.
    """
    eta, kappa = 0.25, 0.5
    server, clients = play(PFEDHN, PFEDHN.config(lr=eta), CENTERS, SIZES, rounds=0)
    descend_plainly(server, kappa)
    for i in range(3):
        assert torch.equal(server.payload(i)["adapter"], torch.zeros(2, 5)), "θ^0 comes first"
    with torch.no_grad():
        z = server.generator.body(torch.stack(list(server.descriptors)))
    server.run_round(1, clients)
    for i in range(3):
        expected = sum((1 + z[i] @ z[j]) * CENTERS[j].adapter for j in range(3))
        torch.testing.assert_close(server.payload(i)["adapter"], kappa * eta / 3 * expected)
        torch.testing.assert_close(clients.states.get(i)["head"], eta * CENTERS[i].head)


def test_the_update_equals_the_explicit_jacobian():
    """φ ← φ + κ · (1/N) Σ_i (∂θ_i/∂φ)ᵀ Δ_i for h's weights and for every descriptor."""
    server, deltas = make_server(), some_deltas()
    descend_plainly(server, lr=0.7)
    names = list(dict(server.generator.named_parameters()))
    inputs = (
        torch.stack(list(server.descriptors)).detach(),
        *(p.detach().clone() for p in server.generator.parameters()),
    )
    jacobians = torch.autograd.functional.jacobian(
        lambda v, *weights: functional_call(
            server.generator, dict(zip(names, weights, strict=True)), (v,)
        ),
        inputs,
    )
    server.update(1, replies_with(deltas))
    after = (torch.stack(list(server.descriptors)), *server.generator.parameters())
    for old, new, jacobian in zip(inputs, after, jacobians, strict=True):
        expected = old + 0.7 * torch.tensordot(deltas / 3, jacobian, dims=3)
        torch.testing.assert_close(new.detach(), expected, rtol=1e-4, atol=1e-6)


def test_the_generated_adapters_move_along_the_updates():
    """The sign, with the method's own Adam: Σ_i ⟨θ_i' − θ_i, Δ_i⟩ > 0; a flipped minus fails."""
    for lively in (True, False):
        server, deltas = make_server(lively), some_deltas()
        before = server.generate(range(3)).detach()
        server.update(1, replies_with(deltas))
        assert ((server.generate(range(3)).detach() - before) * deltas).sum() > 0


def test_the_gradient_is_clipped_to_50():
    """Updates so large that the whole gradient is cut: an SGD step of rate 1 has length 50."""
    server = make_server()
    descend_plainly(server, lr=1.0)
    state = {k: v.detach().clone() for k, v in server_state(server).items()}
    server.update(1, replies_with(some_deltas(1e5)))
    moved = sum((server_state(server)[k] - v).square().sum() for k, v in state.items())
    assert moved.sqrt().item() == pytest.approx(50, rel=1e-3)


def test_an_absent_client_counts_neither_in_the_mean_nor_in_adams_memory():
    """Clients 0 and 2 answer: the mean is over two, and v_1 rests although Adam has momentum."""
    server, other = make_server(), make_server()
    deltas = some_deltas()
    descend_plainly(server, lr=1.0)
    descend_plainly(other, lr=1.0)
    server.update(1, replies_with(deltas, ids=(2, 0)))
    other.update(1, replies_with(deltas * torch.tensor([1.5, 0.0, 1.5])[:, None, None]))
    torch.testing.assert_close(server.generate(range(3)), other.generate(range(3)))

    adam = make_server()
    adam.update(1, replies_with(deltas))
    rested = adam.descriptors[1].detach().clone()
    adam.update(2, replies_with(deltas, ids=(0, 2)))
    assert torch.equal(adam.descriptors[1], rested)
    assert not torch.equal(adam.descriptors[0], make_server().descriptors[0])
    assert adam.optimizer.state[adam.descriptors[1]]["step"].item() == 1
    assert adam.optimizer.state[adam.descriptors[0]]["step"].item() == 2


def test_only_adapters_travel():
    server, clients = play(PFEDHN, PFEDHN.config(), CENTERS, SIZES, rounds=1)
    replies = clients.call("train", 2, {i: server.payload(i) for i in range(3)})
    assert set(server.payload(0)) == {"adapter"}
    assert set(replies[0].tensors) == {"delta"}
