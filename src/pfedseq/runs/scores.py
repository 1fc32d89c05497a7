"""The measures of all clients after a round, and their summary statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pfedseq.errors import InputError
from pfedseq.measures import MEASURES, PERCENT, Counts, Measure, find_measure
from pfedseq.runs.judging import can_be_judged

Values = tuple[float | None, ...]
"""A value per client; None if the measure is undefined or the split is empty."""
EvaluationSplit = Literal["test", "validation"]

YARDSTICKS = ("local", "fedavg")
"""The methods to compare clients with: no sharing, and one model for all."""
MEAN_ADAPTER = "mean_adapter"
"""The method's own yardstick: the mean that it personalises (`Server.mean`)."""


@dataclass(frozen=True)
class OverClients:
    """Statistics of one measure over the clients for which it is defined."""

    client_mean: float
    """The unweighted mean over clients, as in the paper."""
    sample_weighted: float
    """The mean weighted by the clients' examples."""
    worst_client: float
    """The worst value among clients with enough examples, if there are any."""
    bottom_decile: float
    """The mean over the worst tenth of these clients."""
    undefined: int
    """The number of clients with examples for which the measure is undefined."""

    @classmethod
    def of(cls, measure: Measure, column: Values, examples: Sequence[int]) -> OverClients | None:
        """Compute the statistics; None if the measure is defined for no client."""
        known = [(v, n) for v, n in zip(column, examples, strict=True) if v is not None]
        if not known:
            return None
        values, weights = (np.array(part, dtype=np.float64) for part in zip(*known, strict=True))
        judged = [v for v, n in known if can_be_judged(n)] or values.tolist()
        ordered = measure.worst_first(judged)
        tenth = max(1, len(ordered) // 10)
        return cls(
            client_mean=float(values.mean()),
            sample_weighted=measure.weighted_mean(values, weights),
            worst_client=ordered[0],
            bottom_decile=float(np.mean(ordered[:tenth])),
            undefined=sum(n > 0 for n in examples) - len(known),
        )


@dataclass(frozen=True)
class Scores:
    """The scores of the clients' personal models."""

    headline: str
    """The measure used by tables, tuning and the selection of a round."""
    clients: tuple[int, ...]
    """The client numbers of the columns."""
    test_examples: tuple[int, ...]
    validation_examples: tuple[int, ...]
    test: Mapping[str, Values]
    """Values by measure."""
    validation: Mapping[str, Values]
    mean_adapter: Values | None = None
    """The validation headline of the mean that the method personalises, if any; measured after the
    last round."""

    @cached_property
    def measure(self) -> Measure:
        """The measure that the headline names."""
        return find_measure(self.headline)

    @property
    def has_classes(self) -> bool:
        """Whether examples have classes; otherwise the answers' tokens are what is counted."""
        return "token_accuracy" not in self.test

    def examples(self, split: EvaluationSplit) -> tuple[int, ...]:
        """The number of examples of each client."""
        return self.test_examples if split == "test" else self.validation_examples

    def over_clients(
        self, name: str | None = None, split: EvaluationSplit = "test"
    ) -> OverClients | None:
        """Statistics of a measure (default: the headline); None if defined for no client."""
        name = name or self.headline
        columns = self.test if split == "test" else self.validation
        if name not in columns:
            return None
        return OverClients.of(find_measure(name), columns[name], self.examples(split))

    @cached_property
    def over_test(self) -> OverClients:
        """The headline on the test data."""
        found = self.over_clients()
        if found is None:
            raise InputError(
                f"{self.headline} is not defined on any client's test data: choose another "
                "run.headline, or make sure that test sets have examples of more than one class"
            )
        return found

    @property
    def client_mean(self) -> float:
        """The headline's mean over clients on the test data."""
        return self.over_test.client_mean

    @property
    def worst_client(self) -> float:
        """The headline of the worst client."""
        return self.over_test.worst_client

    @cached_property
    def validation_mean(self) -> float | None:
        """The headline's mean over clients on their validation data; None without such data."""
        found = self.over_clients(split="validation")
        return None if found is None else found.client_mean

    def by_client(
        self, split: EvaluationSplit = "test", name: str | None = None
    ) -> dict[int, float]:
        """A measure (default: the headline) by client, where it is defined."""
        columns = self.test if split == "test" else self.validation
        return _known(self.clients, columns.get(name or self.headline, ()))

    def with_mean_adapter(self) -> dict[int, float]:
        """The validation headline of the mean model, by client."""
        return {} if self.mean_adapter is None else _known(self.clients, self.mean_adapter)

    def to_json(self) -> dict[str, Any]:
        """One JSON object: statistics of the headline, then the columns of all measures."""
        mean = {MEAN_ADAPTER: {self.headline: self.mean_adapter}} if self.mean_adapter else {}
        return {
            "headline": self.headline,
            **asdict(self.over_test),
            "validation_mean": self.validation_mean,
            "clients": self.clients,
            "test": {"examples": self.test_examples, **self.test},
            "validation": {"examples": self.validation_examples, **self.validation},
            **mean,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scores:
        """What `to_json` gave; raises KeyError where something is missing."""
        test, validation = dict(values["test"]), dict(values["validation"])
        headline, mean = values["headline"], values.get(MEAN_ADAPTER)
        return cls(
            headline,
            tuple(values["clients"]),
            tuple(test.pop("examples")),
            tuple(validation.pop("examples")),
            {name: tuple(column) for name, column in test.items()},
            {name: tuple(column) for name, column in validation.items()},
            None if mean is None else tuple(mean[headline]),
        )


def _known(clients: Sequence[int], column: Sequence[float | None]) -> dict[int, float]:
    return {i: value for i, value in zip(clients, column, strict=False) if value is not None}


def read_scores(clients: Mapping[int, Mapping[str, float]], headline: str) -> Scores:
    """Make the scores from the clients' metrics."""
    ids = sorted(clients)

    def column(prefix: str, name: str) -> Values:
        split = "test" if prefix == "test" else "validation"
        return tuple(
            clients[i].get(f"{prefix}_{name}") if clients[i][f"{split}_examples"] else None
            for i in ids
        )

    def columns(split: str) -> dict[str, Values]:
        said = {key for i in ids for key in clients[i]}
        return {name: column(split, name) for name in MEASURES if f"{split}_{name}" in said}

    def examples(split: str) -> tuple[int, ...]:
        return tuple(int(clients[i][f"{split}_examples"]) for i in ids)

    mean = column("mean_validation", headline)
    return Scores(
        headline,
        tuple(ids),
        examples("test"),
        examples("validation"),
        columns("test"),
        columns("validation"),
        mean if set(mean) - {None} else None,
    )


@dataclass(frozen=True)
class WorseOff:
    """A client for which a method is worse on validation than a simpler one."""

    method: str
    than: str
    """`local` or `fedavg`, or `mean_adapter`: the mean that the method itself personalises."""
    client: int
    ours: float
    theirs: float


def worse_off(by_method: Mapping[str, Scores]) -> list[WorseOff]:
    """All clients that are worse off with a method of one run.

    Clients with too few validation examples are not judged, and a share, such as accuracy, must be
    lower by more than one example's.
    """
    found = []
    for method, scores in by_method.items():
        if method in YARDSTICKS:
            continue
        sizes = dict(zip(scores.clients, scores.validation_examples, strict=True))
        own = {i: v for i, v in scores.by_client("validation").items() if can_be_judged(sizes[i])}
        others = {
            name: by_method[name].by_client("validation")
            for name in YARDSTICKS
            if name in by_method
        } | {MEAN_ADAPTER: scores.with_mean_adapter()}
        found += [
            WorseOff(method, than, i, value, other[i])
            for than, other in others.items()
            for i, value in own.items()
            if i in other and _clearly_better(scores.measure, other[i], value, sizes[i])
        ]
    return found


def _clearly_better(measure: Measure, one: float, other: float, examples: int) -> bool:
    """Whether a share is better by more than one example's, or another measure at all."""
    one_example = 1 / examples if measure.format is PERCENT else 0.0
    return measure.gain(one, other) > one_example * (1 + 1e-9)


@dataclass(frozen=True)
class Assessment:
    """All measures of the kept models, by client and pooled."""

    round: int
    """The round of the kept models."""
    keep: str
    """The selection: `last` or `best_on_validation`."""
    planned_rounds: int
    """The configured number of rounds."""
    scores: Scores
    counts: Mapping[int, Counts]
    """Counts by client, if sent."""
    moved: Mapping[int, float] = field(default_factory=dict)
    """By client: the adapter's relative distance from its initial value."""

    @cached_property
    def pooled(self) -> dict[str, float]:
        """Measures over the pooled test examples of all clients, where available."""
        every = [self.counts[i] for i in self.scores.clients if i in self.counts]
        together = Counts.pooled(every) if len(every) == len(self.scores.clients) else None
        found: dict[str, float | None] = {}
        for name in self.scores.test:
            pooled, over = find_measure(name).pooled, self.scores.over_clients(name)
            if pooled == "mean":
                found[name] = None if over is None else over.sample_weighted
            elif pooled is not None and together is not None:
                found[name] = pooled(together)
        return {name: value for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """The scores as one JSON object."""
        classes = next((one.num_classes for one in self.counts.values()), 0)
        return {
            "round": self.round,
            "keep": self.keep,
            "planned_rounds": self.planned_rounds,
            **self.scores.to_json(),
            "num_classes": classes,
            "counts": {str(i): one.to_json() for i, one in self.counts.items()},
            "adapter_moved": {str(i): moved for i, moved in self.moved.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Assessment:
        """What `to_json` gave; raises KeyError where something is missing."""
        classes = values["num_classes"]
        counts = {int(i): Counts.from_json(one, classes) for i, one in values["counts"].items()}
        about = (values["round"], values["keep"], values["planned_rounds"])
        moved = {int(i): far for i, far in values.get("adapter_moved", {}).items()}
        return cls(*about, Scores.from_json(values), counts, moved)
