"""Two rounds of methods, once more in plain PyTorch: modules, autograd and `torch.optim.SGD`.

An own derivation from the papers' algorithms, not anybody's code, on clients whose LoRAs have
targets (`tests/product_task.py`), in float64.
"""

import copy

import torch

from pfedseq.methods import METHODS
from tests.product_task import (
    EXACT,
    LoRA,
    averaged,
    descend,
    loss_of,
    product_of,
    products,
    run_two_rounds,
)

LR, STEPS, ROUNDS = 0.05, 2, 2


def start(setup):
    return LoRA(setup.initial.adapter, setup.initial.head)


def local_steps(model, task, parameters=None, penalty=lambda model: 0.0, steps=STEPS, lr=LR):
    """Plain SGD on the client's loss and a penalty."""
    moving = list(model.parameters()) if parameters is None else parameters
    descend(moving, lambda: loss_of(task, model.product(), model.head) + penalty(model), steps, lr)
    return model


def distance(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return sum((mine - theirs.detach()).square().sum() for mine, theirs in pairs)


def assert_same(setup, found, models):
    for phi, model in zip(found, models, strict=True):
        torch.testing.assert_close(product_of(setup, phi), model.product().detach(), **EXACT)
        torch.testing.assert_close(phi.head, model.head.detach(), **EXACT)


def ours(name, **options):
    tasks, setup = products(1)
    config = METHODS[name].config(lr=LR, **options)
    return run_two_rounds(name, config, tasks, setup), tasks, setup


def test_local():
    found, tasks, setup = ours("local")
    assert_same(
        setup, found, [local_steps(start(setup), task, steps=ROUNDS * STEPS) for task in tasks]
    )


def test_fedavg():
    found, tasks, setup = ours("fedavg")
    shared = start(setup)
    for _ in range(ROUNDS):
        trained = [local_steps(copy.deepcopy(shared), task) for task in tasks]
        shared.load_state_dict(averaged(trained, setup.num_examples))
    assert_same(setup, found, [shared] * len(tasks))


def test_fedprox():
    mu = 0.7
    found, tasks, setup = ours("fedprox", proximal_weight=mu)
    shared = start(setup)
    for _ in range(ROUNDS):
        received = copy.deepcopy(shared)
        trained = [
            local_steps(
                copy.deepcopy(shared), task, penalty=lambda m, r=received: mu / 2 * distance(m, r)
            )
            for task in tasks
        ]
        shared.load_state_dict(averaged(trained, setup.num_examples))
    assert_same(setup, found, [shared] * len(tasks))


def test_fedrep():
    found, tasks, setup = ours("fedrep")
    shared, heads = start(setup), [setup.initial.head for _ in tasks]
    for _ in range(ROUNDS):
        trained = []
        for i, task in enumerate(tasks):
            model = copy.deepcopy(shared)
            model.head.data = heads[i].clone()
            local_steps(model, task, [model.head])
            local_steps(model, task, [model.A, model.B])
            heads[i] = model.head.detach().clone()
            trained.append(model)
        shared.load_state_dict(averaged(trained, setup.num_examples))
    expected = []
    for head in heads:
        expected.append(copy.deepcopy(shared))
        expected[-1].head.data = head
    assert_same(setup, found, expected)


def test_ditto():
    weight = 0.8
    found, tasks, setup = ours("ditto", proximal_weight=weight)
    shared, own = start(setup), [start(setup) for _ in tasks]
    for _ in range(ROUNDS):
        received = copy.deepcopy(shared)
        trained = [local_steps(copy.deepcopy(shared), task) for task in tasks]
        for mine, task in zip(own, tasks, strict=True):
            local_steps(mine, task, penalty=lambda m, r=received: weight / 2 * distance(m, r))
        shared.load_state_dict(averaged(trained, setup.num_examples))
    assert_same(setup, found, own)


def test_per_fedavg():
    """Of two batches the first adapts, the second gives the first-order gradient."""
    inner = 0.03
    found, tasks, setup = ours("per_fedavg", inner_lr=inner)
    shared = start(setup)
    for _ in range(ROUNDS):
        trained = []
        for task in tasks:
            model = copy.deepcopy(shared)
            ahead = local_steps(copy.deepcopy(model), task, steps=1, lr=inner)
            loss = loss_of(task, ahead.product(), ahead.head)
            slopes = torch.autograd.grad(loss, list(ahead.parameters()))
            with torch.no_grad():
                for parameter, slope in zip(model.parameters(), slopes, strict=True):
                    parameter -= LR * slope
            trained.append(model)
        shared.load_state_dict(averaged(trained, setup.num_examples))
    adapted = [local_steps(copy.deepcopy(shared), task, steps=1, lr=inner) for task in tasks]
    assert_same(setup, found, adapted)


def test_pfedme():
    """For each batch K steps on L + λ/2 ‖θ − w‖² + μ/2 ‖θ‖²; then w ← w − η λ (w − θ)."""
    weight, decay, outer, steps = 3.0, 0.01, 0.1, 4
    found, tasks, setup = ours(
        "pfedme", proximal_weight=weight, inner_decay=decay, outer_lr=outer, inner_steps=steps
    )
    shared, own = start(setup), [start(setup) for _ in tasks]
    for _ in range(ROUNDS):
        trained = []
        for i, task in enumerate(tasks):
            inner, w = copy.deepcopy(shared), copy.deepcopy(shared)
            for _ in range(STEPS):

                def penalty(model, near=w):
                    size = sum(p.square().sum() for p in model.parameters())
                    return weight / 2 * distance(model, near) + decay / 2 * size

                local_steps(inner, task, penalty=penalty, steps=steps)
                with torch.no_grad():
                    for mine, theirs in zip(w.parameters(), inner.parameters(), strict=True):
                        mine -= outer * weight * (mine - theirs)
            own[i] = inner
            trained.append(w)
        shared.load_state_dict(averaged(trained, setup.num_examples))
    assert_same(setup, found, own)


def test_apple():
    """φ_i = Σ_j p_ij c_j; autograd by c_i, at N η, and by p_i with its pull to p⁰."""
    relation_lr, weight = 0.02, 0.5
    found, tasks, setup = ours(
        "apple", relation_lr=relation_lr, prior_weight=weight, prior_share=1.0
    )
    count, sizes = len(tasks), torch.tensor(setup.num_examples, dtype=torch.float64)
    prior = sizes / sizes.sum()
    cores = [start(setup) for _ in tasks]
    relations = [prior.clone() for _ in tasks]

    def mixed(p, models):
        parts = [list(model.parameters()) for model in models]
        a, b, head = (sum(p[j] * parts[j][k] for j in range(count)) for k in range(len(parts[0])))
        return b @ a, head

    for r in range(ROUNDS):
        decay = 0.001 ** (r / ROUNDS)
        trained = []
        for i, task in enumerate(tasks):
            mine = [copy.deepcopy(core) for core in cores]
            p = relations[i].clone()
            for _ in range(STEPS):
                p.requires_grad_()
                loss = loss_of(task, *mixed(p, mine))
                pull = decay * weight * (p - prior).square().sum()
                (by_p,) = torch.autograd.grad(loss + pull, [p], retain_graph=True)
                slopes = torch.autograd.grad(loss, list(mine[i].parameters()))
                with torch.no_grad():
                    for parameter, slope in zip(mine[i].parameters(), slopes, strict=True):
                        parameter -= count * LR * slope
                p = p.detach() - relation_lr * by_p
            relations[i] = p
            trained.append(mine[i])
        cores = trained
    for phi, p in zip(found, relations, strict=True):
        product, head = mixed(p, cores)
        torch.testing.assert_close(product_of(setup, phi), product.detach(), **EXACT)
        torch.testing.assert_close(phi.head, head.detach(), **EXACT)
