"""Newer methods once more in plain PyTorch, over several rounds.

An own derivation from the papers, not anybody's code, in float64 (`tests/small_problem.py`).
FedProx is in `test_rederived.py`; FedDPA-T, FedALT and FLoRAL are in `test_newer.py`.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.small_problem import (
    BATCH,
    CLASSES,
    CLIENTS,
    LAYERS,
    SIZES,
    WEIGHTS,
    WIDTH,
    Data,
    Federation,
    assert_equal_functions,
    assert_equal_nets,
    batches_of,
    cross_entropy,
    features,
    mean_of,
    sgd,
)

LR, ROUNDS = 0.3, 4


def ours(name, rounds=ROUNDS, **options):
    return Federation(name, rounds, options={"lr": LR, **options})


def flat(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def of_flat(vector, like):
    net = copy.deepcopy(like)
    nn.utils.vector_to_parameters(vector.clone(), net.parameters())
    return net


def mean(vectors):
    return sum(w * v for w, v in zip(WEIGHTS, vectors, strict=True))


def test_scaffold():
    """Option II as the paper writes it: c_i ← c_i − c + (x − y_i) / (K η)."""
    method = ours("scaffold")
    x = method.start()
    controls = [torch.zeros_like(flat(x)) for _ in CLIENTS]
    for t in range(1, ROUNDS + 1):
        common, ends, received = mean(controls), [], flat(x)
        for i in CLIENTS:
            y = copy.deepcopy(x)
            correction = common - controls[i]
            sgd(y, i, t, LR, penalty=lambda y=y, c=correction: parameters_of(y) @ c)
            steps = len(batches_of(i, t, "train"))
            controls[i] = controls[i] - common + (received - flat(y)) / (steps * LR)
            ends.append(flat(y))
        x = of_flat(mean(ends), x)
    assert_equal_nets(method.play(), [x] * len(CLIENTS), rtol=1e-11, atol=1e-12)


def parameters_of(net):
    """With their graph: the gradient of ⟨φ, c⟩ is c."""
    return torch.cat([p.flatten() for p in net.parameters()])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_fedavgm(nesterov, rate):
    """The mean update is minus a gradient for PyTorch's SGD with momentum."""
    momentum = 0.6
    method = ours("fedavgm", server_momentum=momentum, server_lr=rate, server_nesterov=nesterov)
    x = method.start()
    sent = flat(x).requires_grad_()
    server = torch.optim.SGD([sent], lr=rate, momentum=momentum, nesterov=nesterov)
    for t in range(1, ROUNDS + 1):
        ends = [flat(sgd(of_flat(sent.detach(), x), i, t, LR)) for i in CLIENTS]
        sent.grad = sent.detach() - mean(ends)
        server.step()
    assert_equal_nets(method.play(), [of_flat(sent.detach(), x)] * len(CLIENTS))


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_fedadam_and_fedyogi(kind):
    """Algorithm 2 of Reddi et al., from v = τ² and without a correction of the moments."""
    rate, first, second, tau = 0.2, 0.7, 0.9, 0.05
    method = ours(
        "fedadam",
        server_optimizer=kind,
        server_lr=rate,
        server_momentum=first,
        server_decay=second,
        server_epsilon=tau,
    )
    net = method.start()
    x, m, v = flat(net), torch.zeros_like(flat(net)), torch.full_like(flat(net), tau**2)
    for t in range(1, ROUNDS + 1):
        ends = [flat(sgd(of_flat(x, net), i, t, LR)) for i in CLIENTS]
        delta = mean([end - x for end in ends])
        m = first * m + (1 - first) * delta
        if kind == "adam":
            v = second * v + (1 - second) * delta**2
        else:
            v = v - (1 - second) * delta**2 * torch.sign(v - delta**2)
        x = x + rate * m / (v.sqrt() + tau)
    assert_equal_nets(method.play(), [of_flat(x, net)] * len(CLIENTS))


@pytest.mark.parametrize("window", [1, 2])
def test_ghbm(window):
    """Each of J steps is −η g − β m / J with m = (φ^{t−τ} − φ^t) / τ, zero before there is one."""
    beta, rounds = 0.7, 5
    method = ours("ghbm", rounds, server_momentum=beta, server_window=window)
    net = method.start()
    models = [flat(net)]
    for t in range(1, rounds + 1):
        now = models[-1]
        m = (models[-1 - window] - now) / window if len(models) > window else 0.0 * now
        ends = []
        for i in CLIENTS:
            y, batches = of_flat(now, net), batches_of(i, t, "train")
            for batch in batches:
                slopes = torch.autograd.grad(cross_entropy(y, i, batch), list(y.parameters()))
                slope = nn.utils.parameters_to_vector(slopes)
                y = of_flat(flat(y) - LR * slope - beta * m / len(batches), net)
            ends.append(flat(y))
        models.append(mean(ends))
    assert_equal_nets(method.play(), [of_flat(models[-1], net)] * len(CLIENTS))


@pytest.mark.parametrize("passes", [1, 2])
def test_fedrod(passes):
    """Generic logits + log n_c in the generic loss; then the personal head on generic + personal.

    Client 0 lacks a class: its logit is lowered by log 10⁻¹².
    """
    method = ours("fedrod", head_epochs=passes)
    counts = [torch.bincount(Data(i).labels, minlength=CLASSES).double() for i in CLIENTS]
    assert any((n == 0).any() for n in counts)
    assert any((n > 0).all() for n in counts)
    shared = method.start()
    own = [nn.Linear(WIDTH, CLASSES).double() for _ in CLIENTS]
    for head in own:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    for t in range(1, ROUNDS + 1):
        local = []
        for i in CLIENTS:
            generic = copy.deepcopy(shared)
            sgd(generic, i, t, LR, shift=counts[i].clamp(min=1e-12).log())
            data, optimizer = Data(i), torch.optim.SGD(own[i].parameters(), lr=LR)
            for batch in batches_of(i, t, "train", passes):
                f = features(data.inputs[batch], generic.products()).detach()
                optimizer.zero_grad()
                logits = generic.head(f).detach() + own[i](f)
                F.cross_entropy(logits, data.labels[batch]).backward()
                optimizer.step()
            local.append(generic)
        shared = mean_of(local)
    expected = [copy.deepcopy(shared) for _ in CLIENTS]
    for net, head in zip(expected, own, strict=True):
        net.head.weight.data += head.weight.data
        net.head.bias.data += head.bias.data
    assert_equal_nets(method.play(), expected)


def test_fedsa_lora():
    """All of A, B and the head are trained; only A is averaged."""
    method = ours("fedsa_lora")
    nets = [method.start() for _ in CLIENTS]
    for t in range(1, ROUNDS + 1):
        for i, net in enumerate(nets):
            sgd(net, i, t, LR)
        for k in range(LAYERS):
            common = mean([net.A[k].detach() for net in nets])
            for net in nets:
                net.A[k].data = common.clone()
    assert_equal_nets(method.play(), nets)


def test_ffa_lora():
    """A keeps its first value; B and the head are FedAvg's."""
    method = ours("ffa_lora")
    shared = method.start()
    for t in range(1, ROUNDS + 1):
        local = [copy.deepcopy(shared) for _ in CLIENTS]
        for i, net in enumerate(local):
            sgd(net, i, t, LR, parameters=[*net.B, *net.head.parameters()])
        shared = mean_of(local)
    found = method.play()
    assert_equal_nets(found, [shared] * len(CLIENTS))
    for k, first in enumerate(method.start().A):
        assert torch.equal(found[0].A[k], first)


@pytest.mark.parametrize("ranks", [(), (1, 3, 2)])
def test_flexlora(ranks):
    """The server's dense mean of B_i A_i, its singular vectors, and each client's own r of them.

    In round 1 a client of a lower rank is sent the first rows of A⁰ and columns of B⁰. Factors are
    unique up to the signs of singular vectors, which training does not see: products are compared.
    """
    rank = 3
    method = Federation("flexlora", ROUNDS, rank=rank, options={"lr": LR, "ranks": ranks})
    ranks, start = ranks or (rank,) * len(CLIENTS), method.start()
    factors = [(a.detach(), b.detach()) for a, b in zip(start.A, start.B, strict=True)]
    head = start.head
    for t in range(1, ROUNDS + 1):
        local = []
        for i, r in enumerate(ranks):
            net = type(start)(r)
            for k, (a, b) in enumerate(factors):
                net.A[k].data, net.B[k].data = a[:r].clone(), b[:, :r].clone()
            net.head.load_state_dict(head.state_dict())
            local.append(sgd(net, i, t, LR))
        factors = []
        for k in range(LAYERS):
            u, s, v = torch.linalg.svd(mean([net.products()[k].detach() for net in local]))
            factors.append((v[:rank], u[:, :rank] * s[:rank]))
        head = copy.deepcopy(head)
        head.weight.data = mean([net.head.weight.data for net in local])
        head.bias.data = mean([net.head.bias.data for net in local])
    products = [[b[:, :r] @ a[:r] for a, b in factors] for r in ranks]
    assert_equal_functions(method.play(), products, [head] * len(CLIENTS))


def test_the_problem_tells_clients_batches_and_weights_apart():
    """What makes the comparisons sharp: several batches, uneven sizes, a small last batch."""
    assert len(set(SIZES)) == len(SIZES)
    lengths = [[len(batch) for batch in batches_of(i, 1, "train")] for i in CLIENTS]
    assert lengths == [[4, 1], [4, 4], [4, 4, 4, 2]]
    assert BATCH == 4
    assert not torch.equal(*(torch.cat(batches_of(2, t, "train")) for t in (1, 2)))
