"""A run's folder as an object: config, results as data frames, clients' models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pfedseq.config import Config, read_config
from pfedseq.data.arrays import pixels
from pfedseq.errors import InputError
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import RunSummary, evaluated, summarise_run
from pfedseq.runs.scores import Scores
from pfedseq.serving.client_models import ClientModels
from pfedseq.workloads.dialogue.generation import Writer, Writing
from pfedseq.workloads.personal import PREDICTION_BATCH, PersonalModel

if TYPE_CHECKING:
    import pandas


def open_run(folder: Path | str) -> Run:
    """Open the run in a folder, finished or not."""
    path = Path(folder).absolute()  # survives a change of the working directory
    if not RunFolder(path).config.exists():
        raise InputError(f"{path} holds no run: it has no config.toml")
    return Run(path)


class Run:
    """The results folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = RunFolder(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, methods={list(self.config.run.methods)})"

    @cached_property
    def config(self) -> Config:
        """The run's resolved config."""
        return read_config(self._folder.config)

    @property
    def summary(self) -> RunSummary:
        """The result of every method; of an unfinished run, up to its last evaluated round."""
        if self._folder.summary.exists():
            return self._folder.read_summary()
        methods = {
            name: summarise_run(records[: last + 1], self._folder.read_assessment(name))
            for name, records in self._folder.by_method().items()
            for last in [max((k for k, r in enumerate(records) if r.scores), default=None)]
            if last is not None
        }
        return RunSummary(methods, tuple(self.client_names))

    @cached_property
    def client_names(self) -> list[str]:
        """The clients' own names, by number."""
        data = self._folder.read_data() or {"clients": []}
        return [client["name"] for client in data["clients"]]

    def rounds(self) -> pandas.DataFrame:
        """A row for each method and round: every measure over clients, and what the round cost.

        `accuracy` is the mean over clients on test data, `accuracy_worst` the worst client,
        `validation_accuracy` the mean on validation data; NaN where a round was not evaluated.
        """
        rows = []
        for record in self._folder.records():
            row: dict[str, Any] = {"method": record.method, "round": record.round}
            for name in record.scores.test if record.scores else ():
                row |= _over_clients(record.scores, name)
            rows.append({**row, **asdict(record.cost), "answered": record.answered})
        return _frame(rows)

    def clients(self, every_round: bool = False) -> pandas.DataFrame:
        """A row for each method and client: its examples and every measure of the model it keeps.

        With `every_round`, a row for each evaluation, with the measures that it has.
        """
        rows: list[dict[str, Any]] = []
        for method, records in self._folder.by_method().items():
            if every_round:
                for t, scores in evaluated(records):
                    rows += self._client_rows(method, t, scores)
            elif method in self.summary.methods:
                found = self.summary.methods[method]
                rows += self._client_rows(method, found.kept_round, found.scores)
        return _frame(rows)

    def _client_rows(self, method: str, t: int, scores: Scores) -> Iterator[dict[str, Any]]:
        for place, i in enumerate(scores.clients):
            name = self.client_names[i] if i < len(self.client_names) else str(i)
            yield {
                "method": method,
                "round": t,
                "client": name,
                "test_examples": scores.test_examples[place],
                "validation_examples": scores.validation_examples[place],
                **{measure: column[place] for measure, column in scores.test.items()},
                **{f"validation_{m}": column[place] for m, column in scores.validation.items()},
            }

    def curves(self, measure: str | None = None) -> pandas.DataFrame:
        """A measure (the headline) by round, a column for each method: `run.curves().plot()`."""
        columns = {
            method: {
                t: over.client_mean
                for t, scores in evaluated(records)
                if (over := scores.over_clients(measure)) is not None
            }
            for method, records in self._folder.by_method().items()
        }
        frame = _frame(columns)
        frame.index.name = "round"
        return frame.sort_index()

    def model(self, client: str, method: str | None = None) -> ClientModel:
        """A client's personal model, from `method` or from the run's first method.

        `client` is a client's name, its folder's name such as `client_03`, or its number.
        """
        models = ClientModels.open(self.path, method)
        return ClientModel(models.load(models.find(str(client))))


class ClientModel(nn.Module):
    """A client's personal model as a torch module."""

    def __init__(self, personal: PersonalModel) -> None:
        super().__init__()
        self.personal = personal
        self.class_names = personal.class_names

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, C) of prepared inputs (`prepare`)."""
        return self.personal.logits(inputs)

    def prepare(self, examples: Sequence[Any]) -> Tensor:
        """Inputs (B, …) of images (file names, PIL or arrays, as for `run`'s data) or of texts."""
        return self.personal.inputs([self.personal.read(_raw(one)) for one in _several(examples)])

    @torch.no_grad()
    def predict_proba(self, examples: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Class probabilities (n, C)."""
        if not self.class_names:
            raise InputError("a language model names no classes: `predict` gives its answers")
        examples = _several(examples)
        parts = [
            self(self.prepare(examples[start : start + PREDICTION_BATCH])).double().softmax(1).cpu()
            for start in range(0, len(examples), PREDICTION_BATCH)
        ]
        found: np.ndarray[Any, np.dtype[np.float64]] = torch.cat(parts).numpy()
        return found

    def predict(self, examples: Sequence[Any]) -> list[str]:
        """The name of the most likely class of each example; of a language model, its answers."""
        if not self.class_names:
            writer = Writer(self.personal, Writing())
            return [writer.write(self.personal.read(_raw(one))) for one in _several(examples)]
        return [self.class_names[c] for c in self.predict_proba(examples).argmax(1)]


def _several(examples: Any) -> Sequence[Any]:
    """The examples; refuses one alone, whose rows or letters would pass for examples."""
    shape: tuple[int, ...] = getattr(examples, "shape", ())
    alone = isinstance(examples, str | Path | Image.Image)
    if alone or len(shape) == 2 or (len(shape) == 3 and shape[-1] in (1, 3)):
        raise InputError("pass a list of examples, also for a single one: [example]")
    several: Sequence[Any] = examples
    return several


def _raw(one: Any) -> tuple[str, Any]:
    if isinstance(one, Path):
        return str(one), one.read_bytes()
    if isinstance(one, str):
        return ("text", one) if not Path(one).is_file() else (one, Path(one).read_bytes())
    if isinstance(one, Image.Image) or hasattr(one, "shape"):
        return "an image", pixels(one, "an image")
    raise InputError(f"a {type(one).__name__} is not an example: pass file names, images or texts")


def _over_clients(scores: Scores | None, name: str) -> dict[str, float]:
    row: dict[str, float] = {}
    if scores is not None and (over := scores.over_clients(name)) is not None:
        row = {name: over.client_mean, f"{name}_worst": over.worst_client}
        if (validation := scores.over_clients(name, "validation")) is not None:
            row[f"validation_{name}"] = validation.client_mean
    return row


def _frame(values: Any) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise InputError(
            "data frames need pandas, which is not installed: pip install 'pfedseq[frames]'"
        ) from None
    return pandas.DataFrame(values)
