"""Cost estimates of a run from a few measured steps: time, traffic, memory and disk.

Each method runs three short rounds (the first, the second and the last) on a few batches of every
client (of very many, one each), scaled up by the number of examples. Costs that do not depend on
the examples, the server's work and the checkpoints, are measured directly; the history is filled
before the last round, so that the learner's longest window is measured. If a warm-up ends in
between, a fourth round within it separates the cost of its end from the cost of the growing window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from pfedseq.config import Config
from pfedseq.engines.rounds import RoundOutcome, run_rounds
from pfedseq.engines.states import MemoryStates
from pfedseq.federation import Server, Tensors
from pfedseq.learners.history import History
from pfedseq.learners.running_sums import RunningSums
from pfedseq.methods.pfedseq import PFedSeqServer
from pfedseq.model.task import ExampleSite
from pfedseq.runs.checkpoint import Checkpoints, server_state
from pfedseq.runs.world import World

BATCHES = 4
"""Batches of each client that are measured, on average."""
TEST_EXAMPLES = 128
"""Test examples of each client that are measured, on average."""
MEASURED_CLIENTS = 100
"""With more clients, no more batches and examples are measured in all than with so many."""
SLOTS = 2
"""Number of checkpoints kept per method."""


@dataclass(frozen=True)
class MethodPlan:
    """The cost of all rounds of one method."""

    method: str
    training_seconds: float
    """Wall-clock seconds at the clients."""
    server_seconds: float
    evaluate_seconds: float
    saving_seconds: float
    """Of all checkpoints."""
    bytes_up: int
    bytes_down: int
    server_memory: int
    """Largest size in bytes of the server's state."""
    disk: int
    """Bytes of checkpoints and personal models."""
    notes: tuple[str, ...] = ()
    """The server's messages before round 1, such as the form of its learner."""

    @property
    def seconds(self) -> float:
        """By the clock on the wall."""
        at_work = self.training_seconds + self.server_seconds + self.evaluate_seconds
        return at_work + self.saving_seconds


@dataclass(frozen=True)
class Plan:
    """What a run will cost."""

    rounds: int
    evaluations: int
    num_clients: int
    training_examples: int
    """Of all clients in a round; each is seen once an epoch."""
    evaluated_examples: int
    """Of all clients, validation and test, at each evaluation."""
    unit: str
    methods: tuple[MethodPlan, ...]
    startup_seconds: float = 0.0
    """Before the first round: loading the program, the data and the backbone."""

    @property
    def seconds(self) -> float:
        """By the clock on the wall."""
        return self.startup_seconds + sum(row.seconds for row in self.methods)


def plan(world: World, methods: Sequence[str], report: Callable[[str, int, int], None]) -> Plan:
    """Measure each method briefly; `report` receives the progress."""
    run = world.config.run
    small = _reduced(world)
    _measure(small, "local")  # one-time costs of the process do not count
    plans = []
    for number, name in enumerate(methods):
        report("measuring", number, len(methods))
        plans.append(_plan_method(world, small, name))
    report("measuring", len(methods), len(methods))
    return Plan(
        run.rounds,
        _evaluations(run.rounds, run.evaluate_every),
        len(world.sites),
        _num_trained(world),
        _num_evaluated(world),
        world.data.examples.unit,
        tuple(plans),
    )


def startup_seconds(config: Config) -> float:
    """Seconds to load data and backbone, with all stores prepared."""
    start = time.perf_counter()
    World.build(config)
    return time.perf_counter() - start


def _plan_method(world: World, small: World, name: str) -> MethodPlan:
    run = world.config.run
    found = _measure(small, name)
    first, second, last = found.outcomes
    rounds = run.rounds

    def total(of: Callable[[RoundOutcome], float]) -> float:
        """The total over all rounds: the first two may differ, all others are like the last."""
        return sum([of(first), of(second), *[of(last)] * max(0, rounds - 2)][:rounds])

    history = _history_of(found.server)
    scale = _num_trained(world) / _num_trained(small)
    evaluated = _num_evaluated(world) / _num_evaluated(small)
    memory = _size(server_state(found.server))
    clients_memory = _clients_memory(found.states, world.config.federation.participation, rounds)
    model = world.model.initial
    personal = _size({"adapter": model.adapter, "head": model.head}) * len(world.sites)
    return MethodPlan(
        name,
        training_seconds=scale * total(_training_seconds),
        server_seconds=total(lambda outcome: outcome.server_seconds)
        if history is None
        else _growing_seconds(
            first.server_seconds,
            second.server_seconds,
            (found.warm or last).server_seconds,
            history.max_length,
            rounds,
        )
        + _seconds_after_warmup(found, history.max_length, rounds),
        evaluate_seconds=evaluated * _evaluate_seconds(found.outcomes, rounds, run.evaluate_every),
        saving_seconds=found.saving_seconds * ceil(rounds / run.checkpoint_every),
        bytes_up=round(total(lambda outcome: outcome.bytes_up)),
        bytes_down=round(total(lambda outcome: outcome.bytes_down)),
        server_memory=memory,
        disk=SLOTS * (memory + clients_memory) + personal,
        notes=tuple(found.server.notes),
    )


class _Measured(NamedTuple):
    outcomes: list[RoundOutcome]
    """Of rounds 1, 2 and the last, the last with a full history."""
    server: Server
    states: list[Tensors]
    saving_seconds: float
    """Of the last checkpoint."""
    warm: RoundOutcome | None
    """Of the warm-up's last round, with a full history; none where no warm-up ends in between."""


def _measure(small: World, name: str) -> _Measured:
    outcomes: list[RoundOutcome] = []
    seconds = 0.0
    with TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), MemoryStates(), small.made_with(name))
        server, clients = small.start(name, checkpoints.states)

        def after_round(outcome: RoundOutcome) -> None:
            nonlocal seconds
            outcomes.append(outcome)
            start = time.perf_counter()
            checkpoints.save(outcome.t, server)
            seconds = time.perf_counter() - start

        conditions = small.config.federation
        run_rounds(server, clients, range(1, 3), after_round, 1, conditions)
        history = _history_of(server)
        here = [i in outcomes[-1].answered for i in server.setup.clients]
        answered = torch.tensor(here, device=server.setup.initial.adapter.device)
        while history is not None and len(history) < history.max_length:
            newest = history.newest()
            assert newest is not None  # two rounds were played
            history.append(newest, answered)
        warm: list[RoundOutcome] = []
        last, warmup = max(3, small.config.run.rounds), _warmup_of(server)
        if history is not None and 2 <= warmup < last:
            run_rounds(server, clients, range(warmup, warmup + 1), warm.append, 1, conditions)
        run_rounds(server, clients, range(last, last + 1), after_round, 1, conditions)
        states = [checkpoints.states.get(i) for i in server.setup.clients]
        return _Measured(outcomes, server, states, seconds, warm[0] if warm else None)


def _clients_memory(states: Sequence[Tensors], participation: float, rounds: int) -> int:
    """Size of the states of all clients that take part in at least one of the rounds.

    The clients that took part in the measured rounds stand for the others.
    """
    sizes = [_size(state) for state in states if state]
    share = 1 - (1 - participation) ** rounds
    return round(share * len(states) * fmean(sizes)) if sizes else 0


def _history_of(server: Server) -> History | RunningSums | None:
    """The server's history of updates; its cost grows until the window is full."""
    return server.history if isinstance(server, PFedSeqServer) else None


def _warmup_of(server: Server) -> int:
    """W: rounds in which a server does less than in those that follow."""
    if not isinstance(server, PFedSeqServer):
        return 0
    return server.config.warmup(server.setup.num_rounds)


def _seconds_after_warmup(found: _Measured, length: int, rounds: int) -> float:
    """The extra cost after the warm-up, with a window of t rounds, at most L."""
    if found.warm is None:
        return 0.0
    full = max(0.0, found.outcomes[-1].server_seconds - found.warm.server_seconds)
    later = range(_warmup_of(found.server) + 1, rounds + 1)
    return sum(full * min(t, length) / length for t in later)


def _growing_seconds(first: float, short: float, full: float, length: int, rounds: int) -> float:
    """Cost that grows with the window: 1 round in round 2, L rounds from round L + 1 on."""
    step = (full - short) / max(1, length - 1)
    windows = [min(t - 1, length) for t in range(2, rounds + 1)]
    return first + sum(short + step * (window - 1) for window in windows)


def _evaluate_seconds(outcomes: Sequence[RoundOutcome], rounds: int, every: int) -> float:
    """The last evaluation may cost more: it also scores the mean model."""
    seconds = {outcome.t: outcome.evaluate_seconds for outcome in outcomes}
    ordinary = seconds[1 if rounds == 2 else 2]
    return ordinary * (_evaluations(rounds, every) - 1) + seconds[rounds]


def _reduced(world: World) -> World:
    """The same world with a few batches of every client, in proportion to its size."""
    batch, number = world.config.training.batch_size, min(len(world.sites), MEASURED_CLIENTS)
    train = min(1.0, BATCHES * batch * number / _num_trained(world))
    test = min(1.0, TEST_EXAMPLES * number / max(1, _num_evaluated(world)))

    def cut(site: ExampleSite) -> ExampleSite:
        data, few = site.data, ceil(train * len(site.drawn(1)) / batch) * batch
        data = replace(
            data,
            validation=data.validation[: ceil(test * len(data.validation))],
            test=data.test[: ceil(test * len(data.test))],
        )
        if site.examples_per_round is not None:
            return replace(site, data=data, examples_per_round=few)
        return replace(site, data=replace(data, train=data.train[:few]))

    sites = tuple(map(cut, world.sites))
    less = replace(world.data, clients=tuple(site.data for site in sites))
    return replace(world, data=less, sites=sites)


def _training_seconds(outcome: RoundOutcome) -> float:
    return outcome.round_seconds - outcome.evaluate_seconds - outcome.server_seconds


def _evaluations(rounds: int, every: int) -> int:
    """The number of times that something happens every n rounds and in the last one."""
    return ceil(rounds / every)


def _num_trained(world: World) -> int:
    """Examples of a round, each seen once per epoch."""
    return sum(len(site.drawn(1)) for site in world.sites)


def _num_evaluated(world: World) -> int:
    return sum(len(site.data.test) + len(site.data.validation) for site in world.sites)


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
