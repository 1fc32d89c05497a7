"""Predictions on the images that a person names: files, folders and patterns."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.data.file_tree import FileTree
from pfedseq.data.image_store import Report, silent
from pfedseq.errors import InputError
from pfedseq.workloads.personal import PREDICTION_BATCH, PersonalModel


@dataclass(frozen=True)
class Prediction:
    """What a model makes of one image: its likeliest classes, the likeliest first."""

    image: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """One object; `class` and `probability` are those of the first."""
        top = [
            {"class": name, "probability": share}
            for name, share in zip(self.classes, self.probabilities, strict=True)
        ]
        return {"image": self.image, **top[0], "top": top}


def most_likely(image: str, shares: Tensor, class_names: Sequence[str], top: int) -> Prediction:
    """The `top` largest of a vector of probabilities (C,), by name."""
    best = shares.topk(min(top, len(class_names)))
    return Prediction(
        image,
        tuple(class_names[number] for number in best.indices.tolist()),
        tuple(best.values.tolist()),
    )


def find_images(named: Sequence[str]) -> list[Path]:
    """The files that arguments stand for, in order; of a folder all images at any depth."""
    found: list[Path] = []
    for argument in named:
        path = Path(argument).expanduser()
        if path.is_dir():
            inside = [path / name for name in FileTree(path).images()]
            if not inside:
                raise InputError(f"{path} has no images in it")
        elif path.exists():
            inside = [path]
        else:
            inside = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
            inside = [match for match in inside if match.is_file()]
            if not inside:
                raise InputError(f"there is no image {argument}")
        found += inside
    return found


def predict_files(
    model: PersonalModel, files: Sequence[Path], top: int = 1, report: Report = silent
) -> Iterator[Prediction | InputError]:
    """A prediction for each file, or why there is none, in order."""
    for start in range(0, len(files), PREDICTION_BATCH):
        some = files[start : start + PREDICTION_BATCH]
        images: list[NDArray[np.uint8]] = []
        outcomes: list[str | InputError] = []
        for file in some:
            try:
                images.append(model.read((str(file), _read(file))))
                outcomes.append(str(file))
            except InputError as problem:
                outcomes.append(problem)
        shares = iter(model.predict(images))
        for outcome in outcomes:
            if isinstance(outcome, InputError):
                yield outcome
            else:
                yield most_likely(outcome, next(shares), model.class_names, top)
        report("predicting", start + len(some), len(files))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise InputError(f"cannot read {file}: {problem.strerror}") from None
