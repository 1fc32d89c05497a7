"""A site of a federation: its own data and model, as its owner configured them.

What a site reads is named by its owner, in the node config, never by a message: a folder of images
(`data`), or the run's own data set, of which it is the client `partition-id`.
"""

from __future__ import annotations

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
from pfedseq.data.dataset import ImageSet
from pfedseq.data.loading import load_data
from pfedseq.deployment.messages import Request
from pfedseq.deployment.site_config import SiteConfig
from pfedseq.deployment.site_folder import Equipment
from pfedseq.errors import InputError
from pfedseq.methods import find_method
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.backbone import Backbone
from pfedseq.model.encoders.vit.tower import Tower, fingerprint
from pfedseq.model.task import ExampleSite
from pfedseq.params import Params
from pfedseq.runs.world import image_source, load_model
from pfedseq.workloads.personal import save_personal_model


def adjusted(mine: SiteConfig, text: str) -> Config:
    """The run's config with what this site has elsewhere."""
    config = make_config(tomllib.loads(text))
    if mine.backbone is not None:
        model = config.model.model_copy(update={"backbone": mine.backbone})
        config = config.model_copy(update={"model": model})
    device = mine.device or "auto"
    engine = config.engine.model_copy(update={"device": device})
    return config.model_copy(update={"engine": engine})


def own_data(mine: SiteConfig, run: DataConfig) -> DataConfig:
    """A [data] section for the site's own images, split as the run says."""
    assert mine.data is not None
    given: dict[str, Any] = {"name": "folder", "source": str(mine.data)}
    if mine.data.suffix == ".toml":
        try:
            given = tomllib.loads(mine.data.read_text(encoding="utf-8"))["data"]
        except (OSError, tomllib.TOMLDecodeError, KeyError) as problem:
            raise InputError(
                f"site {mine.name}: {mine.data} holds no [data] section ({problem})"
            ) from None
    common = run.model_dump(include={"image_size", "train_fraction", "validation_fraction"})
    alone = {"partition": "iid", "num_clients": 1}
    return make_config({"data": {**common, **alone, **given, "image_size": run.side}}).data


def equip(mine: SiteConfig, request: Request, place: Path) -> Equipment:
    """The client's half of the request's method, around this site's data and backbone."""
    config, site, images = _site(mine, request.config, request.classes)
    method = find_method(request.method)
    torch.set_num_threads(config.engine.threads_per_client)

    def keep(phi: Params) -> None:
        save_personal_model(
            place / "model",
            site.model,
            phi,
            images.class_names,
            images.window,
            client=mine.name,
            number=request.client,
            method=request.method,
            num_train=len(site.data.train),
        )

    return Equipment(
        method.client,
        config.method_config(request.method),
        replace(site, client=request.client, keep=keep),
        site.model.device,
        backbone_checksum(site.model) if request.step == "hello" else "",
        version("pfedseq"),
        config.federation.payload,
    )


def backbone_checksum(model: AdaptedModel) -> str:
    """Changes when any frozen weight does."""
    vit = model.backbone.model
    return fingerprint(Tower(vit, 0, len(vit.layers)))


def with_classes(images: ImageSet, classes: tuple[str, ...], site: str) -> ImageSet:
    """The same images labelled in the federation's order of classes."""
    if images.class_names == classes:
        return images
    missing = sorted(set(images.class_names) - set(classes))
    if missing:
        raise InputError(
            f"site {site} has images of {', '.join(missing)}, which the federation does not know"
        )
    places = np.array([classes.index(name) for name in images.class_names], dtype=np.int64)
    return replace(images, labels=places[images.labels], class_names=classes)


@lru_cache(maxsize=4)
def _site(
    mine: SiteConfig, text: str, classes: tuple[str, ...]
) -> tuple[Config, ExampleSite, ImageSet]:
    """Data and model of this site, kept as long as its process lives."""
    config = adjusted(mine, text)
    data = _data(config.data if mine.data is None else own_data(mine, config.data), config.run.seed)
    images = data.examples
    if not isinstance(images, ImageSet):
        raise InputError(f"site {mine.name} has texts: sites of a federation hold images for now")
    if classes:
        images = with_classes(images, classes, mine.name)
    number = 0 if mine.partition is None or mine.data is not None else mine.partition
    if number >= len(data.clients):
        raise InputError(
            f"site {mine.name} has partition-id={number}, but the run's data are divided among "
            f"{len(data.clients)} clients, counted from 0"
        )
    data = replace(data, examples=images, clients=(data.clients[number],))
    backbone, model = _model(dump_config(config), len(images.class_names))
    source = image_source(config, data, backbone, model)
    training = config.training
    site = ExampleSite(
        number,
        model,
        source,
        data.clients[0],
        training.batch_size,
        config.run.seed,
        examples_per_round=training.examples_per_round,
        measures=config.run.each_evaluation,
    )
    return config, site, images


_data = lru_cache(maxsize=1)(load_data)
"""A simulation's sites share one process, and the run's data."""


@lru_cache(maxsize=1)
def _model(text: str, num_classes: int) -> tuple[Backbone, AdaptedModel]:
    """The backbone that all sites of a process share."""
    return load_model(make_config(tomllib.loads(text)), num_classes)
