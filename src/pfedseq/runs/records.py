"""What is reported of a round and of a run, and the one place where it becomes JSON and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from pfedseq.engines.rounds import RoundOutcome

Record = TypeVar("Record")

YARDSTICKS = ("local", "fedavg")
"""Methods by which a client gets only its own, or what everybody gets."""
MEAN_ADAPTER = "mean_adapter"
"""The yardstick that a method has in itself: the mean that it personalises (`Server.mean`)."""


@dataclass(frozen=True)
class Scores:
    """How well each client's personal model did, and the ways to boil that down to one number."""

    client_mean: float
    """The paper's headline: test accuracy "averaging over all clients"."""
    sample_weighted: float
    """The same with each client weighted by its test examples."""
    worst_client: float
    bottom_decile: float
    """The mean over the worst tenth of the clients."""
    validation_mean: float | None
    """Over the clients that hold validation examples; null where none does."""
    test_loss_mean: float
    clients: tuple[int, ...]
    """Whose the columns below are, in order."""
    test_accuracy: tuple[float, ...]
    test_loss: tuple[float, ...]
    validation_accuracy: tuple[float | None, ...]
    validation_loss: tuple[float | None, ...]
    mean_validation_accuracy: tuple[float | None, ...] | None = None
    """With the mean that the method personalises: after the last round, where there is a mean."""

    def to_json(self) -> dict[str, Any]:
        """One object, without what was not looked at."""
        values = asdict(self)
        if self.mean_validation_accuracy is None:
            del values["mean_validation_accuracy"]
        return values


@dataclass(frozen=True)
class Cost:
    """What a round, or a run, cost; every duration is named `…_seconds`."""

    bytes_up: int
    bytes_down: int
    client_seconds: float
    server_seconds: float
    evaluate_seconds: float
    round_seconds: float = 0.0
    """By the clock on the wall; clients run side by side. 0 in what an older version wrote."""


@dataclass(frozen=True)
class RoundRecord:
    """One line of metrics.jsonl."""

    method: str
    round: int
    scores: Scores | None
    """Missing where the round went without an evaluation."""
    cost: Cost
    answered: int | None = None
    """How many clients' training was taken in; null in what an older version wrote."""
    refused: int = 0
    """How many clients' replies were refused."""
    absent: tuple[int, ...] = ()
    """Those with a place whose training was not taken in: not asked, not answering, or refused."""
    server: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the server measured, by backbone layer; pFedSeq: the sizes of Δ, ξ and its parts."""
    joined: tuple[int, ...] = ()
    """The clients that came before this round."""
    left: tuple[int, ...] = ()
    """The clients that left for good before it."""

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        scores = self.scores.to_json() if self.scores is not None else {}
        about = {"method": self.method, "round": self.round}
        attendance = {"answered": self.answered, "refused": self.refused}
        some = ("absent", "joined", "left")
        who = {key: list(getattr(self, key)) for key in some if getattr(self, key)}
        server = {"server": dict(self.server)} if self.server else {}
        return {**about, **scores, **asdict(self.cost), **attendance, **who, **server}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundRecord:
        """What `to_json` gave; raises KeyError where something is missing."""
        scores = _read(Scores, values) if "client_mean" in values else None
        absent, joined, left = (tuple(values.get(key, ())) for key in ("absent", "joined", "left"))
        return cls(
            values["method"],
            values["round"],
            scores,
            _read(Cost, values),
            answered=values.get("answered"),
            refused=values.get("refused", 0),
            absent=absent,
            server=values.get("server", {}),
            joined=joined,
            left=left,
        )


@dataclass(frozen=True)
class BestRound:
    """The round that was best by some measure, and its mean test accuracy."""

    round: int
    client_mean: float


@dataclass(frozen=True)
class MethodSummary:
    """One method's result: the last round is the headline, the best rounds stand beside it."""

    rounds: int
    client_mean: float
    sample_weighted: float
    worst_client: float
    bottom_decile: float
    test_accuracy: tuple[float, ...]
    best_on_validation: BestRound | None
    """Null where no client holds validation examples."""
    best_on_test_optimistic: BestRound
    cost: Cost
    clients: tuple[int, ...] = ()
    """Whose `test_accuracy` is, in order: a site may be absent from the last evaluation. Empty, for
    all, in what an older version wrote."""

    @property
    def by_client(self) -> dict[int, float]:
        """The last round's test accuracy of each client that was evaluated then."""
        clients = self.clients or range(len(self.test_accuracy))
        return dict(zip(clients, self.test_accuracy, strict=True))

    def to_json(self) -> dict[str, Any]:
        """One object, the costs flat in it."""
        values = asdict(self)
        values.update(values.pop("cost"))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MethodSummary:
        """What `to_json` gave; raises KeyError where something is missing."""
        validation, test = values["best_on_validation"], values["best_on_test_optimistic"]
        return _read(
            cls,
            dict(values)
            | {
                "best_on_validation": None if validation is None else _read(BestRound, validation),
                "best_on_test_optimistic": _read(BestRound, test),
                "cost": _read(Cost, values),
            },
        )


@dataclass(frozen=True)
class RunSummary:
    """summary.json: the result of every method of a run."""

    methods: dict[str, MethodSummary]
    clients: tuple[str, ...] = ()
    """The names of all clients, by number."""
    harmed: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """By method, then by `local` or `fedavg` of the same run or by `mean_adapter`, the mean that
    the method personalises: the clients that it serves worse, on validation."""
    epsilon: float | None = None
    """ε of every client's updates, where they were made private."""

    def to_json(self) -> dict[str, Any]:
        """Methods by name, and the clients' names."""
        methods = {name: method.to_json() for name, method in self.methods.items()}
        harm = {"harmed": self.harmed} if self.harmed else {}
        privacy = {"epsilon": self.epsilon} if self.epsilon is not None else {}
        return {"clients": list(self.clients), "methods": methods, **harm, **privacy}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunSummary:
        """What `to_json` gave; raises KeyError where something is missing."""
        methods = values["methods"]
        return cls(
            {name: MethodSummary.from_json(method) for name, method in methods.items()},
            tuple(values.get("clients", ())),
            dict(values.get("harmed", {})),
            values.get("epsilon"),
        )


def harmed_clients(
    by_method: Mapping[str, Sequence[RoundRecord]], names: Sequence[str]
) -> dict[str, dict[str, list[str]]]:
    """The clients that a method serves worse, on validation, than something simpler would.

    That is Local or FedAvg of the same run, and the mean that the method itself personalises.
    Compared are the last evaluations. A client without validation examples cannot be judged.
    """
    last = {
        method: scores
        for method, records in by_method.items()
        for _, scores in evaluated(records)[-1:]
    }
    harmed: dict[str, dict[str, list[str]]] = {}
    for method, scores in last.items():
        if method in YARDSTICKS:
            continue
        own = _known(scores.clients, scores.validation_accuracy)
        others = {
            name: _known(last[name].clients, last[name].validation_accuracy)
            for name in YARDSTICKS
            if name in last
        }
        if scores.mean_validation_accuracy is not None:
            others[MEAN_ADAPTER] = _known(scores.clients, scores.mean_validation_accuracy)
        for yardstick, other in others.items():
            worse = [
                names[i] if i < len(names) else str(i)
                for i, accuracy in own.items()
                if i in other and accuracy < other[i]
            ]
            if worse:
                harmed.setdefault(method, {})[yardstick] = worse
    return harmed


def _known(clients: Sequence[int], column: Sequence[float | None]) -> dict[int, float]:
    """A column of scores by client, without the clients that have none."""
    return {i: value for i, value in zip(clients, column, strict=True) if value is not None}


def summarise_round(method: str, outcome: RoundOutcome) -> RoundRecord:
    """What a round cost, and, where clients were evaluated, how well each did."""
    scores = _scores(outcome.evaluated) if outcome.evaluated else None
    cost = Cost(**{f.name: getattr(outcome, f.name) for f in fields(Cost)})
    return RoundRecord(
        method,
        outcome.t,
        scores,
        cost,
        answered=len(outcome.answered),
        refused=len(outcome.refused),
        absent=tuple(i for i in sorted(outcome.members) if i not in outcome.answered),
        server=outcome.server,
        joined=outcome.joined,
        left=outcome.left,
    )


def summarise_run(records: Sequence[RoundRecord]) -> MethodSummary:
    """One method's result from all its rounds, of which the last was evaluated."""
    scored = evaluated(records)
    t, last = scored[-1]
    validated = [
        (t, scores, scores.validation_mean)
        for t, scores in scored
        if scores.validation_mean is not None
    ]
    best = max(validated, key=lambda entry: entry[2], default=None)
    best_t, best_on_test = max(scored, key=lambda entry: entry[1].client_mean)
    return MethodSummary(
        rounds=t,
        client_mean=last.client_mean,
        sample_weighted=last.sample_weighted,
        worst_client=last.worst_client,
        bottom_decile=last.bottom_decile,
        test_accuracy=last.test_accuracy,
        best_on_validation=None if best is None else BestRound(best[0], best[1].client_mean),
        best_on_test_optimistic=BestRound(best_t, best_on_test.client_mean),
        cost=Cost(
            **{
                f.name: sum(getattr(record.cost, f.name) for record in records)
                for f in fields(Cost)
            }
        ),
        clients=last.clients,
    )


def evaluated(records: Sequence[RoundRecord]) -> list[tuple[int, Scores]]:
    """The rounds after which the clients were evaluated, and how they did."""
    return [(record.round, record.scores) for record in records if record.scores is not None]


def _scores(clients: Mapping[int, Mapping[str, float]]) -> Scores:
    ids = sorted(clients)

    def column(key: str) -> tuple[float, ...]:
        return tuple(clients[i][key] for i in ids)

    def validation(key: str) -> tuple[float | None, ...]:
        return tuple(clients[i][key] if clients[i]["validation_examples"] else None for i in ids)

    accuracy = np.array(column("test_accuracy"))
    validated = [value for value in validation("validation_accuracy") if value is not None]
    with_mean = tuple(
        clients[i].get("mean_validation_accuracy") if clients[i]["validation_examples"] else None
        for i in ids
    )
    tenth = max(1, len(ids) // 10)
    return Scores(
        client_mean=float(accuracy.mean()),
        sample_weighted=float(np.average(accuracy, weights=column("test_examples"))),
        worst_client=float(accuracy.min()),
        bottom_decile=float(np.sort(accuracy)[:tenth].mean()),
        validation_mean=float(np.mean(validated)) if validated else None,
        test_loss_mean=float(np.mean(column("test_loss"))),
        clients=tuple(ids),
        test_accuracy=column("test_accuracy"),
        test_loss=column("test_loss"),
        validation_accuracy=validation("validation_accuracy"),
        validation_loss=validation("validation_loss"),
        mean_validation_accuracy=with_mean if set(with_mean) != {None} else None,
    )


def _read(kind: Callable[..., Record], values: Mapping[str, Any]) -> Record:
    """A dataclass from an object of JSON that may hold other keys too; lists become tuples."""
    given = {
        f.name: values[f.name]
        for f in fields(kind)  # type: ignore[arg-type]
        if f.name in values or f.default is MISSING
    }
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
