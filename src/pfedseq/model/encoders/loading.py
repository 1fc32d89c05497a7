"""Reads a backbone's files, and loads its model with transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import cached_file, logging

from pfedseq.errors import InputError
from pfedseq.files import read_object
from pfedseq.hub_access import REMEDY, without_waiting
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.tensor_files import UNREADABLE, reason
from pfedseq.model.geometry import name_some


def read_config(name: str) -> dict[str, Any]:
    """The config.json of a folder or hub repository."""
    return read_object(Path(find_file(name, "config.json"))) or {}


def find_file(name: str, filename: str) -> str:
    """The path of one file of a local folder or hub repository."""
    local = Path(name).is_dir()
    looks_like_hub_id = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith(".")
    if not local and not looks_like_hub_id:
        raise InputError(f"backbone {name!r} is neither an existing folder nor a hub id")
    try:
        with nullcontext() if local else without_waiting():
            path = cached_file(name, filename)
    except OSError as error:
        remedy = "" if local else f"; if the hub cannot be reached, {REMEDY}"
        raise InputError(
            f"cannot read {filename} of backbone {name!r}: {reason(error).rstrip('.')}{remedy}"
        ) from error
    if path is None:
        raise InputError(f"backbone folder {name!r} has no {filename}")
    return str(path)


def find_optional(name: str, filename: str) -> dict[str, Any]:
    """A JSON object of a folder or hub repository; {} where there is none."""
    try:
        with nullcontext() if Path(name).is_dir() else without_waiting():
            path = cached_file(name, filename, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        raise InputError(
            f"backbone {name!r} cannot be asked for its {filename}: {reason(error)}; if the hub "
            f"cannot be reached, {REMEDY}"
        ) from error
    return (read_object(Path(path)) if path else None) or {}


def load_weights(name: str, family: Family) -> PreTrainedModel:
    """The complete model of a folder or hub id, loaded by transformers, frozen, in float32."""
    try:
        with quiet_transformers(progress_bar=not Path(name).is_dir()):
            model, report = getattr(transformers, family.model_class).from_pretrained(
                name,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that they are reported by name and refused below
                weights_only=True,
                dtype=torch.float32,
                **family.load_options,
            )
    except UNREADABLE as error:
        raise InputError(f"backbone {name!r} cannot be read: {reason(error)}") from error
    refuse_unfit(name, family, report)
    check_finite(name, model)
    frozen: PreTrainedModel = model.requires_grad_(False).eval()
    return frozen


def refuse_unfit(name: str, family: Family, report: dict[str, Any]) -> None:
    """Refuse missing weights, wrong shapes, and blocks that the config does not have."""
    blocks = family.places.layers.split(".")[-1]
    missing = sorted(report["missing_keys"])
    unexpected = sorted(
        key
        for key in report["unexpected_keys"]
        if blocks in key.split(".") and not key.startswith(family.other_towers)
    )
    misshapen = sorted(f"{key} {tuple(shape)}" for key, shape, _ in report["mismatched_keys"])
    if missing or unexpected or misshapen:
        raise InputError(
            f"backbone {name!r} is not a complete {family.title}: missing {name_some(missing)}; "
            f"unexpected {name_some(unexpected)}; shapes that differ from its config: "
            f"{name_some(misshapen)}"
        )


def check_finite(name: str, model: nn.Module) -> None:
    """Refuse weights that contain NaN or infinity."""
    for tensor, values in model.state_dict().items():
        if not values.isfinite().all():
            raise InputError(
                f"backbone {name!r} contains NaN or infinity (in {tensor}): its weights are "
                "damaged; download or copy them again"
            )


@contextmanager
def quiet_transformers(progress_bar: bool) -> Iterator[None]:
    """Silence transformers' reports and progress bars; mismatches are raised as errors."""
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress_bar:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
