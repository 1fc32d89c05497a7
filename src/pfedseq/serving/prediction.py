"""Predictions for the examples that the user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pfedseq.data.image_store import Report, silent
from pfedseq.errors import InputError
from pfedseq.workloads.dialogue.generation import Writer, Writing
from pfedseq.workloads.kinds import Found
from pfedseq.workloads.personal import PREDICTION_BATCH, Example, PersonalModel


@dataclass(frozen=True)
class Prediction:
    """A model's likeliest classes for one example, in descending order."""

    example: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def to_json(self, unit: str = "image") -> dict[str, Any]:
        """A JSON object; `class` and `probability` are those of the likeliest class."""
        top = [
            {"class": name, "probability": share}
            for name, share in zip(self.classes, self.probabilities, strict=True)
        ]
        return {unit: self.example, **top[0], "top": top}


def most_likely(example: str, shares: Tensor, class_names: Sequence[str], top: int) -> Prediction:
    """The `top` largest of a vector of probabilities (C,), by name."""
    best = shares.topk(min(top, len(class_names)))
    return Prediction(
        example,
        tuple(class_names[number] for number in best.indices.tolist()),
        tuple(best.values.tolist()),
    )


def predict_files(
    model: PersonalModel, files: Sequence[Path], top: int = 1, report: Report = silent
) -> Iterator[Prediction | InputError]:
    """A prediction for each file, or the error, in order."""
    return predict_found(model, [Found(str(file), file) for file in files], top, report)


def predict_found(
    model: PersonalModel, found: Sequence[Found], top: int = 1, report: Report = silent
) -> Iterator[Prediction | InputError]:
    """A prediction for each example, or the error, in order."""
    for start in range(0, len(found), PREDICTION_BATCH):
        some = found[start : start + PREDICTION_BATCH]
        examples: list[Example] = []
        outcomes: list[str | InputError] = []
        for name, content in some:
            try:
                raw = _read(content) if isinstance(content, Path) else content
                examples.append(model.read((name, raw)))
                outcomes.append(name)
            except InputError as problem:
                outcomes.append(problem)
        shares = iter(model.predict(examples))
        for outcome in outcomes:
            if isinstance(outcome, InputError):
                yield outcome
            else:
                yield most_likely(outcome, next(shares), model.class_names, top)
        report("predicting", start + len(some), len(found))


@dataclass(frozen=True)
class WrittenAnswer:
    """A language model's answer to a prompt."""

    prompt: str
    text: str

    def to_json(self, unit: str = "dialogue") -> dict[str, Any]:
        """A JSON object."""
        return {"prompt": self.prompt, "answer": self.text}


def answer_found(
    model: PersonalModel, found: Sequence[Found], how: Writing, report: Report = silent
) -> Iterator[WrittenAnswer | InputError]:
    """An answer to each prompt, or the error, in order."""
    writer = Writer(model, how)
    for done, (name, content) in enumerate(found, 1):
        try:
            raw = _read(content) if isinstance(content, Path) else content
            yield WrittenAnswer(name, writer.write(model.read((name, raw))))
        except InputError as problem:
            yield problem
        report("writing", done, len(found))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise InputError(f"cannot read {file}: {problem.strerror}") from None
