"""The round loop: the same for every method and every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.passing import PassingClients
from pfedseq.engines.payload import UnpackedClients
from pfedseq.engines.screening import ScreenedClients
from pfedseq.engines.seats import SeatedClients, note_silence, payloads, take_seats
from pfedseq.federation import Clients, Reply, Server, Tensors


@dataclass(frozen=True)
class RoundOutcome:
    """What a round cost, and what the clients that were evaluated said."""

    t: int
    evaluated: Mapping[int, Mapping[str, float]]
    """Metrics by client; empty where the round went without an evaluation."""
    bytes_up: int
    bytes_down: int
    client_seconds: float
    server_seconds: float
    evaluate_seconds: float
    round_seconds: float = 0.0
    """By the clock on the wall, all of the above together."""
    answered: tuple[int, ...] = ()
    """The clients whose training was taken in."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """The clients whose replies were not, and why."""
    server: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """`Server.figures`."""
    members: tuple[int, ...] = ()
    """The clients that have a place."""
    joined: tuple[int, ...] = ()
    """Those of them that got it before this round."""
    left: tuple[int, ...] = ()
    """The clients that lost theirs."""


class MeteredClients(PassingClients):
    """Counts the seconds, and the bytes of the tensors as they are sent.

    Those are the bytes of a serialised message without the header that names them.
    """

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.bytes_up = self.bytes_down = 0
        self.client_seconds = self.waiting_seconds = 0.0

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Pass the call on and take its measure."""
        start = time.perf_counter()
        replies = super().call(step, t, down)
        self.waiting_seconds += time.perf_counter() - start
        self.bytes_down += sum(map(_size, down.values()))
        self.bytes_up += sum(_size(reply.tensors) for reply in replies.values())
        self.client_seconds += sum(
            reply.metrics.get(f"{step}_seconds", 0.0) for reply in replies.values()
        )
        return replies


def run_rounds(
    server: Server,
    clients: Clients,
    rounds: range,
    after_round: Callable[[RoundOutcome], None],
    evaluate_every: int = 1,
    conditions: FederationConfig | None = None,
) -> None:
    """Train over `rounds` (counted from 1), reporting each; evaluate every so many, and the last.

    What a client is evaluated on is what it trains from next, so its download counts once;
    that of the mean, after the last round, is not counted.
    """
    conditions = conditions or FederationConfig()
    for t in rounds:
        change = take_seats(server, clients, t, conditions.gone_after)
        metered = MeteredClients(clients)
        start = time.perf_counter()
        unpacked = UnpackedClients(metered, server.setup.initial)
        screened = ScreenedClients(unpacked, server, conditions)
        server.run_round(t, SeatedClients(screened, server))
        note_silence(server, screened.answered)
        training_seconds = time.perf_counter() - start
        evaluated: Mapping[int, Mapping[str, float]] = {}
        if t % evaluate_every == 0 or t == rounds[-1]:
            evaluated = _evaluated(server, clients, t)
        after_round(
            RoundOutcome(
                t,
                evaluated,
                bytes_up=metered.bytes_up,
                bytes_down=metered.bytes_down,
                client_seconds=metered.client_seconds,
                server_seconds=training_seconds - metered.waiting_seconds,
                evaluate_seconds=time.perf_counter() - start - training_seconds,
                round_seconds=time.perf_counter() - start,
                answered=tuple(sorted(screened.answered)),
                refused=screened.refused,
                server=server.figures,
                members=server.setup.clients,
                joined=change.joined,
                left=change.left,
            )
        )


def _evaluated(server: Server, clients: Clients, t: int) -> dict[int, Mapping[str, float]]:
    """Each client's metrics with its personal model; in the last round also with the mean of all.

    Once is enough to tell whom the personalisation harms.
    """
    replies = clients.call("evaluate", t, payloads(server))
    metrics: dict[int, Mapping[str, float]] = {i: reply.metrics for i, reply in replies.items()}
    mean = server.mean()
    if mean is not None and t == server.setup.num_rounds:
        beside = clients.call("evaluate_mean", t, dict.fromkeys(metrics, mean))
        for i in metrics.keys() & beside.keys():
            metrics[i] = {**beside[i].metrics, **metrics[i]}
    return metrics


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
