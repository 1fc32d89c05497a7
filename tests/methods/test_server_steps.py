"""What servers make of the mean, against PyTorch's SGD and formulas worked by hand."""

import pytest
import torch
from pydantic import ValidationError

from pfedseq.federation import MethodConfig
from pfedseq.methods import METHODS
from pfedseq.methods.parts.server_steps import AveragingConfig, PastModels, ServerStep
from tests.toys import play, random_centers

START = torch.tensor([1.0, -2.0])
DELTAS = [torch.tensor(x) for x in ([0.5, -1.0], [0.25, 3.0], [-1.0, 0.5], [2.0, 0.125])]


def walk(deltas=DELTAS, **options):
    """x after each round in which the mean lies `delta` away from it."""
    step, x, path = ServerStep(AveragingConfig(**options), START), START, []
    for delta in deltas:
        x = step(x, x + delta)
        path.append(x)
    return path


def test_plain_is_the_mean_itself():
    step, mean = ServerStep(AveragingConfig(), START), torch.tensor([3.0, 4.0])
    assert step(START, mean) is mean
    assert not dict(step.named_buffers())
    assert ServerStep(MethodConfig(), START)(START, mean) is mean


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_pytorchs_on_the_negative_update(nesterov):
    x = START.clone().requires_grad_()
    reference = torch.optim.SGD([x], lr=0.3, momentum=0.7, nesterov=nesterov)
    found = walk(server_lr=0.3, server_momentum=0.7, server_nesterov=nesterov)
    for delta, ours in zip(DELTAS, found, strict=True):
        x.grad = -delta
        reference.step()
        torch.testing.assert_close(ours, x.detach())


def test_a_rate_alone_goes_a_part_of_the_way():
    torch.testing.assert_close(walk(server_lr=0.5)[0], START + 0.5 * DELTAS[0])


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adam_and_yogi_by_hand(kind):
    """Number by number: m, u and x of Algorithm 2 of Reddi et al., from u = ε²."""
    beta, decay, epsilon, rate = 0.9, 0.8, 0.1, 0.5
    options = {"server_momentum": beta, "server_decay": decay, "server_epsilon": epsilon}
    found = walk(server_optimizer=kind, server_lr=rate, **options)
    for entry in range(2):
        x, m, u = float(START[entry]), 0.0, epsilon**2
        for delta, ours in zip(DELTAS, found, strict=True):
            d = float(delta[entry])
            m = 0.9 * m + 0.1 * d
            if kind == "adam":
                u = 0.8 * u + 0.2 * d * d
            elif u > d * d:
                u = u - 0.2 * d * d
            else:
                u = u + 0.2 * d * d
            x = x + rate * m / (u**0.5 + epsilon)
            assert float(ours[entry]) == pytest.approx(x, rel=1e-5)


def test_ghbm_over_one_round_is_momentum():
    for ours, theirs in zip(
        walk(server_optimizer="ghbm", server_window=1, server_momentum=0.6),
        walk(server_momentum=0.6),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_ghbm_looks_back_over_its_window_and_goes_on_in_that_direction():
    """τ = 2, β = 0.5, every Δ = 1 from x⁰ = 0.

    x¹ = 1 and x² = 2 without m. Then m = (x⁰ − x²) / 2 = −1: x³ = 2 + 1 + 0.5 = 3.5; and
    m = (x¹ − x³) / 2 = −1.25: x⁴ = 3.5 + 1 + 0.625 = 5.125.
    """
    config = AveragingConfig(server_optimizer="ghbm", server_window=2, server_momentum=0.5)
    x = torch.zeros(1)
    step, path = ServerStep(config, x), []
    for _ in range(4):
        x = step(x, x + 1)
        path.append(float(x))
    assert path == [1, 2, 3.5, 5.125]


def test_past_models_are_those_of_tau_rounds_ago():
    past = PastModels(3, torch.zeros(1))
    for t in range(7):
        x = torch.tensor([float(t * t)])
        expected = 0.0 if t < 3 else ((t - 3) ** 2 - t * t) / 3
        assert float(past.momentum(x)) == pytest.approx(expected)
        past.append(x)


def test_nesterov_without_momentum_is_refused():
    for options in ({}, {"server_momentum": 0.5, "server_optimizer": "adam"}):
        with pytest.raises(ValidationError, match="server_nesterov is a form of momentum"):
            AveragingConfig(server_nesterov=True, **options)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep", "per_fedavg", "fedala", "fedprox"])
def test_every_averaging_method_has_them(name):
    """Two rounds with a momentum of 0.5: x² − x¹ is the round's own step and half of x¹ − x⁰."""
    centers, sizes = random_centers(2), (1, 3)
    method = METHODS[name]
    first, _ = play(method, method.config(lr=0.1), centers, sizes, 1)
    moved, _ = play(method, method.config(lr=0.1, server_momentum=0.5), centers, sizes, 2)
    plain, _ = play(method, method.config(lr=0.1), centers, sizes, 2)
    torch.testing.assert_close(moved.adapter, plain.adapter + 0.5 * first.adapter)


AVERAGING = [n for n, method in METHODS.items() if issubclass(method.config, AveragingConfig)]


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize(
    "options",
    [
        {"server_momentum": 0.5},
        {"server_optimizer": "yogi"},
        {"server_optimizer": "ghbm", "server_momentum": 0.5, "server_window": 1},
        {"server_lr": 0.5},
    ],
)
def test_no_method_takes_the_options_and_ignores_them(name, options):
    """After two rounds everyone is sent something else than without the option."""
    method, centers = METHODS[name], random_centers(2, adapter_dim=10)
    plain = {"server_optimizer": "sgd", "server_momentum": 0.0, "server_lr": 1.0}
    sent = []
    for given in ({}, options):
        server, _ = play(method, method.config(lr=0.1, **plain | given), centers, (1, 3), 2)
        sent.append(server.payload(0))
    key = "lora_a" if name == "fedsa_lora" else "adapter"
    assert not torch.allclose(sent[0][key], sent[1][key], rtol=1e-3)


def test_methods_that_do_not_step_towards_a_mean_have_no_such_options():
    without = {"perada", "pfedme", "flexlora", "fedalt", "local", "apple"}
    assert not without & set(AVERAGING)
    for name in without:
        with pytest.raises(ValidationError, match="server_optimizer"):
            METHODS[name].config(server_optimizer="adam")


def test_fedadam_and_fedavgm_are_fedavg_with_these_options():
    centers, sizes = random_centers(2), (1, 3)
    for name, options in (
        ("fedavgm", {"server_momentum": 0.9}),
        ("fedadam", {"server_optimizer": "adam", "server_lr": 0.01, "server_momentum": 0.9}),
    ):
        ours, _ = play(METHODS[name], METHODS[name].config(lr=0.1), centers, sizes, 3)
        config = METHODS["fedavg"].config(lr=0.1, **options)
        theirs, _ = play(METHODS["fedavg"], config, centers, sizes, 3)
        assert torch.equal(ours.adapter, theirs.adapter)
        assert torch.equal(ours.head, theirs.head)


def test_the_frozen_pfedseq_with_momentum_is_momentum_of_the_mean_adapter():
    """η = 0.5, one batch: each client goes half of the way to its center from where it starts.

    Without a learner all have the same x: mean = x + ½ (c̄ − x), Δ = ½ (c̄ − x), v ← ½ v + Δ.
    """
    centers, sizes = random_centers(2), (1, 3)
    method = METHODS["pfedseq"]
    options = {"ablation": "frozen", "warmup_rounds": 1, "server_momentum": 0.5}
    server, _ = play(method, method.config(lr=0.5, **options), centers, sizes, 4)
    target = 0.25 * centers[0].adapter + 0.75 * centers[1].adapter
    x = v = torch.zeros_like(target)
    for _ in range(4):
        v = 0.5 * v + 0.5 * (target - x)
        x = x + v
    torch.testing.assert_close(server.shared, x)
    torch.testing.assert_close(server.payload(1)["adapter"], x)
