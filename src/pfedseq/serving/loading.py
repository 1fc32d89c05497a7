"""Loads the models to serve from a folder."""

from __future__ import annotations

from pathlib import Path

from pfedseq.data.image_store import Report, silent
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.generations import Served
from pfedseq.serving.model_cache import ModelCache
from pfedseq.serving.together import FEDAVGS, MEAN, ModelsTogether, find_fedavg, load_together
from pfedseq.workloads.personal import PersonalModel


def load_served(path: Path, method: str | None, in_memory: int, report: Report = silent) -> Served:
    """Load all clients' models if there are at most `in_memory`, otherwise each on demand."""
    found = ClientModels.open(path, method)
    names = tuple(found.names)
    if len(names) <= in_memory:
        models, everyones, global_is = load_together(found, report)
        return Served(ModelsTogether([*models, everyones]), names, found.method, global_is)
    first = found.load(0)
    fedavgs = find_fedavg(found)
    shared = None if fedavgs is None else PersonalModel.load(fedavgs, first.model)
    cache = ModelCache(found, first, in_memory, shared)
    global_is = MEAN if fedavgs is None else FEDAVGS
    return Served(ModelsTogether(cache, checked=True), names, found.method, global_is)
