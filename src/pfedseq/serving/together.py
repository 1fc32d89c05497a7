"""Predictions for many clients in one pass through the backbone, each with its adapter and head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfedseq.data.image_store import Report, silent
from pfedseq.errors import InputError
from pfedseq.params import Params, weighted_mean
from pfedseq.serving.client_models import ClientModels
from pfedseq.workloads import find_kind
from pfedseq.workloads.personal import Example, PersonalModel

FEDAVGS, MEAN = "FedAvg's global model", "the mean of all clients' models"


class ModelsTogether:
    """Models of the same kind on one backbone; each row of a batch may use a different one.

    `models` may load them on demand, if each is checked against the first (`checked`).
    """

    def __init__(self, models: Sequence[PersonalModel], checked: bool = False) -> None:
        self._first = first = models[0]
        if not checked:
            for other in models:
                check_kind(first, other)
        stacked = first.model.stacked
        assert stacked is not None  # models loaded for prediction have no dropout
        self.models, self.model, self._stacked = models, first.model, stacked
        self.class_names = first.class_names

    @property
    def unit(self) -> str:
        """The word for one example."""
        return self._first.reader.unit

    def read(self, name: str, content: Any) -> Example:
        """Read one example for the models; refuses invalid content."""
        return self._first.read((name, content))

    @torch.no_grad()
    def probabilities(self, rows: Sequence[int], examples: Sequence[Example]) -> Tensor:
        """(B, C): the probabilities of example b under the model `rows[b]`, in one pass."""
        order = sorted(range(len(rows)), key=lambda place: rows[place])
        counts = Counter(rows[place] for place in order)
        asked = [self.models[number].phi for number in counts]
        inputs = self.model.inputs(self._first.inputs([examples[place] for place in order]))
        sizes = list(counts.values())
        adapters = torch.stack([phi.adapter for phi in asked])
        features = self._stacked.features(adapters, inputs, sizes)
        logits = [
            self.model.classify(phi.head, own)
            for phi, own in zip(asked, features.split(sizes), strict=True)
        ]
        shares = torch.cat(logits).softmax(1)
        back = torch.empty_like(shares)
        back[order] = shares
        return back


def check_kind(first: PersonalModel, other: PersonalModel) -> None:
    """Refuse a model that cannot share passes with the first."""
    if other.model is not first.model or other.class_names != first.class_names:
        raise InputError(
            "only models of one kind, with the same classes and on the same backbone, can "
            "be served together"
        )


def load_together(
    found: ClientModels, report: Report = silent
) -> tuple[list[PersonalModel], PersonalModel, str]:
    """All clients' models, the global model for comparison, and its description.

    The global model is FedAvg's if the run has one; otherwise the mean of all clients' models,
    weighted by their training examples as in Eq. (1).
    """
    models = []
    for index in range(len(found.places)):
        models.append(found.load(index))
        if find_kind(models[0].reader.unit).generates:
            raise InputError(
                "a language model is not served here: `pfedseq export` it, and serve the folders "
                "with a program such as vLLM or LoRAX"
            )
        report("loading models", index + 1, len(found.places))
    if (fedavgs := find_fedavg(found)) is not None:
        return models, PersonalModel.load(fedavgs, models[0].model), FEDAVGS
    return models, mean_model(models), MEAN


def find_fedavg(found: ClientModels) -> Path | None:
    """The folder of FedAvg's global model; None if the run has none."""
    if not (found.path / "adapters" / "fedavg").is_dir():
        return None
    return ClientModels.open(found.path, "fedavg").places[0].folder


def mean_model(models: Sequence[PersonalModel]) -> PersonalModel:
    """The mean of adapters and heads, weighted by |D_i| if every model has it."""
    sizes = [one.about.get("num_train") for one in models]
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    weights = torch.tensor(sizes if known else [1] * len(models), dtype=torch.float32)
    phi = Params(
        weighted_mean(torch.stack([one.phi.adapter for one in models]), weights),
        weighted_mean(torch.stack([one.phi.head for one in models]), weights),
    )
    return PersonalModel(models[0].model, phi, models[0].class_names, models[0].reader)
