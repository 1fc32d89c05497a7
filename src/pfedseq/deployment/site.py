"""A site of a federation: its data and model, as its owner configured them.

The node config, never a message, names the data that a site reads: a folder of images (`data`), or
the run's own data set, of which the site is the client `partition-id`.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfedseq.config import Config, dump_config, make_config
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import DialogueSet, ExampleSet
from pfedseq.data.loading import load_data
from pfedseq.deployment.messages import Request
from pfedseq.deployment.site_config import SiteConfig
from pfedseq.deployment.site_folder import Equipment, SiteFolder
from pfedseq.engines.privacy import Privacy, PrivacyConfig
from pfedseq.errors import InputError
from pfedseq.federation import Tensors
from pfedseq.methods import find_method
from pfedseq.model.task import ExampleSite
from pfedseq.workloads import find_workload
from pfedseq.workloads.workload import Workload


def adjusted(mine: SiteConfig, text: str) -> Config:
    """The run's config with this site's own paths and device."""
    config = make_config(tomllib.loads(text))
    if mine.backbone is not None:
        model = config.model.model_copy(update={"backbone": mine.backbone})
        config = config.model_copy(update={"model": model})
    device = mine.device or "auto"
    engine = config.engine.model_copy(update={"device": device})
    return config.model_copy(update={"engine": engine})


def own_data(mine: SiteConfig, run: DataConfig) -> DataConfig:
    """A [data] section for the site's examples, with the run's splits."""
    assert mine.data is not None
    kind = find_workload(run)
    given: dict[str, Any] = {"name": kind.own_data, "source": str(mine.data)}
    if mine.data.suffix == ".toml":
        try:
            given = tomllib.loads(mine.data.read_text(encoding="utf-8"))["data"]
        except (OSError, tomllib.TOMLDecodeError, KeyError) as problem:
            raise InputError(
                f"site {mine.name}: {mine.data} has no valid [data] section ({problem})"
            ) from None
    common = run.model_dump(include={"train_fraction", "validation_fraction"})
    alone = {"partition": "iid", "num_clients": 1}
    return make_config({"data": {**common, **alone, **given, **kind.agreed(run)}}).data


def equip(mine: SiteConfig, request: Request, place: Path) -> Equipment:
    """The client's half of the request's method, with this site's data and backbone."""
    config, workload, site, examples = _site(mine, request.config, request.classes)
    method = find_method(request.method)
    torch.set_num_threads(config.engine.threads_per_client)
    whose = {"client": mine.name, "number": request.client, "method": request.method}
    options = config.method_config(request.method)
    workload = workload.widened(options.rank_blocks)
    site = replace(site, client=request.client, model=workload.model)
    return Equipment(
        method.client,
        options,
        workload.saves(site, place / "model", examples, **whose),
        site.model.device,
        workload.model.encoder.checksum() if request.step == "hello" else "",
        version("pfedseq"),
        config.federation.payload,
        own_noise(config.privacy, SiteFolder(mine.folder), request),
    )


def own_noise(config: PrivacyConfig, folder: SiteFolder, request: Request) -> Privacy | None:
    """Clipping, and noise that the server cannot know because it depends on the site's secret.

    A repeated message gets the same answer, so that repeating it reveals nothing new; a message
    that differs in any way gets different noise.
    """
    if config.noise is None:
        return None
    secret = folder.secret()

    def draw(t: int, i: int, down: Tensors) -> torch.Generator:
        what = hashlib.sha256(secret)
        what.update(repr((request.run, request.method, t, request.exchange, i)).encode())
        for name in sorted(down):
            what.update(name.encode() + down[name].detach().cpu().numpy().tobytes())
        return torch.Generator().manual_seed(int.from_bytes(what.digest()[:8], "big") >> 1)

    return Privacy(config, draw)


def with_classes(examples: ExampleSet, classes: tuple[str, ...], site: str) -> ExampleSet:
    """The examples with labels in the federation's order of classes."""
    if isinstance(examples, DialogueSet) or examples.class_names == classes:
        return examples
    missing = sorted(set(examples.class_names) - set(classes))
    if missing:
        raise InputError(
            f"site {site} has {examples.unit}s of {', '.join(missing)}, which the federation does "
            "not know"
        )
    places = np.array([classes.index(name) for name in examples.class_names], dtype=np.int64)
    return replace(examples, labels=places[examples.labels], class_names=classes)


@lru_cache(maxsize=4)
def _site(
    mine: SiteConfig, text: str, classes: tuple[str, ...]
) -> tuple[Config, Workload, ExampleSite, ExampleSet]:
    """This site's data and model, kept for the lifetime of the process."""
    config = adjusted(mine, text)
    data = _data(config.data if mine.data is None else own_data(mine, config.data), config.run.seed)
    examples = data.examples
    if classes:
        examples = with_classes(examples, classes, mine.name)
    number = 0 if mine.partition is None or mine.data is not None else mine.partition
    if number >= len(data.clients):
        raise InputError(
            f"site {mine.name} has partition-id={number}, but the run's data are divided among "
            f"{len(data.clients)} clients, numbered from 0"
        )
    data = replace(data, examples=examples, clients=(data.clients[number],))
    workload = _workload(dump_config(config), len(examples.class_names))
    site = workload.site(number, data.clients[0], workload.examples(data))
    return config, workload, site, examples


_data = lru_cache(maxsize=1)(load_data)
"""In a simulation, the sites share one process and the run's data."""


@lru_cache(maxsize=1)
def _workload(text: str, num_classes: int) -> Workload:
    """The workload, whose backbone all sites of a process share."""
    config = make_config(tomllib.loads(text))
    return find_workload(config.data).load(config, num_classes)
