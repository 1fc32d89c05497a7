"""The records of rounds and runs, and their conversion to and from JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

from pfedseq.engines.rounds import RoundOutcome
from pfedseq.measures import Measure
from pfedseq.runs.scores import Assessment, Scores, read_scores, worse_off

Record = TypeVar("Record")


@dataclass(frozen=True)
class Cost:
    """The cost of a round or a run; every duration is named `…_seconds`."""

    bytes_up: int
    bytes_down: int
    client_seconds: float
    server_seconds: float
    evaluate_seconds: float
    round_seconds: float = 0.0
    """Wall-clock time; clients run in parallel."""


@dataclass(frozen=True)
class RoundRecord:
    """One line of metrics.jsonl."""

    method: str
    round: int
    scores: Scores | None
    """None if the round was not evaluated."""
    cost: Cost
    answered: int | None = None
    """The number of accepted updates."""
    refused: tuple[int, ...] = ()
    """The members whose replies were refused."""
    absent: tuple[int, ...] = ()
    """The members that were not sampled or did not answer."""
    server: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The server's quantities by backbone layer; for pFedSeq the RMS of Δ, ξ and its parts."""
    joined: tuple[int, ...] = ()
    """The clients that joined before this round."""
    left: tuple[int, ...] = ()
    """The clients that left for good before it."""

    def to_json(self) -> dict[str, Any]:
        """The record as one flat JSON object."""
        scores = self.scores.to_json() if self.scores is not None else {}
        about = {"method": self.method, "round": self.round}
        attendance = {"answered": self.answered}
        some = ("refused", "absent", "joined", "left")
        who = {key: list(getattr(self, key)) for key in some if getattr(self, key)}
        server = {"server": dict(self.server)} if self.server else {}
        return {**about, **scores, **asdict(self.cost), **attendance, **who, **server}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundRecord:
        """What `to_json` gave; raises KeyError where something is missing."""
        scores = Scores.from_json(values) if "test" in values else None
        refused, absent, joined, left = (
            tuple(values.get(key, ())) for key in ("refused", "absent", "joined", "left")
        )
        return cls(
            values["method"],
            values["round"],
            scores,
            _read(Cost, values),
            answered=values.get("answered"),
            refused=refused,
            absent=absent,
            server=values.get("server", {}),
            joined=joined,
            left=left,
        )


@dataclass(frozen=True)
class BestRound:
    """The best round by some criterion, and the mean test headline in that round."""

    round: int
    client_mean: float


@dataclass(frozen=True)
class MethodSummary:
    """One method's result, for the models that the clients keep."""

    rounds: int
    """The number of rounds that were run."""
    planned_rounds: int
    """The configured number of rounds; more than `rounds` if the method stopped early."""
    keep: str
    """`last`, or `best_on_validation`: which round's models the clients keep."""
    kept_round: int
    """The round of the kept models."""
    scores: Scores
    """The scores of the kept models."""
    best_on_validation: BestRound | None
    """None without validation examples."""
    best_on_test_optimistic: BestRound
    cost: Cost
    pooled: Mapping[str, float] = field(default_factory=dict)
    """Measures over the pooled test examples of all clients."""

    @property
    def measure(self) -> Measure:
        """The measure that the run's headline names."""
        return self.scores.measure

    @property
    def client_mean(self) -> float:
        """The headline's mean over clients, on test data."""
        return self.scores.client_mean

    @property
    def by_client(self) -> dict[int, float]:
        """The headline on the test data of each client for which it is defined."""
        return self.scores.by_client()

    def to_json(self) -> dict[str, Any]:
        """One flat JSON object: costs, and every measure over clients, pooled and by client."""
        scores, values = self.scores, asdict(self)
        for key in ("cost", "scores", "pooled"):
            del values[key]
        flat = scores.to_json()
        for split in ("test", "validation"):
            columns = flat[split]
            for name in columns.keys() - {"examples"}:
                over = scores.over_clients(name, split)
                pooled = {"pooled": self.pooled.get(name)} if split == "test" else {}
                columns[name] = {
                    **(asdict(over) if over is not None else {}),
                    **pooled,
                    "clients": columns[name],
                }
        return {**values, **flat, **asdict(self.cost)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MethodSummary:
        """What `to_json` gave; raises KeyError where something is missing."""
        validation, test = values["best_on_validation"], values["best_on_test_optimistic"]
        columns = {
            split: {
                name: column if name == "examples" else column["clients"]
                for name, column in values[split].items()
            }
            for split in ("test", "validation")
        }
        pooled = {
            name: column["pooled"]
            for name, column in values["test"].items()
            if name != "examples" and column["pooled"] is not None
        }
        return cls(
            values["rounds"],
            values["planned_rounds"],
            values["keep"],
            values["kept_round"],
            Scores.from_json({**values, **columns}),
            None if validation is None else _read(BestRound, validation),
            _read(BestRound, test),
            _read(Cost, values),
            pooled,
        )


@dataclass(frozen=True)
class Finding:
    """A warning about the results."""

    code: str
    sentence: str
    methods: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """One JSON object without empty entries."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Finding:
        """What `to_json` gave; raises KeyError where something is missing."""
        who = (tuple(values.get(key, ())) for key in ("methods", "clients"))
        return cls(values["code"], values["sentence"], *who)


@dataclass(frozen=True)
class RunSummary:
    """summary.json: the result of every method of a run."""

    methods: dict[str, MethodSummary]
    clients: tuple[str, ...] = ()
    """The names of all clients, by number."""
    harmed: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """By method, then by `local` or `fedavg` of the same run or by `mean_adapter`, the mean that
    the method personalises: the clients that it serves worse, on validation."""
    epsilon: dict[str, float] | None = None
    """ε of every client's updates if they are private: `PrivacyConfig.spent`."""
    findings: tuple[Finding, ...] = ()
    """Warnings about the results."""

    def to_json(self) -> dict[str, Any]:
        """Methods by name, and the clients' names."""
        methods = {name: method.to_json() for name, method in self.methods.items()}
        harm = {"harmed": self.harmed} if self.harmed else {}
        privacy = {"epsilon": self.epsilon} if self.epsilon is not None else {}
        findings = [finding.to_json() for finding in self.findings]
        return {
            "clients": list(self.clients),
            "methods": methods,
            **harm,
            **privacy,
            "findings": findings,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunSummary:
        """What `to_json` gave; raises KeyError where something is missing."""
        methods = values["methods"]
        return cls(
            {name: MethodSummary.from_json(method) for name, method in methods.items()},
            tuple(values.get("clients", ())),
            dict(values.get("harmed", {})),
            values.get("epsilon"),
            tuple(Finding.from_json(finding) for finding in values.get("findings", ())),
        )


def harmed_clients(
    by_method: Mapping[str, Scores], names: Sequence[str]
) -> dict[str, dict[str, list[str]]]:
    """The names of the clients that `worse_off` finds, by method and yardstick."""
    harmed: dict[str, dict[str, list[str]]] = {}
    for one in worse_off(by_method):
        name = names[one.client] if one.client < len(names) else str(one.client)
        harmed.setdefault(one.method, {}).setdefault(one.than, []).append(name)
    return harmed


def summarise_round(method: str, outcome: RoundOutcome, headline: str = "accuracy") -> RoundRecord:
    """Make the record of a round: its cost, and the scores if it was evaluated."""
    scores = read_scores(outcome.evaluated, headline) if outcome.evaluated else None
    cost = Cost(**{f.name: getattr(outcome, f.name) for f in fields(Cost)})
    return RoundRecord(
        method,
        outcome.t,
        scores,
        cost,
        answered=len(outcome.answered),
        refused=tuple(sorted(outcome.refused)),
        absent=tuple(
            i
            for i in sorted(outcome.members)
            if i not in outcome.answered and i not in outcome.refused
        ),
        server=outcome.server,
        joined=outcome.joined,
        left=outcome.left,
    )


def best_on_validation(records: Sequence[RoundRecord]) -> tuple[int, Scores] | None:
    """The first round with the best mean validation headline; None without validation data."""
    validated = [
        (t, scores, scores.validation_mean)
        for t, scores in evaluated(records)
        if scores.validation_mean is not None
    ]
    if not validated:
        return None
    t, scores, _ = max(validated, key=lambda entry: entry[1].measure.rank(entry[2]))
    return t, scores


def summarise_run(
    records: Sequence[RoundRecord], assessment: Assessment | None = None
) -> MethodSummary:
    """One method's result from all its rounds, of which the last was evaluated.

    Without an `assessment` of the kept models, the last evaluation is used.
    """
    scored = evaluated(records)
    t, last = scored[-1]
    best = best_on_validation(records)
    best_t, best_on_test = max(
        scored, key=lambda entry: entry[1].measure.rank(entry[1].client_mean)
    )
    return MethodSummary(
        rounds=t,
        planned_rounds=t if assessment is None else assessment.planned_rounds,
        keep="last" if assessment is None else assessment.keep,
        kept_round=t if assessment is None else assessment.round,
        scores=last if assessment is None else assessment.scores,
        best_on_validation=None if best is None else BestRound(best[0], best[1].client_mean),
        best_on_test_optimistic=BestRound(best_t, best_on_test.client_mean),
        cost=Cost(
            **{
                f.name: sum(getattr(record.cost, f.name) for record in records)
                for f in fields(Cost)
            }
        ),
        pooled={} if assessment is None else assessment.pooled,
    )


def evaluated(records: Sequence[RoundRecord]) -> list[tuple[int, Scores]]:
    """The rounds after which the clients were evaluated, and how they did."""
    return [(record.round, record.scores) for record in records if record.scores is not None]


def _read(kind: Callable[..., Record], values: Mapping[str, Any]) -> Record:
    """Make a dataclass from a JSON object, ignoring other keys; lists become tuples."""
    given = {
        f.name: values[f.name]
        for f in fields(kind)  # type: ignore[arg-type]
        if f.name in values or f.default is MISSING
    }
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
