"""Methods that must coincide where their formulas do, most of them bit for bit."""

import pytest
import torch
from torch import nn

from pfedseq.engines.local import LocalClients
from pfedseq.methods import METHODS
from tests.every_method import OPTIONS, every_method
from tests.toys import (
    QuadraticTask,
    ScatteredSite,
    make_setup,
    personal_models,
    play,
    random_centers,
)

CENTERS = random_centers(3, adapter_dim=10)
SIZES = (8, 4, 6)
LR = 0.1
NEVER = 1e-30
"""A rate so small that what it moves stays, to the last bit, where it is."""


def start(name, rounds=3, **options):
    """A method's server and clients on scattered points, each step with batches of its own."""
    method = METHODS[name]
    config = method.config(**{"lr": LR} | options)
    sites = [ScatteredSite(i, c, n) for i, (c, n) in enumerate(zip(CENTERS, SIZES, strict=True))]
    clients = LocalClients(method.client, config, sites)
    return method.server(config, make_setup(CENTERS, SIZES, rounds)), clients


def run(server, clients, rounds=3, evaluate=False):
    """The clients' personal models after `rounds` rounds, flat."""
    for t in range(1, rounds + 1):
        server.run_round(t, clients)
        if evaluate:
            clients.call("evaluate", t, {i: server.payload(i) for i in clients.ids})
    down = {i: server.payload(i) for i in clients.ids}
    return [phi.flat() for phi in personal_models(clients, rounds, down).values()]


def assert_equal(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_ditto_is_fedavg_for_the_others_and_without_a_pull_local_for_oneself():
    """v_i sees the batches that Local's φ_i sees, and w_i those of FedAvg's, whatever λ is."""
    assert_equal(run(*start("ditto", proximal_weight=0.0)), run(*start("local")))
    (ditto, its_clients), (fedavg, clients) = start("ditto"), start("fedavg")
    run(ditto, its_clients)
    run(fedavg, clients)
    assert torch.equal(ditto.adapter, fedavg.adapter)
    assert torch.equal(ditto.head, fedavg.head)


def test_fedala_with_weights_of_one_is_fedavg():
    """W = 1 that never moves: ŵ = w_i + (w − w_i) is w itself, to the last bit."""
    fedala = run(*start("fedala", weight_lr=NEVER))
    fedavg = run(*start("fedavg"))
    assert_equal(fedala, fedavg)


def test_apple_with_one_hot_relations_is_local():
    """p_i = e_i that never moves: the mixture is c_i; its step 3 η p_ii g is Local's at 3 η."""
    server, clients = start("apple", relation_lr=NEVER)
    for i in clients.ids:
        clients.states.put(i, {"relations": torch.eye(3)[i]})
    assert_equal(run(server, clients), run(*start("local", lr=3 * LR)))


def test_per_fedavg_without_adaptation_is_fedavg_on_every_second_batch():
    """α = 0: of two (equal) batches only the second one's gradient counts, and it is taken at φ."""
    method, plain = METHODS["per_fedavg"], METHODS["fedavg"]
    options = method.config(lr=LR, inner_lr=NEVER)
    per_fedavg, _ = play(method, options, CENTERS, SIZES, 3, num_batches=4)
    fedavg, _ = play(plain, plain.config(lr=LR), CENTERS, SIZES, 3, num_batches=2)
    assert torch.equal(per_fedavg.adapter, fedavg.adapter)
    assert torch.equal(per_fedavg.head, fedavg.head)


def test_pfedme_with_one_inner_step_is_fedavg_with_the_product_of_its_rates():
    """K = 1, μ = 0 and one batch: at θ = w_i = w the pull is zero, so θ = w − η_p ∇L(w) and

    w_i = w − η λ (w − θ) = w − η λ η_p ∇L(w).
    """
    options = METHODS["pfedme"].config(
        outer_lr=0.1, proximal_weight=5.0, lr=0.3, inner_steps=1, inner_decay=0.0
    )
    pfedme, _ = play(METHODS["pfedme"], options, CENTERS, SIZES, 4)
    product = METHODS["fedavg"].config(lr=0.1 * 5.0 * 0.3)
    fedavg, _ = play(METHODS["fedavg"], product, CENTERS, SIZES, 4)
    torch.testing.assert_close(pfedme.adapter, fedavg.adapter)
    torch.testing.assert_close(pfedme.head, fedavg.head)


def test_pfedme_with_one_inner_step_expanded():
    """K = 1 and two batches of ½ ‖θ − c‖², everything written out for one client from w:

    θ_1 = w − η_p (w − c + μ w)                      (no pull yet)
    w_1 = w − η λ (w − θ_1)
    θ_2 = θ_1 − η_p (θ_1 − c + λ (θ_1 − w_1) + μ θ_1)
    w_2 = w_1 − η λ (w_1 − θ_2)
    """
    eta, lam, eta_p, mu = 0.1, 5.0, 0.3, 0.2
    method, (c, w) = METHODS["pfedme"], random_centers(2, seed=3)
    options = method.config(
        outer_lr=eta, proximal_weight=lam, lr=eta_p, inner_steps=1, inner_decay=mu
    )
    state = {}
    client = method.client(options, QuadraticTask(c, num_batches=2), state)
    sent = client.train({"adapter": w.adapter, "head": w.head}).tensors
    theta_1 = w - eta_p * (w - c + mu * w)
    w_1 = w - eta * lam * (w - theta_1)
    theta_2 = theta_1 - eta_p * (theta_1 - c + lam * (theta_1 - w_1) + mu * theta_1)
    w_2 = w_1 - eta * lam * (w_1 - theta_2)
    for key in ("adapter", "head"):
        torch.testing.assert_close(state[key], getattr(theta_2, key))
        torch.testing.assert_close(sent[key], getattr(w_2, key))


class Silent(nn.Module):
    """ξ = 0, whatever the window (K, D, L, N)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, window, known):
        return 0 * self.weight * window[:, :, -1].permute(2, 0, 1)


def test_pfedseq_without_calibration_averages_adapters_under_local_heads():
    """ξ = 0 also after warm-up: θ ← Σ_i |D_i| / |D| · θ̃_i, each ω_i at home.

    The oracle trains (θ, ω_i) batch by batch on ½ ‖φ − m_B‖², m_B the mean of a batch's points.
    """
    server, clients = start("pfedseq", warmup_rounds=1, residual="none")
    server.learner = Silent()
    server.optimizer = torch.optim.Adam(server.learner.parameters(), lr=1.0)

    shared, heads = torch.zeros_like(CENTERS[0].adapter), [torch.zeros(3)] * 3
    for t in (1, 2, 3):
        server.run_round(t, clients)
        mean = torch.zeros_like(shared)
        for i, size in enumerate(SIZES):
            task = clients.sites[i].task(t, "train")
            phi = torch.cat([shared.flatten(), heads[i]])
            for batch in task.batches(1):
                phi = phi - LR * (phi - task.points()[batch].mean(0))
            heads[i] = phi[-3:]
            mean += size / sum(SIZES) * phi[:-3].view_as(shared)
        shared = mean
    for i in clients.ids:
        torch.testing.assert_close(server.payload(i)["adapter"], shared)
        torch.testing.assert_close(clients.states.get(i)["head"], heads[i])


@every_method
def test_evaluating_changes_nothing(name):
    """With or without a look at the test data after each round: the same models, bit for bit."""
    options = OPTIONS.get(name, {})
    assert_equal(
        run(*start(name, **options), evaluate=True), run(*start(name, **options), evaluate=False)
    )


@every_method
def test_what_is_exported_is_what_was_tested(name):
    server, clients = start(name, **OPTIONS.get(name, {}))
    for t in (1, 2):
        server.run_round(t, clients)
    down = {i: server.payload(i) for i in clients.ids}
    tested, exported = clients.call("evaluate", 2, down), personal_models(clients, 2, down)
    for i in clients.ids:
        score = clients.sites[i].task(2, "evaluate").score(exported[i], "test")
        assert tested[i].metrics["test_loss"] == pytest.approx(score["loss"], rel=1e-6)
