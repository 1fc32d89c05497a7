"""A cache for more clients' models than fit in memory: loaded on demand, least recently used out.

The backbone is in memory once; a client's adapter and head are read from its folder, which takes
milliseconds. The mean of all models, which a comparison needs if the run has no FedAvg model, is
computed in a separate thread, one model at a time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import overload

import torch

from pfedseq.errors import InputError
from pfedseq.params import Params
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.together import check_kind
from pfedseq.workloads.personal import PersonalModel


class NotYet(Exception):
    """The requested model is still being computed."""


class ModelCache(Sequence[PersonalModel]):
    """The models of all clients and, last, the global one; at most `most` clients' in memory.

    All share the backbone of `first`. Without `everyones`, the global model is the clients' mean.
    """

    def __init__(
        self,
        found: ClientModels,
        first: PersonalModel,
        most: int,
        everyones: PersonalModel | None = None,
    ) -> None:
        self._found, self.first, self._most = found, first, most
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, PersonalModel] = OrderedDict({0: first})
        self._closed = threading.Event()
        self.loads = 0
        """The number of models read from their folders."""
        if everyones is not None:
            check_kind(self.first, everyones)
        self._everyones, self._problem = everyones, ""
        if everyones is None:
            threading.Thread(target=self._average, name="mean", daemon=True).start()

    def __len__(self) -> int:
        return len(self._found.places) + 1

    @property
    def kept(self) -> int:
        """Number of clients' models in memory."""
        return len(self._kept)

    @overload
    def __getitem__(self, index: int) -> PersonalModel: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PersonalModel]: ...
    def __getitem__(self, index: int | slice) -> PersonalModel | Sequence[PersonalModel]:
        """The model of a client or, at the last index, the global one, once it is computed."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if index in (-1, len(self) - 1):
            return self._global()
        with self._lock:  # one load at a time, so that a second request for a model waits for it
            model = self._kept.pop(index, None) or self._load(index)
            self._kept[index] = model
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return model

    def close(self) -> None:
        """Stop computing the mean."""
        self._closed.set()

    def _load(self, index: int) -> PersonalModel:
        self.loads += 1
        folder = self._found.places[index].folder
        model = PersonalModel.load(folder, self.first.model)
        try:
            check_kind(self.first, model)
        except InputError as problem:
            raise InputError(f"{folder}: {problem}") from None
        return model

    def _global(self) -> PersonalModel:
        if self._everyones is not None:
            return self._everyones
        raise NotYet(
            self._problem or "the mean of all clients' models is still being computed: try again"
        )

    def _average(self) -> None:
        """Compute the mean, weighted by |D_i| if every model has it: Eq. (1)."""
        try:
            sums = [_Mean(), _Mean()]  # weighted, and plain
            known = True
            for index in range(len(self._found.places)):
                if self._closed.is_set():
                    return
                with self._lock:
                    model = self._load(index)
                size = model.about.get("num_train")
                known = known and isinstance(size, int) and size > 0
                sums[0].add(model.phi, float(size) if known and size is not None else 0.0)
                sums[1].add(model.phi, 1.0)
            phi = sums[0 if known else 1].value()
        except InputError as problem:
            self._problem = f"the mean of all clients' models cannot be computed: {problem}"
            return
        first = self.first
        self._everyones = PersonalModel(first.model, phi, first.class_names, first.reader)


class _Mean:
    """A running weighted mean of φ."""

    def __init__(self) -> None:
        self._sum: Params | None = None
        self._weight = 0.0

    def add(self, phi: Params, weight: float) -> None:
        wide = weight * Params(phi.adapter.to(torch.float64), phi.head.to(torch.float64))
        self._sum = wide if self._sum is None else self._sum + wide
        self._weight += weight

    def value(self) -> Params:
        assert self._sum is not None
        mean = (1 / self._weight) * self._sum
        return Params(mean.adapter.to(torch.float32), mean.head.to(torch.float32))
