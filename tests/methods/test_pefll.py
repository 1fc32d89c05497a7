"""PeFLL: three exchanges against one autograd graph and its Jacobian, the sign, and absences."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.intake import Intake
from pfedseq.engines.local import LocalClients
from pfedseq.engines.roster import Roster
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.params import Params
from pfedseq.runs.checkpoint import server_state
from tests.toys import QuadraticSite, QuadraticTask, make_setup, random_centers

PEFLL = METHODS["pefll"]
NUM_CLIENTS = 4  # d = 2
CENTERS = random_centers(NUM_CLIENTS)
SIZES = (5, 5, 5, 5)
ETA = 0.25


@dataclass
class GalleryTask(QuadraticTask):
    """A quadratic loss beside five labelled images of its own, in batches of 2, 2 and 1."""

    images: Tensor = field(default_factory=lambda: torch.zeros(5, 3, 32, 32))
    labels: Tensor = field(default_factory=lambda: torch.tensor([0, 1, 2, 1, 0]))

    def batches(self, epochs):
        yield from torch.tensor([3, 1, 4, 0, 2]).repeat(epochs).split([2, 2, 1] * epochs)

    def sketches(self, batch):
        return self.images[batch], self.labels[batch]


def gallery(i) -> GalleryTask:
    rng = torch.Generator().manual_seed(i)
    return GalleryTask(CENTERS[i], 5, images=torch.randn(5, 3, 32, 32, generator=rng) + i)


def make_clients(engine=LocalClients, **options):
    sites = [QuadraticSite(lambda i=i: gallery(i)) for i in range(NUM_CLIENTS)]
    return engine(PEFLL.client, PEFLL.config(lr=ETA, **options), sites)


def make_server(lively=True, **options):
    """A server; `lively` heads are not at zero, so that h and f have a gradient at once."""
    server = PEFLL.server(PEFLL.config(lr=ETA, **options), make_setup(CENTERS, SIZES))
    if lively:
        torch.manual_seed(1)
        with torch.no_grad():
            server.h.heads.weight.normal_(std=0.3)
    return server


def descend_plainly(server, lr):
    parameters = [p for group in server.optimizer.param_groups for p in group["params"]]
    server.optimizer = torch.optim.SGD(parameters, lr=lr)


class Absences:
    """Clients some of which do not answer some calls: `missing` holds (step, t, client)."""

    def __init__(self, clients, *missing):
        self.clients, self.missing, self.ids = clients, missing, clients.ids
        self.asked = []

    def participants(self, t):
        return self.ids

    def call(self, step, t, down):
        self.asked.append((step, t, sorted(down)))
        there = {i: tensors for i, tensors in down.items() if (step, t, i) not in self.missing}
        return self.clients.call(step, t, there)


def weights_of(server):
    return {
        **{f"h.{name}": p.detach().clone() for name, p in server.h.named_parameters()},
        **{f"f.{name}": p.detach().clone() for name, p in server.f.named_parameters()},
    }


def generated(server, weights, ids, batch=(3, 1)):
    """θ_i (n, K, D) in one graph, with all data in one place: f, mean, standardise, h."""
    f = {name[2:]: w for name, w in weights.items() if name.startswith("f.")}
    h = {name[2:]: w for name, w in weights.items() if name.startswith("h.")}
    v = torch.stack(
        [functional_call(server.f, f, gallery(i).sketches(list(batch))).mean(0) for i in ids]
    )
    v = (v - server.standardise.mean) / server.standardise.deviation
    return functional_call(server.h, h, (v,))


def local_deltas(adapters, ids):
    """Three batches, so three steps: Δ_i = (1 − (1 − η)³) (c_i − θ_i)."""
    centers = torch.stack([CENTERS[i].adapter for i in ids])
    return (1 - (1 - ETA) ** 3) * (centers - adapters)


def expected_weights(server, before, rate, trained=range(NUM_CLIENTS), finished=None):
    """w + rate · ∇_w (1/n) Σ_i ⟨θ_i(w), Δ_i⟩ by one autograd graph, Δ held fixed."""
    leaves = {name: w.clone().requires_grad_() for name, w in before.items()}
    adapters = generated(server, leaves, trained)
    deltas = local_deltas(adapters.detach(), trained)
    products = (adapters * deltas).sum((1, 2)) / len(trained)
    gradients = dict(zip(leaves, torch.autograd.grad(products.sum(), leaves.values()), strict=True))
    if finished is not None:  # f hears only of those that answered `backprop`
        adapters = generated(server, leaves, trained)
        products = (adapters * deltas).sum((1, 2)) / len(trained)
        heard = sum(p for i, p in zip(trained, products, strict=True) if i in finished)
        of_f = [name for name in leaves if name.startswith("f.")]
        gradients |= dict(
            zip(of_f, torch.autograd.grad(heard, [leaves[n] for n in of_f]), strict=True)
        )
    return {name: w + rate * gradients[name] for name, w in before.items()}


@pytest.mark.parametrize("engine", [LocalClients, WireClients])
def test_three_exchanges_equal_one_autograd_graph(engine):
    server, clients = make_server(max_grad_norm=1e9), make_clients(engine)
    descend_plainly(server, lr=0.7)
    before = weights_of(server)
    server.run_round(1, clients)
    expected = expected_weights(server, before, 0.7)
    for name, weight in weights_of(server).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-6)
        assert not torch.equal(weight, before[name]), f"{name} has not moved"


def test_the_update_equals_the_explicit_jacobian():
    """w ← w + κ (1/N) Σ_i (∂θ_i/∂w)ᵀ Δ_i, J of all of h and f built entry by entry."""
    server, clients = make_server(max_grad_norm=1e9), make_clients()
    descend_plainly(server, lr=0.7)
    before = weights_of(server)
    server.run_round(1, clients)
    names, ids = list(before), range(NUM_CLIENTS)
    jacobians = torch.autograd.functional.jacobian(
        lambda *values: generated(server, dict(zip(names, values, strict=True)), ids),
        tuple(before.values()),
    )
    deltas = local_deltas(generated(server, before, ids), ids)
    after = weights_of(server)
    for name, jacobian in zip(names, jacobians, strict=True):
        step = 0.7 * torch.tensordot(deltas / NUM_CLIENTS, jacobian, dims=3)
        torch.testing.assert_close(after[name] - before[name], step, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("moved", ["h", "f", "both"])
def test_the_generated_adapters_move_along_the_updates(moved):
    """The sign for each network by itself: Σ_i ⟨θ_i' − θ_i, Δ_i⟩ > 0 with the other held."""
    server, clients = make_server(), make_clients()
    descend_plainly(server, lr=1e-3)
    before, ids = weights_of(server), range(NUM_CLIENTS)
    server.run_round(1, clients)
    after = weights_of(server)
    mixed = {n: after[n] if moved in (n[0], "both") else before[n] for n in before}
    old = generated(server, before, ids)
    difference = generated(server, mixed, ids) - old
    assert (difference * local_deltas(old, ids)).sum() > 0


def test_h_and_f_are_clipped_together():
    """Centers so far away that the whole gradient is cut: an SGD step of rate 1 has length 2."""
    server, clients = make_server(max_grad_norm=2.0), make_clients()
    descend_plainly(server, lr=1.0)
    before = weights_of(server)
    server.update = spied(server.update, scale=1e4)
    server.run_round(1, clients)
    moved = sum((w - before[name]).square().sum() for name, w in weights_of(server).items())
    assert moved.sqrt().item() == pytest.approx(2.0, rel=1e-3)


def spied(update, scale):
    """`update` with every Δ scaled: as if the clients had gone that much further."""

    def scaled(t, replies):
        update(
            t,
            {
                i: replace(reply, tensors={"delta": scale * reply.tensors["delta"]})
                for i, reply in replies.items()
            },
        )

    return scaled


def test_training_uses_one_batch_and_evaluation_all_the_data():
    """v over the first batch (images 3 and 1), and over all five: not a mean of batch means."""
    server, clients = make_server(), make_clients()
    server.run_round(1, clients)
    weights = weights_of(server)
    one = generated(server, weights, range(NUM_CLIENTS), batch=(3, 1))
    everything = generated(server, weights, range(NUM_CLIENTS), batch=(0, 1, 2, 3, 4))
    assert not torch.allclose(one, everything, atol=1e-4)
    asked = {}

    class Listening(Absences):
        def call(self, step, t, down):
            asked.setdefault((step, t), down)
            return super().call(step, t, down)

    for i in range(NUM_CLIENTS):
        torch.testing.assert_close(server.payload(i)["adapter"], everything[i])
    server.run_round(2, Listening(clients))
    for i in range(NUM_CLIENTS):
        torch.testing.assert_close(asked["train", 2][i]["adapter"], one[i])


def test_the_standardisation_is_fitted_once_and_saved():
    """mean and deviation over the N · d entries of the first descriptors; later rounds keep it."""
    server, clients = make_server(), make_clients()
    f = {name: p.detach().clone() for name, p in server.f.named_parameters()}
    first = torch.stack(
        [
            functional_call(server.f, f, gallery(i).sketches([3, 1])).mean(0)
            for i in range(NUM_CLIENTS)
        ]
    )
    server.run_round(1, clients)
    server.run_round(2, clients)
    torch.testing.assert_close(server.standardise.mean, first.mean())
    torch.testing.assert_close(server.standardise.deviation, first.std(correction=0))
    saved = server_state(server)
    assert torch.equal(saved["standardise/mean"], server.standardise.mean)
    assert torch.equal(saved["standardise/deviation"], server.standardise.deviation)


def test_everyone_starts_at_the_initial_adapter():
    server, clients = make_server(lively=False), make_clients()
    silent = Absences(clients)
    for i in range(NUM_CLIENTS):
        assert torch.equal(server.payload(i)["adapter"], torch.zeros(2, 5))
    server.run_round(1, silent)
    assert [(step, t) for step, t, _ in silent.asked] == [
        ("describe", 0),
        ("train", 1),
        ("backprop", 1),
        ("describe", 1),
    ]
    for i in range(NUM_CLIENTS):
        assert server.payload(i)["adapter"].abs().sum() > 0


def test_one_who_does_not_train_is_left_out_of_the_mean():
    server, clients = make_server(max_grad_norm=1e9), make_clients()
    descend_plainly(server, lr=0.7)
    before = weights_of(server)
    absent = Absences(clients, ("train", 1, 2))
    server.run_round(1, absent)
    assert absent.asked[2] == ("backprop", 1, [0, 1, 3])
    expected = expected_weights(server, before, 0.7, trained=[0, 1, 3])
    for name, weight in weights_of(server).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-6)


def test_one_who_leaves_before_backprop_adds_nothing_to_f():
    server, clients = make_server(max_grad_norm=1e9), make_clients()
    descend_plainly(server, lr=0.7)
    before = weights_of(server)
    server.run_round(1, Absences(clients, ("backprop", 1, 0)))
    expected = expected_weights(server, before, 0.7, finished=[1, 2, 3])
    for name, weight in weights_of(server).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-6)


def test_one_who_is_not_described_rests_for_a_round_and_keeps_its_profile():
    server, clients = make_server(), make_clients()
    absent = Absences(clients, ("describe", 1, 3))
    server.run_round(1, absent)
    profile = server.profiles[3].clone()
    assert profile.abs().sum() > 0, "it was described before round 1"
    server.run_round(2, absent)
    assert ("train", 2, [0, 1, 2]) in absent.asked
    assert ("backprop", 2, [0, 1, 2]) in absent.asked
    server.run_round(3, absent)
    assert ("train", 3, [0, 1, 2, 3]) in absent.asked
    assert not torch.equal(server.profiles[3], profile)


def test_what_a_client_keeps_is_not_the_servers_own_tensor():
    """Client 3 misses the description that ends round 2: it still has round 1's f, to the bit."""
    server, clients = make_server(), make_clients()
    server.run_round(1, clients)
    kept = {name: tensor.clone() for name, tensor in clients.states.get(3).items()}
    server.run_round(2, Absences(clients, ("describe", 2, 3)))
    for name, tensor in kept.items():
        if name != "head":
            assert torch.equal(clients.states.get(3)[name], tensor), name


def test_what_is_sent():
    """Down |f| + a + d; up 2d + a + |f|, four bytes each; f once more before round 1."""
    server, clients = make_server(), make_clients()
    size_f, a, d = sum(p.numel() for p in server.f.parameters()), 10, 2
    server.run_round(1, clients)
    metered = Intake(Roster(clients, server, FederationConfig()))
    server.run_round(2, metered)
    assert metered.bytes_down == 4 * NUM_CLIENTS * (size_f + a + d)
    assert metered.bytes_up == 4 * NUM_CLIENTS * (2 * d + a + size_f)


def test_a_server_that_knows_no_classes_says_so():
    setup = replace(make_setup(CENTERS, SIZES), num_classes=None)
    with pytest.raises(InputError, match="number of classes"):
        PEFLL.server(PEFLL.config(), setup)


def test_a_single_client_with_a_single_number_is_no_trouble():
    """N = 1 gives d = 1: one number has no deviation; it is shifted to 0 and not divided."""
    center = Params(torch.ones(1, 1), torch.ones(1))
    server = PEFLL.server(PEFLL.config(), make_setup([center], (1,)))
    clients = LocalClients(
        PEFLL.client, PEFLL.config(), [QuadraticSite(lambda: QuadraticTask(center))]
    )
    server.run_round(1, clients)
    assert server.standardise.deviation == 1
    assert server.payload(0)["adapter"].isfinite().all()
