"""What a run will cost, from a few measured steps: time, traffic, memory, disk.

Each method really runs three short rounds (the first, the second and the last) on a few batches of
every client, which is scaled up by the number of examples. What does not depend on the examples,
the server's work and the messages, is measured as it is; a history of updates is filled before the
last round, so that the learner's longest window is among what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from numpy.typing import NDArray

from pfedseq.data.dataset import ClientData
from pfedseq.engines.rounds import RoundOutcome, run_rounds
from pfedseq.engines.states import MemoryStates
from pfedseq.federation import Server, Tensors
from pfedseq.learners.history import History
from pfedseq.runs.checkpoint import server_state
from pfedseq.runs.world import World

BATCHES = 3
"""How many batches of each client are measured, on average."""
TEST_EXAMPLES = 64
"""How many test examples of each client are measured, on average."""
SLOTS = 2
"""Checkpoints that are kept of a method."""


@dataclass(frozen=True)
class MethodPlan:
    """What one method will cost in all its rounds."""

    method: str
    training_seconds: float
    """At the clients, by the clock on the wall."""
    server_seconds: float
    evaluate_seconds: float
    bytes_up: int
    bytes_down: int
    server_memory: int
    """Bytes of what the server remembers between rounds, at its largest."""
    disk: int
    """Bytes of checkpoints and personal models."""

    @property
    def seconds(self) -> float:
        """By the clock on the wall."""
        return self.training_seconds + self.server_seconds + self.evaluate_seconds


@dataclass(frozen=True)
class Plan:
    """What a run will cost."""

    rounds: int
    evaluations: int
    num_clients: int
    training_examples: int
    """Of all clients; each is seen once an epoch."""
    evaluated_examples: int
    """Of all clients, validation and test, at each evaluation."""
    unit: str
    methods: tuple[MethodPlan, ...]


def plan(world: World, methods: Sequence[str], report: Callable[[str, int, int], None]) -> Plan:
    """Measure each method for a moment; `report` hears how far it is."""
    run = world.config.run
    clients = world.data.clients
    small = _reduced(world)
    _measure(small, "local")  # what happens once in a process is not a method's
    plans = []
    for number, name in enumerate(methods):
        report("measuring", number, len(methods))
        plans.append(_plan_method(world, small, name))
    report("measuring", len(methods), len(methods))
    return Plan(
        run.rounds,
        _evaluations(run.rounds, run.evaluate_every),
        len(clients),
        sum(len(client.train) for client in clients),
        _num_evaluated(clients),
        world.data.examples.unit,
        tuple(plans),
    )


def _plan_method(world: World, small: World, name: str) -> MethodPlan:
    run = world.config.run
    (first, second, last), server, states = _measure(small, name)
    rounds = run.rounds

    def total(of: Callable[[RoundOutcome], float]) -> float:
        """Over all rounds: the first two may do what no other does, all others are as the last."""
        return sum([of(first), of(second), *[of(last)] * max(0, rounds - 2)][:rounds])

    history = _history_of(server)
    scale = _num_trained(world) / _num_trained(small)
    evaluated = _num_evaluated(world.data.clients) / _num_evaluated(small.data.clients)
    evaluate_seconds = (second.evaluate_seconds + last.evaluate_seconds) / 2
    memory = _size(server_state(server))
    clients_memory = sum(_size(state) for state in states)
    model = world.model.initial
    personal = _size({"adapter": model.adapter, "head": model.head}) * len(world.sites)
    return MethodPlan(
        name,
        training_seconds=scale * total(_training_seconds),
        server_seconds=total(lambda outcome: outcome.server_seconds)
        if history is None
        else _growing_seconds(
            second.server_seconds, last.server_seconds, history.max_length, rounds
        ),
        evaluate_seconds=evaluated * evaluate_seconds * _evaluations(rounds, run.evaluate_every),
        bytes_up=round(total(lambda outcome: outcome.bytes_up)),
        bytes_down=round(total(lambda outcome: outcome.bytes_down)),
        server_memory=memory,
        disk=SLOTS * (memory + clients_memory) + personal,
    )


def _measure(small: World, name: str) -> tuple[list[RoundOutcome], Server, list[Tensors]]:
    """Rounds 1, 2 and the last, the last with a full history."""
    states = MemoryStates()
    server, clients = small.start(name, states)
    outcomes: list[RoundOutcome] = []
    conditions = small.config.federation
    run_rounds(server, clients, range(1, 3), outcomes.append, 1, conditions)
    history = _history_of(server)
    while history is not None and len(history) < history.max_length:
        history.append(history.window()[:, :, -1].permute(2, 0, 1))  # Δ^t (N, K, D) once more
    last = max(3, small.config.run.rounds)
    run_rounds(server, clients, range(last, last + 1), outcomes.append, 1, conditions)
    return outcomes, server, [states.get(i) for i in clients.ids]


def _history_of(server: Server) -> History | None:
    """A server's window over past updates, which makes its work grow until it is full."""
    history = getattr(server, "history", None)
    return history if isinstance(history, History) else None


def _growing_seconds(short: float, full: float, length: int, rounds: int) -> float:
    """A server whose work grows with its window from 1 round to L."""
    step = (full - short) / max(1, length - 1)
    return sum(short + step * (min(t, length) - 1) for t in range(1, rounds + 1))


def _reduced(world: World) -> World:
    """The same world with a few batches of every client, in proportion to what it has."""
    batch, number = world.config.training.batch_size, len(world.sites)
    clients = world.data.clients
    train = min(1.0, BATCHES * batch * number / _num_trained(world))
    test = min(1.0, TEST_EXAMPLES * number / max(1, _num_evaluated(clients)))

    def some(indices: NDArray, part: float, unit: int) -> NDArray:  # type: ignore[type-arg]
        return indices[: ceil(part * len(indices) / unit) * unit]

    def cut(client: ClientData) -> ClientData:
        return replace(
            client,
            train=some(client.train, train, batch),
            validation=some(client.validation, test, 1),
            test=some(client.test, test, 1),
        )

    less = tuple(map(cut, clients))
    sites = tuple(replace(site, data=data) for site, data in zip(world.sites, less, strict=True))
    return replace(world, data=replace(world.data, clients=less), sites=sites)


def _training_seconds(outcome: RoundOutcome) -> float:
    return outcome.round_seconds - outcome.evaluate_seconds - outcome.server_seconds


def _evaluations(rounds: int, every: int) -> int:
    """Every so many rounds, and the last."""
    return ceil(rounds / every)


def _num_trained(world: World) -> int:
    """In a round, by all clients."""
    return sum(len(site.drawn(1)) for site in world.sites)


def _num_evaluated(clients: Sequence[ClientData]) -> int:
    return sum(len(client.test) + len(client.validation) for client in clients)


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
