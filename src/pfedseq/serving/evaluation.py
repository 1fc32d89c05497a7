"""How good a client's model is: on labelled images of a folder, or on its own test images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfedseq.config import read_config
from pfedseq.data.dataset import ImageSet
from pfedseq.data.folder import open_folder
from pfedseq.data.image_store import Report, silent
from pfedseq.data.loading import load_data
from pfedseq.data.location import Location
from pfedseq.data.record import data_record, difference
from pfedseq.errors import InputError
from pfedseq.measures import MEASURES, score
from pfedseq.runs.folder import RunFolder
from pfedseq.words import some
from pfedseq.workloads.personal import PREDICTION_BATCH, PersonalModel


@dataclass(frozen=True)
class Evaluation:
    """All measures on some examples, and how often each class was taken for which."""

    num_images: int
    measures: Mapping[str, float]
    """By name; one that is not defined on these examples is missing."""
    confusion: NDArray[np.int64]
    """(C, C): images of the row's class that were taken for the column's."""
    class_names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """One object; the confusion has only the classes that occur."""
        seen = [c for c in range(len(self.class_names)) if self.confusion[c].any()]
        return {
            "num_images": self.num_images,
            **self.measures,
            "classes": {
                self.class_names[c]: {
                    "num_images": int(self.confusion[c].sum()),
                    "recall": float(self.confusion[c, c] / self.confusion[c].sum()),
                    "taken_for": {
                        self.class_names[other]: int(self.confusion[c, other])
                        for other in np.flatnonzero(self.confusion[c]).tolist()
                    },
                }
                for c in seen
            },
        }


class LabelledImages:
    """Images of a folder with a folder for each class, decoded as they are asked for."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise InputError(f"there is no file or folder {path}: check --data")
        self.path, self.source = path, open_folder(Location(path.resolve(), None), "class")

    def labels(self, class_names: Sequence[str]) -> NDArray[np.int64]:
        """(n,) in the numbering of `class_names`; refuses classes that are not among them."""
        known = {name: number for number, name in enumerate(class_names)}
        if unknown := [name for name in self.source.class_names if name not in known]:
            raise InputError(
                f"{self.path} has folders of classes that the model does not know "
                f"({some(unknown)}); it knows {some(list(class_names))}"
            )
        numbers = np.array([known[name] for name in self.source.class_names], dtype=np.int64)
        return numbers[self.source.labels]

    def read(self, model: PersonalModel) -> Iterator[NDArray[np.uint8]]:
        """Each image as the model's backbone wants it, in order."""
        for block in self.source.blocks:
            for raw in block.read():
                yield model.read(raw)


def evaluate_on_folder(
    model: PersonalModel, images: LabelledImages, report: Report = silent
) -> Evaluation:
    """Score a model on a folder of labelled images."""
    return _evaluate(model, images.read(model), images.labels(model.class_names), report)


class OwnTestImages:
    """The test images that a run kept for each of its clients."""

    def __init__(self, run: Path) -> None:
        folder = RunFolder(run)
        if not folder.config.exists():
            raise InputError(f"{run} is no run with test images of its own: name some with --data")
        config = read_config(folder.config)
        self.data = load_data(config.data, config.run.seed)
        then = folder.read_data()
        if then is not None and (changed := difference(then, data_record(self.data))):
            raise InputError(
                f"the data are not those that {run} was made on ({changed}): bring back the former "
                "data, or name images with --data"
            )

    def evaluate(self, model: PersonalModel, client: str, report: Report = silent) -> Evaluation:
        """Score a client's model on its own test images."""
        (indices,) = [c.test for c in self.data.clients if c.name == client]
        images = self.data.examples
        if not isinstance(images, ImageSet):
            raise InputError("the run was made on texts: its own evaluation is in summary.json")
        return _evaluate(model, iter(images.images[indices]), images.labels[indices], report)


@torch.no_grad()
def _evaluate(
    model: PersonalModel,
    images: Iterator[NDArray[np.uint8]],
    labels: NDArray[np.int64],
    report: Report,
) -> Evaluation:
    total = len(labels)
    if not total:
        raise InputError("there are no images to evaluate on")
    logits = []
    for start in range(0, total, PREDICTION_BATCH):
        wanted = labels[start : start + PREDICTION_BATCH]
        logits.append(model.logits(model.inputs([next(images) for _ in wanted])).cpu())
        report("evaluating", start + len(wanted), total)
    found = score(torch.cat(logits), torch.from_numpy(labels), tuple(MEASURES), counts=True)
    assert found.counts is not None  # asked for
    return Evaluation(total, found.values, found.counts.matrix(), model.class_names)
