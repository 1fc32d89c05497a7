"""Rounds of methods, once more in plain PyTorch: modules, autograd and `torch.optim.SGD`.

An own derivation from the papers' algorithms, not anybody's code, in float64
(`tests/small_problem.py`).
"""

import copy

import pytest
import torch

from tests.small_problem import (
    CLIENTS,
    WEIGHTS,
    Data,
    Federation,
    assert_equal_nets,
    batches_of,
    cross_entropy,
    distance,
    mean_of,
    sgd,
)

LR, ROUNDS = 0.3, 3


def ours(name, **options):
    return Federation(name, ROUNDS, options={"lr": LR, **options})


def slopes_of(net, client, batch):
    return torch.autograd.grad(cross_entropy(net, client, batch), list(net.parameters()))


@torch.no_grad()
def moved(net, slopes, rate):
    """A copy after one plain step."""
    net = copy.deepcopy(net)
    for parameter, slope in zip(net.parameters(), slopes, strict=True):
        parameter -= rate * slope
    return net


def test_local():
    method = ours("local")
    nets = [method.start() for _ in CLIENTS]
    for t in range(1, ROUNDS + 1):
        for i, net in enumerate(nets):
            sgd(net, i, t, LR)
    assert_equal_nets(method.play(), nets)


def test_fedavg():
    method = ours("fedavg")
    shared = method.start()
    for t in range(1, ROUNDS + 1):
        shared = mean_of([sgd(copy.deepcopy(shared), i, t, LR) for i in CLIENTS])
    assert_equal_nets(method.play(), [shared] * len(CLIENTS))


def test_fedprox():
    """L + μ/2 ‖φ_i − φ‖²."""
    mu = 0.7
    method = ours("fedprox", proximal_weight=mu)
    shared = method.start()
    for t in range(1, ROUNDS + 1):
        local = [copy.deepcopy(shared) for _ in CLIENTS]
        for i, net in enumerate(local):
            sgd(net, i, t, LR, penalty=lambda n=net, s=shared: mu / 2 * distance(n, s))
        shared = mean_of(local)
    assert_equal_nets(method.play(), [shared] * len(CLIENTS))


@pytest.mark.parametrize("passes", [1, 2])
def test_fedrep(passes):
    """First the private head under the received adapter, then the adapter under that head."""
    method = ours("fedrep", head_epochs=passes)
    nets = [method.start() for _ in CLIENTS]
    for t in range(1, ROUNDS + 1):
        for i, net in enumerate(nets):
            optimizer = torch.optim.SGD(net.head.parameters(), lr=LR)
            for batch in batches_of(i, t, "train", passes):
                optimizer.zero_grad()
                cross_entropy(net, i, batch).backward()
                optimizer.step()
            sgd(net, i, t, LR, parameters=net.adapter())
        shared = mean_of(nets).theta()
        for net in nets:
            net.load_theta(shared)
    assert_equal_nets(method.play(), nets)


def test_ditto():
    """L + λ/2 ‖v_i − w‖² with the w that was received."""
    weight = 0.8
    method = ours("ditto", proximal_weight=weight)
    shared, own = method.start(), [method.start() for _ in CLIENTS]
    for t in range(1, ROUNDS + 1):
        for i, v in enumerate(own):
            sgd(v, i, t, LR, penalty=lambda v=v, w=shared: weight / 2 * distance(v, w))
        shared = mean_of([sgd(copy.deepcopy(shared), i, t, LR) for i in CLIENTS])
    assert_equal_nets(method.play(), own)


def test_per_fedavg():
    """φ − β ∇L(φ − α ∇L(φ; B); B'), first order, for each pair of batches; then one step of α.

    All clients here have an even number of batches.
    """
    inner = 0.2
    method = ours("per_fedavg", inner_lr=inner)
    shared = method.start()
    for t in range(1, ROUNDS + 1):
        local = []
        for i in CLIENTS:
            net, batches = copy.deepcopy(shared), batches_of(i, t, "train")
            assert len(batches) % 2 == 0
            for first, second in zip(batches[::2], batches[1::2], strict=True):
                ahead = moved(net, slopes_of(net, i, first), inner)
                net = moved(net, slopes_of(ahead, i, second), LR)
            local.append(net)
        shared = mean_of(local)
    adapted = [
        moved(shared, slopes_of(shared, i, batches_of(i, ROUNDS, "evaluate")[0]), inner)
        for i in CLIENTS
    ]
    assert_equal_nets(method.play(), adapted)


def test_pfedme():
    """For each batch K steps on L + λ/2 ‖θ − w‖² + μ/2 ‖θ‖²; then w ← w − η λ (w − θ)."""
    weight, decay, outer, steps, beta = 3.0, 0.01, 0.1, 4, 0.6
    method = ours(
        "pfedme",
        proximal_weight=weight,
        inner_decay=decay,
        outer_lr=outer,
        inner_steps=steps,
        server_rate=beta,
    )
    shared, own = method.start(), [method.start() for _ in CLIENTS]
    for t in range(1, ROUNDS + 1):
        local = []
        for i in CLIENTS:
            inner, w = copy.deepcopy(shared), copy.deepcopy(shared)
            for batch in batches_of(i, t, "train"):
                optimizer = torch.optim.SGD(inner.parameters(), lr=LR)
                for _ in range(steps):
                    optimizer.zero_grad()
                    size = sum(p.square().sum() for p in inner.parameters())
                    pull = weight / 2 * distance(inner, w) + decay / 2 * size
                    (cross_entropy(inner, i, batch) + pull).backward()
                    optimizer.step()
                with torch.no_grad():
                    for mine, theirs in zip(w.parameters(), inner.parameters(), strict=True):
                        mine -= outer * weight * (mine - theirs)
            own[i] = inner
            local.append(w)
        shared = mean_of([shared, mean_of(local)], (1 - beta, beta))
    assert_equal_nets(method.play(), own)


def test_apple():
    """φ_i = Σ_j p_ij c_j; autograd by c_i, at N η, and by p_i with its pull to p⁰."""
    rate, weight = 0.02, 0.5
    method = ours("apple", relation_lr=rate, prior_weight=weight, prior_share=1.0)
    count, prior = len(CLIENTS), torch.tensor(WEIGHTS, dtype=torch.float64)
    cores, relations = [method.start() for _ in CLIENTS], [prior.clone() for _ in CLIENTS]

    def mixed(p, nets):
        """By name, with the graph to p and to every net."""
        named = [dict(net.named_parameters()) for net in nets]
        return {n: sum(p[j] * named[j][n] for j in range(count)) for n in named[0]}

    for r in range(ROUNDS):
        decay, trained = 0.001 ** (r / ROUNDS), []
        for i in CLIENTS:
            mine, p, data = [copy.deepcopy(core) for core in cores], relations[i].clone(), Data(i)
            for batch in batches_of(i, r + 1, "train"):
                p.requires_grad_()
                logits = torch.func.functional_call(mine[i], mixed(p, mine), (data.inputs[batch],))
                loss = torch.nn.functional.cross_entropy(logits, data.labels[batch])
                pull = decay * weight * (p - prior).square().sum()
                (by_p,) = torch.autograd.grad(loss + pull, [p], retain_graph=True)
                slopes = torch.autograd.grad(loss, list(mine[i].parameters()))
                mine[i] = moved(mine[i], slopes, count * LR)
                p = p.detach() - rate * by_p
            relations[i] = p
            trained.append(mine[i])
        cores = trained
    expected = [mean_of(cores, p.tolist()) for p in relations]
    assert_equal_nets(method.play(), expected)
