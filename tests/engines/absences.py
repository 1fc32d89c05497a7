"""A few rounds on toys with clients of which some are absent, and all that is remembered then."""

import torch

from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.federation import Client
from pfedseq.methods import METHODS
from pfedseq.runs.checkpoint import server_state
from tests.every_method import OPTIONS
from tests.toys import make_setup, quadratic_federation, random_centers

SIZES = (4, 2, 3, 5)
CENTERS = random_centers(len(SIZES), adapter_dim=10)
ROUNDS = 4
QUICK = {"perada": {"distillation_steps": 3}}


def build(name, centers=CENTERS, sizes=SIZES, wrap=None):
    """A server, its clients as `wrap` lets them through, and the engine itself."""
    method = METHODS[name]
    config = method.config(lr=0.1, **(OPTIONS | QUICK).get(name, {}))
    sites = quadratic_federation(centers, sizes, num_batches=2)
    clients = LocalClients(method.client, config, sites)
    server = method.server(config, make_setup(centers, sizes, ROUNDS))
    return server, wrap(clients) if wrap else clients, clients


def play(name, conditions, rounds=ROUNDS, **more):
    """The server, its engine and every round's outcome."""
    server, clients, engine = build(name, **more)
    outcomes = []
    run_rounds(server, clients, range(1, rounds + 1), outcomes.append, conditions=conditions)
    return server, engine, outcomes


def memories(server, engine, but=()):
    """All that server and clients remember, as one flat dict."""
    states = {
        f"{i}/{key}": value
        for i in engine.ids
        if i not in but
        for key, value in engine.states.get(i).items()
    }
    return server_state(server) | states


def assert_same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


class Passing:
    """An engine that lets all of another through."""

    def __init__(self, clients):
        self.clients, self.ids = clients, clients.ids
        self.participants, self.members = clients.participants, clients.members

    def call(self, step, t, down):
        return self.clients.call(step, t, down)


class Silent(Passing):
    """Client 2 is asked, but vanishes."""

    def vanishes(self, t, i):
        return i == 2

    def call(self, step, t, down):
        if step not in Client.reading_steps:
            down = {i: tensors for i, tensors in down.items() if not self.vanishes(t, i)}
        return super().call(step, t, down)
