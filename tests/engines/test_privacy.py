"""Private updates: the clipping, the noise, and the bound that the accountant gives."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from pfedseq.engines.local import LocalClients
from pfedseq.engines.payload import bases, unpack
from pfedseq.engines.privacy import Privacy, PrivacyConfig
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.params import Params
from tests.toys import quadratic_federation, random_centers

SENT_TO_TOYS = {n: torch.full_like(x, 0.5) for n, x in random_centers(1)[0].tensors().items()}
SENT = {"adapter": torch.full((3, 4), 5.0), "head": torch.full((8,), 7.0)}


def sent(tensors, down=SENT, step="train", t=1, seed=0, method="fedavg", **config):
    """What clients 0 and 1 send in place of the same tensors."""
    privacy = Privacy.simulated(PrivacyConfig(**config), seed, method)
    return [privacy.applied(step, t, i, tensors, down) for i in (0, 1)]


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
    for other in ({"t": 2}, {"seed": 1}, {"method": "ditto"}):
        again = sent(zero, {}, clip=0.5, noise=3.0, **other)
        assert not torch.equal(first[0]["delta"], again[0]["delta"])


def test_what_is_no_update_is_refused():
    with pytest.raises(InputError, match="cannot be added with this method"):
        sent({"profile": torch.zeros(3)}, {}, noise=1.0)
    with pytest.raises(InputError, match="cannot be added with this method"):
        sent({"delta": torch.zeros(3)}, {}, step="describe", noise=1.0)
    assert sent({}, {}, step="receive", noise=1.0)[0] == {}


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


def test_with_any_other_data_in_their_place_an_update_moves_twice_as_far():
    """Two updates of length C at most lie 2 C apart at most, so σ counts half."""
    pytest.importorskip("opacus")
    config = PrivacyConfig(noise=8.0)
    assert config.epsilon(20, replace_one=True) == PrivacyConfig(noise=4.0).epsilon(20)
    assert config.epsilon(20, replace_one=True) > config.epsilon(20)


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


@pytest.mark.parametrize("engine", [LocalClients, WireClients])
@pytest.mark.parametrize("payload", ["float32", "int8"])
def test_every_engine_sends_the_clients_private_update(engine, payload):
    """What arrives is what one makes of the bare reply by hand, rounded as the payload says."""
    method, centers = METHODS["fedavg"], random_centers(2)
    config, down = method.config(lr=0.1), dict.fromkeys((0, 1), SENT_TO_TOYS)
    sites = quadratic_federation(centers, (2, 3))
    privacy = Privacy.simulated(PrivacyConfig(noise=0.5, clip=0.2), 7, "fedavg")
    bare = engine(method.client, config, sites).call("train", 4, down)
    noisy = engine(method.client, config, sites, privacy=privacy, payload=payload)
    for i, reply in noisy.call("train", 4, down).items():
        wanted = privacy.applied("train", 4, i, bare[i].tensors, SENT_TO_TOYS)
        got = unpack(reply.tensors, bases(Params.of(SENT_TO_TOYS), SENT_TO_TOYS))
        step = 0 if payload == "float32" else 0.01
        for name, tensor in wanted.items():
            assert (got[name] - tensor).abs().max() <= step
            assert not torch.allclose(tensor, bare[i].tensors[name], atol=1e-3)
    scores = noisy.call("evaluate", 4, down)
    assert scores[0].metrics["test_loss"] == pytest.approx(
        engine(method.client, config, sites).call("evaluate", 4, down)[0].metrics["test_loss"]
    )
