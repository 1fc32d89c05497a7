"""What a run's results depend on, so that it is never continued under other conditions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from pfedseq.config import Config
from pfedseq.data.record import data_record
from pfedseq.learners.fused_mamba import fused_mamba
from pfedseq.methods import METHODS

if TYPE_CHECKING:
    from pfedseq.runs.world import World

MadeWith = Mapping[str, Any]
"""The dependencies of a result by name, as JSON values."""

_WITHOUT_EFFECT = {
    "plugins",  # the method's options are compared
    "run.name",
    "run.methods",
    "run.checkpoint_every",
    "data.source",  # the images are compared
    "data.store",
    "auxiliary.store",
    "engine.kind",
    "engine.threads",
    "engine.states",
    "engine.device",  # the resolved device and clients per pass are compared
    "engine.clients_per_pass",
    "flower.sites",  # the clients are compared
    "flower.start_seconds",
    "flower.answer_seconds",
    "flower.classes",
    "flower.newcomers",
}


def made_with(world: World, method: str) -> dict[str, Any]:
    """The dependencies of a method's checkpoint, by name."""
    data = data_record(world.data)
    config = world.written_out(world.config)
    return options_made_with(config, method, world.device) | {
        "clients in a pass": world.clients_per_pass,
        **({"devices": world.num_devices} if world.copies else {}),
        "images": data["images_sha256"],
        "labels": data["labels_sha256"],
        "division among clients": digest(data["clients"]),
    }


def options_made_with(config: Config, method: str, device: torch.device) -> dict[str, Any]:
    """The dependencies other than data: options, versions and the machine's arithmetic."""
    options = {
        key: value
        for key, value in config_values(config).items()
        if key not in _WITHOUT_EFFECT
        and (not key.startswith("methods.") or key.startswith(f"methods.{method}."))
    }
    kernel = fused_mamba() if method == "pfedseq" else None
    values = {
        "version of pfedseq": version("pfedseq"),
        "version of torch": torch.__version__,
        "device": device.type,
        "kernel": "plain PyTorch" if kernel is None else kernel.variant,
        **({"the method's code": origin.code} if (origin := METHODS.origins.get(method)) else {}),
        **{f"config key {key}": value for key, value in options.items()},
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))  # as read back from a file
    return plain


def difference(then: MadeWith, now: MadeWith) -> str | None:
    """The first difference, as `name was x, is y`."""
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            before, after = (_shown(values.get(name)) for values in (then, now))
            return f"{name} was {before}, is {after}"
    return None


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def config_values(config: Config) -> dict[str, Any]:
    """Every option that is set, by its dotted key."""
    return dict(_flat(config.model_dump(mode="json", exclude_none=True)))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def digest(value: Any) -> str:
    """A digest of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
