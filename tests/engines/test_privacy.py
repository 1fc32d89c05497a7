"""Private updates: the clipping, the noise, and the bound that the accountant gives."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from pfedseq.engines.privacy import PrivacyConfig, PrivateClients
from pfedseq.errors import InputError
from pfedseq.federation import Reply

SENT = {"adapter": torch.full((3, 4), 5.0), "head": torch.full((8,), 7.0)}


class Canned:
    ids = (0, 1)

    def __init__(self, tensors):
        self.tensors = tensors

    def call(self, step, t, down):
        return {i: Reply(self.tensors) for i in down}


def sent(tensors, down=SENT, step="train", t=1, seed=0, **config):
    clients = PrivateClients(Canned(tensors), PrivacyConfig(**config), seed)
    return {i: r.tensors for i, r in clients.call(step, t, {0: down, 1: down}).items()}


def test_a_long_update_is_cut_to_the_clip_over_all_tensors_together():
    """An update of 3 on 12 and of 4 on 8 numbers has the length √(12·9 + 8·16) = √236."""
    moved = {"adapter": SENT["adapter"] + 3, "head": SENT["head"] + 4}
    got = sent(moved, clip=2.0, noise=1e-9)[0]
    scale = 2 / math.sqrt(236)
    torch.testing.assert_close(got["adapter"], SENT["adapter"] + 3 * scale)
    torch.testing.assert_close(got["head"], SENT["head"] + 4 * scale)
    short = sent({"delta": torch.full((2, 2), 0.1)}, {}, clip=2.0, noise=1e-9)[0]
    torch.testing.assert_close(short["delta"], torch.full((2, 2), 0.1))


def test_the_noise_has_the_deviation_sigma_times_clip_and_is_nobody_elses():
    zero = {"delta": torch.zeros(200, 200)}
    first = sent(zero, {}, clip=0.5, noise=3.0)
    assert first[0]["delta"].std().item() == pytest.approx(1.5, rel=0.02)
    assert first[0]["delta"].mean().item() == pytest.approx(0, abs=0.03)
    assert not torch.equal(first[0]["delta"], first[1]["delta"])
    assert torch.equal(first[0]["delta"], sent(zero, {}, clip=0.5, noise=3.0)[0]["delta"])
    for other in ({"t": 2}, {"seed": 1}):
        again = sent(zero, {}, clip=0.5, noise=3.0, **other)
        assert not torch.equal(first[0]["delta"], again[0]["delta"])


def test_what_is_no_update_is_refused():
    with pytest.raises(InputError, match="cannot be added with this method"):
        sent({"profile": torch.zeros(3)}, {}, noise=1.0)
    with pytest.raises(InputError, match="cannot be added with this method"):
        sent({"delta": torch.zeros(3)}, {}, step="describe", noise=1.0)
    assert sent({}, {}, step="receive", noise=1.0)[0] == {}
    assert sent(SENT, step="evaluate", noise=1.0)[0] is SENT


def exact_epsilon(sigma, rounds, delta):
    """T Gaussian mechanisms of sensitivity 1 are one of σ/√T; its curve δ(ε) is known exactly."""
    mu = math.sqrt(rounds) / sigma

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def delta_of(epsilon):
        return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)

    low, high = 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 20), (30.0, 80)])
def test_epsilon_is_a_bound_and_a_near_one(noise, rounds):
    pytest.importorskip("opacus")
    epsilon = PrivacyConfig(noise=noise).epsilon(rounds)
    exact = exact_epsilon(noise, rounds, 1e-5)
    assert exact <= epsilon < 1.25 * exact


class Accountant:
    """In place of Opacus's: its bound is what it was asked, and a remark of no interest."""

    @staticmethod
    def compute_rdp(*, q, noise_multiplier, steps, orders):
        return [q * noise_multiplier * steps for _ in orders]

    @staticmethod
    def get_privacy_spent(*, orders, rdp, delta):
        assert len(orders) == len(rdp)
        return rdp[0] / delta, orders[0]


def test_the_accountant_is_asked_for_all_rounds_of_every_client(monkeypatch):
    """Nobody is left out of a round: q = 1."""
    analysis = SimpleNamespace(rdp=Accountant)
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", analysis)
    for package in ("opacus", "opacus.accountants"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    assert PrivacyConfig(noise=3.0, delta=0.5).epsilon(7) == 42.0


def test_without_noise_nothing_is_promised():
    assert PrivacyConfig().epsilon(80) is None
