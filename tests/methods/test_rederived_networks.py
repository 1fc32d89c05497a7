"""Methods whose server trains a network, once more in plain PyTorch, over several rounds.

An own derivation from the papers, not anybody's code, in float64 (`tests/small_problem.py`). A
client that trained θ_i to θ̃_i asks its network to come nearer: the server descends
½ ‖θ_i − θ̃_i‖² with θ̃_i fixed, whose gradient is −(∇θ_i)ᵀ Δ_i. The only thing that is taken from our
halves is what chance decided: the networks' first weights.
"""

import copy
from itertools import combinations
from statistics import median_low
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.learners.reference import reference_block
from tests.small_problem import (
    CLASSES,
    CLIENTS,
    EXACT,
    LAYERS,
    WEIGHTS,
    Data,
    Federation,
    assert_equal_nets,
    batches_of,
    sgd,
)

LR = 0.3


@pytest.fixture(autouse=True)
def _float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def trained(nets, thetas, t):
    """Every client trains the adapter it was sent, and its own head; θ̃ (N, K, D)."""
    for i, net in enumerate(nets):
        sgd(net.load_theta(thetas[i]), i, t, LR)
    return torch.stack([net.theta() for net in nets])


def with_adapters(nets, thetas):
    return [copy.deepcopy(net).load_theta(theta) for net, theta in zip(nets, thetas, strict=True)]


def come_nearer(thetas, targets):
    """½ ‖θ_i − θ̃_i‖², summed over clients."""
    return 0.5 * (thetas - targets).square().sum()


def clipped(parameters, most):
    """Scale a gradient to the length `most`, by hand; whether it was longer."""
    length = torch.cat([p.grad.flatten() for p in parameters]).norm()
    if length > most:
        for p in parameters:
            p.grad *= most / (length + 1e-6)
    return length > most


def mlp(generator, size):
    """A generator's network with the given first weights: four linear layers, and the heads."""
    layers = [p.detach().clone() for p in generator.parameters()]
    net = nn.Sequential()
    for place, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
        if 0 < place < 4:
            net.append(nn.ReLU())
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = weight, bias
        net.append(linear)
    assert len(net) == 8
    return nn.Sequential(*net, nn.Unflatten(1, size))


@pytest.mark.parametrize("most", [50.0, 0.05])
def test_pfedhn(most):
    """θ_i = h(v_i), Adam on the mean over clients of ½ ‖h(v_i) − θ̃_i‖², by h and every v_i."""
    options = {"lr": LR, "hypernet_lr": 0.02, "hidden_dim": 6, "max_grad_norm": most}
    ours = Federation("pfedhn", rounds=4, options=options)
    nets = [ours.start() for _ in CLIENTS]
    shape = nets[0].theta().shape
    h = mlp(ours.server.generator, shape)
    v = [nn.Parameter(one.detach().clone()) for one in ours.server.descriptors]
    learned = [*v, *h.parameters()]
    adam = torch.optim.Adam(learned, lr=0.02)
    cut = False
    for t in range(1, 5):
        targets = trained(nets, h(torch.stack(v)).detach(), t)
        adam.zero_grad()
        (come_nearer(h(torch.stack(v)), targets) / len(nets)).backward()
        cut |= clipped(learned, most)
        adam.step()
    assert cut == (most < 1)
    assert_equal_nets(ours.play(), with_adapters(nets, h(torch.stack(v)).detach()))


class Mixture(nn.Module):
    """One client's weights of all clients' adapters, layer by layer."""

    def __init__(self, initial):
        super().__init__()
        first = [p.detach().clone() for p in initial.parameters()]
        self.embedding = nn.Parameter(first[0])
        self.linears = nn.ModuleList()
        for weight, bias in zip(first[1::2], first[2::2], strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.weight.data, linear.bias.data = weight, bias
            self.linears.append(linear)
        assert len(self.linears) == 4

    def forward(self, pool):
        x = self.embedding
        for linear in self.linears:
            x = torch.relu(linear(x))
        raw = x.view(LAYERS, len(pool))
        assert (raw.sum(1) > 0).all()
        alpha = raw / raw.sum(1, keepdim=True)
        return torch.stack(
            [sum(alpha[k, j] * pool[j][k] for j in range(len(pool))) for k in range(LAYERS)]
        )


def test_pfedla():
    """θ_i^k = Σ_j α_ij^k θ_j^k; every client's own network takes an Adam step of its own.

    In round 1 all adapters are the same, so that weights that sum to 1 change nothing.
    """
    options = {"lr": LR, "hypernet_lr": 0.02, "hidden_dim": 6}
    ours = Federation("pfedla", rounds=4, options=options)
    nets = [ours.start() for _ in CLIENTS]
    mixtures = [Mixture(one) for one in ours.server.hypernets]
    adams = [torch.optim.Adam(m.parameters(), lr=0.02) for m in mixtures]
    pool = [net.theta() for net in nets]
    for t in range(1, 5):
        targets = trained(nets, [m(pool).detach() for m in mixtures], t)
        for i, (mixture, adam) in enumerate(zip(mixtures, adams, strict=True)):
            if t > 1:
                adam.zero_grad()
                come_nearer(mixture(pool), targets[i]).backward()
                adam.step()
        pool = list(targets)
    expected = with_adapters(nets, [m(pool).detach() for m in mixtures])
    # Adam divides by the gradient's own size, also where that is little more than rounding.
    assert_equal_nets(ours.play(), expected, rtol=1e-9, atol=1e-10)


def lenet(first):
    """f(x, y): the label as constant channels beside the image's three."""
    weights = [p.detach().clone() for p in first.parameters()]
    layers = [
        *(nn.Conv2d(3 + CLASSES, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, weights[-1].shape[0]),
    ]
    net = nn.Sequential(*layers)
    for parameter, weight in zip(net.parameters(), weights, strict=True):
        parameter.data = weight
    return net


def embedding(f, client, batch):
    data = Data(client)
    labels = F.one_hot(data.labels[batch], CLASSES).double()
    channels = labels[:, :, None, None].expand(-1, -1, 32, 32)
    return f(torch.cat([data.images[batch], channels], 1)).mean(0)


@pytest.mark.parametrize("most", [50.0, 0.02])
def test_pefll(most):
    """One graph from the images to every θ_i = h(f(D_i)), where ours is cut between two machines.

    v_i is of the first batch of the round before; what is tested has v_i of all the data.
    """
    options = {"lr": LR, "hypernet_lr": 0.01, "hidden_dim": 6, "max_grad_norm": most}
    ours = Federation("pefll", rounds=3, options=options)
    nets = [ours.start() for _ in CLIENTS]
    f, h = lenet(ours.server.f), mlp(ours.server.h, nets[0].theta().shape)
    learned = [*h.parameters(), *f.parameters()]
    adam = torch.optim.Adam(learned, lr=0.01)

    def described(t):
        firsts = [batches_of(i, t, "describe")[0] for i in CLIENTS]
        return torch.stack([embedding(f, i, batch) for i, batch in enumerate(firsts)])

    first = described(0).detach()
    shift, unit = first.mean(), (first - first.mean()).square().mean().sqrt()
    cut = False
    for t in range(1, 4):
        adam.zero_grad()
        thetas = h((described(t - 1) - shift) / unit)
        targets = trained(nets, thetas.detach(), t)
        (come_nearer(thetas, targets) / len(nets)).backward()
        cut |= clipped(learned, most)
        adam.step()
    assert cut == (most < 1)
    everything = [embedding(f, i, torch.arange(len(Data(i).labels))) for i in CLIENTS]
    thetas = h((torch.stack(everything) - shift) / unit)
    assert_equal_nets(ours.play(), with_adapters(nets, thetas.detach()))


LITERAL = {
    "learner_lr": 1e-3,
    "learner_eps": 1e-8,
    "signed": False,
    "zero_projections": False,
    "residual": "newest",
    "scale": "none",
    "gain": 1.0,
    "forgetting": 0.0,
    "history_clip": 0.0,
    "group_cosine": 0.0,
}
CHANGED = {"learner_lr": 1e-3, "gain": 3.0, "history_clip": 0.95, "forgetting": 0.2}


def clusters(headings, least):
    """Average linkage by hand: join the two closest clusters while their mean cosine allows it."""
    flat = [heading.flatten() / heading.norm() for heading in headings]
    found = [[i] for i in range(len(flat))]

    def closeness(pair):
        one, other = pair
        cosines = [float(flat[i] @ flat[j]) for i in one for j in other]
        return sum(cosines) / len(cosines)

    while len(found) > 1:
        one, other = max(combinations(found, 2), key=closeness)
        if closeness((one, other)) < least:
            break
        found = [c for c in found if c not in (one, other)] + [one + other]
    return found


GROUPED = {"group_cosine": 0.01, "gain": 3.0}


@pytest.mark.parametrize("options", [LITERAL, {}, CHANGED, {"residual": "newest"}, GROUPED])
def test_pfedseq(options, monkeypatch):
    """Algorithm 1 over six rounds with W = 2 and L = 3, for the paper's letter and the defaults.

    Round t, window Δ^{max(1, t−L) : t−1}: the learner is asked for Δ^t. Then Δ^{max(1, t−L+1) : t}
    gives ξ. Adam's ε and the forgetting are written out: ω_out ← (1 − φ) ω_out before its step.
    Headings are those of the first three rounds.
    """
    rounds, warmup, most, watched = 6, 2, 3, 3
    monkeypatch.setattr("pfedseq.methods.parts.groups.WATCHED", watched)
    ours = Federation(
        "pfedseq",
        rounds=rounds,
        options={"lr": LR, "warmup_rounds": warmup, "max_sequence_length": most, "state_dim": 4}
        | options,
    )
    config = ours.config
    nets = [ours.start() for _ in CLIENTS]
    model = ours.server.learner.model
    blocks = [
        SimpleNamespace(
            **{n: nn.Parameter(p.detach().clone()) for n, p in block.named_parameters()},
            **{n: b.detach().clone() for n, b in block.named_buffers()},
        )
        for block in model.blocks
    ]
    psi = [p for block in blocks for p in vars(block).values() if isinstance(p, nn.Parameter)]
    adam = torch.optim.Adam(psi, lr=config.learner_lr, eps=config.learner_eps)

    def calibrations(deltas):
        """ξ (N, K, D) of a list of Δ (N, K, D)."""
        found = []
        for k in range(LAYERS):
            rows = torch.stack([delta[:, k].T for delta in deltas], 1)  # (D, L, N)
            size = rows.square().mean((1, 2)).sqrt() if config.scale == "row" else torch.ones(1)
            stream = rows / size[:, None, None]
            for block in blocks:
                stream = stream + reference_block(stream, block, k, config.signed)
            emitted = stream[:, -1] - rows[:, -1] / size[:, None]
            xi = config.gain * size[:, None] * emitted
            found.append(xi + rows[:, -1] if config.residual == "newest" else xi)
        return torch.stack(found).permute(2, 0, 1)

    thetas = torch.stack([net.theta() for net in nets])
    lengths, past, bounded, grouped = [], [], False, False
    headings = torch.zeros_like(thetas)
    for t in range(1, rounds + 1):
        targets = trained(nets, thetas, t)
        delta = targets - thetas
        seen = delta.clone()
        for i in CLIENTS:
            for k in range(LAYERS):
                if lengths and config.history_clip:
                    usual = median_low([float(one[i, k]) for one in lengths[-most:]])
                    if delta[i, k].norm() > config.history_clip * usual:
                        seen[i, k] *= config.history_clip * usual / delta[i, k].norm()
                        bounded = True
        lengths.append(delta.norm(dim=2))
        if past:
            xi = calibrations(past[-most:])
            adam.zero_grad()
            come_nearer(xi, xi.detach() + seen).backward()
            with torch.no_grad():
                for block in blocks:
                    block.out_proj *= 1 - config.forgetting
            adam.step()
        past.append(seen)
        mean = sum(w * theta for w, theta in zip(WEIGHTS, targets, strict=True))
        thetas = mean.expand_as(targets).clone()
        if t <= watched:
            drawn = [target - mean for target in targets]
            headings = torch.stack([h + d / d.norm() for h, d in zip(headings, drawn, strict=True)])
        if t > warmup:
            wanted = config.group_cosine and t > watched
            for members in clusters(headings, config.group_cosine) if wanted else ():
                if len(members) > 1:
                    total = sum(WEIGHTS[i] for i in members)
                    thetas[members] = sum(WEIGHTS[i] / total * targets[i] for i in members)
                    grouped = True
            thetas = thetas + calibrations(past[-most:]).detach()
    assert bounded or options.get("history_clip", 1.5) > 0.95 or not config.history_clip
    assert grouped == (config.group_cosine > 0)
    assert (thetas[0] - thetas[1]).abs().max() > 1e-6
    found = ours.play()
    assert_equal_nets(found, with_adapters(nets, thetas))
    torch.testing.assert_close(ours.server.shared, mean, **EXACT)
