"""The round loop: the same for every method and every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.heap import FreedMemory
from pfedseq.engines.intake import Intake
from pfedseq.engines.roster import Roster
from pfedseq.federation import Clients, Server


@dataclass(frozen=True)
class RoundOutcome:
    """The cost of a round and the evaluated clients' metrics."""

    t: int
    evaluated: Mapping[int, Mapping[str, float]]
    """Metrics by client; empty if the round had no evaluation."""
    bytes_up: int
    bytes_down: int
    client_seconds: float
    server_seconds: float
    evaluate_seconds: float
    """If clients train for the next round in the same exchange, that is included."""
    round_seconds: float = 0.0
    """Wall-clock time of all of the above."""
    answered: tuple[int, ...] = ()
    """The clients whose update was accepted."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """The clients whose replies were refused, and why."""
    server: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """`Server.figures`."""
    members: tuple[int, ...] = ()
    """The seated clients."""
    joined: tuple[int, ...] = ()
    """The members that joined before this round."""
    left: tuple[int, ...] = ()
    """The clients that left before this round."""


def run_rounds(
    server: Server,
    clients: Clients,
    rounds: range,
    after_round: Callable[[RoundOutcome], None],
    evaluate_every: int = 1,
    conditions: FederationConfig | None = None,
    train_ahead: bool = True,
) -> None:
    """Train over `rounds` (counted from 1), reporting each; evaluate at intervals and in the last.

    What a client is evaluated on is what it trains from next, so its download counts once. With
    `train_ahead`, an engine that can do so sends both requests in one message; it must be off if a
    client's state can change between them, or the run can end.
    """
    roster = Roster(clients, server, conditions or FederationConfig())
    freed = FreedMemory()
    for t in rounds:
        change = roster.take_seats(t)
        training, evaluation = Intake(roster), Intake(roster)
        start = time.perf_counter()
        server.run_round(t, training)
        roster.note_silence(training.answered)
        training_seconds = time.perf_counter() - start
        evaluated: Mapping[int, Mapping[str, float]] = {}
        if t % evaluate_every == 0 or t == rounds[-1]:
            if train_ahead and t != rounds[-1]:
                evaluation.announce_training(t + 1)
            evaluated = evaluation.metrics("evaluate", t)
        after_round(
            RoundOutcome(
                t,
                evaluated,
                bytes_up=training.bytes_up,
                bytes_down=training.bytes_down,
                client_seconds=training.client_seconds,
                server_seconds=training_seconds - training.waiting_seconds,
                evaluate_seconds=time.perf_counter() - start - training_seconds,
                round_seconds=time.perf_counter() - start,
                answered=tuple(sorted(training.answered)),
                refused=training.refused | evaluation.refused,
                server=server.figures,
                members=server.setup.clients,
                joined=change.joined,
                left=change.left,
            )
        )
        freed.release()
