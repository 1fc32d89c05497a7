"""Where two methods must be one: each with the part that sets it apart taken out."""

import pytest
import torch

from pfedseq.engines.local import LocalClients
from pfedseq.methods import METHODS
from tests.toys import make_setup, personal_models, play, quadratic_federation, random_centers

CENTERS = random_centers(3)
SIZES = (4, 2, 3)
LR = 0.1
ROUNDS = 4


def results(server, clients):
    """What each client would deploy."""
    down = {i: server.payload(i) for i in clients.ids}
    return personal_models(clients, ROUNDS, down)


def play_changed(name, change, **options):
    """A whole run of a method whose server `change` has been at before round 1."""
    method, config = METHODS[name], METHODS[name].config(lr=LR, **options)
    clients = LocalClients(
        method.client, config, quadratic_federation(CENTERS, SIZES, num_batches=2)
    )
    server = method.server(config, make_setup(CENTERS, SIZES, ROUNDS))
    change(server)
    for t in range(1, ROUNDS + 1):
        server.run_round(t, clients)
    return results(server, clients)


@pytest.fixture(scope="module")
def local():
    method = METHODS["local"]
    server, clients = play(method, method.config(lr=LR), CENTERS, SIZES, ROUNDS, num_batches=2)
    return results(server, clients)


def assert_equal_runs(one, other):
    for i in one:
        torch.testing.assert_close(one[i].adapter, other[i].adapter)
        torch.testing.assert_close(one[i].head, other[i].head)


def only_itself(server):
    """Raw weights 1 for the client itself and 0 for the others, in every layer."""
    for i, network in enumerate(server.hypernets):
        with torch.no_grad():
            network.heads.weight.zero_()
            network.heads.bias.zero_().view(network.shape)[:, i] = 1.0


def nobody(server):
    """Raw weights below zero: every row falls back to the client itself."""
    for network in server.hypernets:
        with torch.no_grad():
            network.heads.weight.zero_()
            network.heads.bias.fill_(-1.0)


@pytest.mark.parametrize("change", [only_itself, nobody])
def test_pfedla_with_one_hot_weights_is_local(change, local):
    assert_equal_runs(play_changed("pfedla", change), local)


def test_pfedla_as_it_is_is_not_local(local):
    mixed = play_changed("pfedla", lambda server: None)
    assert not torch.allclose(mixed[0].adapter, local[0].adapter, atol=1e-2)


def test_heads_are_tuned_together_with_the_adapter_as_in_local(local):
    """On a quadratic loss θ and ω do not meet, so all that keep ω local end with Local's ω."""
    for name in ("pfedhn", "pfedla", "pefll"):
        for i, phi in play_changed(name, lambda server: None).items():
            torch.testing.assert_close(phi.head, local[i].head)


def test_perada_without_distillation_is_ditto_with_twice_the_pull():
    """Ditto's server weighs by |D_i| and PerAda's does not: they meet where all |D_i| are equal."""
    equal, runs = (3, 3, 3), {}
    options = {"ditto": {"proximal_weight": 0.6}, "perada": {"proximal_weight": 0.3}}
    options["perada"]["distillation_steps"] = 0
    for name, own in options.items():
        config = METHODS[name].config(lr=LR, **own)
        server, clients = play(METHODS[name], config, CENTERS, equal, ROUNDS, num_batches=2)
        runs[name] = results(server, clients)
    assert_equal_runs(runs["perada"], runs["ditto"])


def test_pfedhn_and_pefll_do_not_move_where_the_hypernetwork_may_not():
    """With a vanishing rate every client starts each round from θ^0."""
    for name in ("pfedhn", "pefll"):
        for phi in play_changed(name, lambda server: None, hypernet_lr=1e-30).values():
            torch.testing.assert_close(phi.adapter, torch.zeros(2, 5))


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("perada", {"proximal_weight": 0.1, "distillation_steps": 100, "distillation_lr": 0.005}),
        ("pfedhn", {"hypernet_lr": 1e-3, "hidden_dim": 100, "max_grad_norm": 50.0}),
        ("pfedla", {"hypernet_lr": 1e-3, "hidden_dim": 100}),
        ("pefll", {"hypernet_lr": 1e-3, "hidden_dim": 100, "max_grad_norm": 50.0}),
    ],
)
def test_defaults_are_the_papers(name, defaults):
    """Appendix B; the bound of 50 is the originals'."""
    config = METHODS[name].config()
    assert {key: getattr(config, key) for key in defaults} == defaults
    assert config.local_epochs == 1
