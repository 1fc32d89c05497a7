"""Evaluates a client's model on labelled examples, or on the client's own test data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.config import read_config
from pfedseq.data.image_store import Report, silent
from pfedseq.data.loading import load_data
from pfedseq.data.record import data_record, difference
from pfedseq.errors import InputError
from pfedseq.runs.folder import RunFolder
from pfedseq.workloads import find_kind
from pfedseq.workloads.kinds import Labelled
from pfedseq.workloads.personal import Example, PersonalModel


@dataclass(frozen=True)
class Evaluation:
    """All measures on a set of examples, and the confusion matrix."""

    num_examples: int
    measures: Mapping[str, float]
    """Values by name, without measures that are undefined on these examples."""
    confusion: NDArray[np.int64]
    """(C, C): examples of the row's class predicted as the column's class."""
    class_names: tuple[str, ...]
    unit: str = "image"
    """The word for one example."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object, whose confusion matrix has only the classes that occur."""
        counted = f"num_{self.unit}s"
        found: dict[str, Any] = {counted: self.num_examples, **self.measures}
        if self.class_names:
            seen = [c for c in range(len(self.class_names)) if self.confusion[c].any()]
            found["classes"] = {
                self.class_names[c]: {
                    counted: int(self.confusion[c].sum()),
                    "recall": float(self.confusion[c, c] / self.confusion[c].sum()),
                    "taken_for": {
                        self.class_names[other]: int(self.confusion[c, other])
                        for other in np.flatnonzero(self.confusion[c]).tolist()
                    },
                }
                for c in seen
            }
        return found


def evaluate_on(model: PersonalModel, labelled: Labelled, report: Report = silent) -> Evaluation:
    """Score a model on the user's labelled examples."""
    examples = (model.read(raw) for raw in labelled.read())
    return _evaluate(model, examples, labelled.labels(model.class_names), report)


class OwnTestData:
    """The test examples that a run kept for each of its clients."""

    def __init__(self, run: Path) -> None:
        folder = RunFolder(run)
        if not folder.config.exists():
            raise InputError(f"{run} has no test data: provide some with --data")
        config = read_config(folder.config)
        self.data = load_data(config.data, config.run.seed)
        then = folder.read_data()
        if then is not None and (changed := difference(then, data_record(self.data))):
            raise InputError(
                f"the data have changed since {run} ({changed}): restore the original data, or "
                "name other data with --data"
            )

    def evaluate(self, model: PersonalModel, client: str, report: Report = silent) -> Evaluation:
        """Score a client's model on its own test examples."""
        (indices,) = [c.test for c in self.data.clients if c.name == client]
        examples = self.data.examples
        prepared = find_kind(model.reader.unit).prepared(examples, indices, model)
        return _evaluate(model, prepared, examples.labels[indices], report)


def _evaluate(
    model: PersonalModel,
    examples: Iterator[Example],
    labels: NDArray[np.int64],
    report: Report,
) -> Evaluation:
    total, unit = len(labels), model.reader.unit
    if not total:
        raise InputError(f"the data have no {unit}s to evaluate on")
    found = find_kind(unit).score(model, examples, labels, report)
    confusion = np.zeros((0, 0), np.int64) if found.counts is None else found.counts.matrix()
    return Evaluation(total, found.values, confusion, model.class_names, unit)
