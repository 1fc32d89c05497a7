"""φ^0 from a PEFT folder: a run that continues from an existing adapter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pfedseq.data.image_store import sha256_of
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.peft_folder import WEIGHTS_FILE, PeftFolder, params_of, read_peft_folder
from pfedseq.params import Params


def starting_params(model: AdaptedModel) -> Params:
    """φ^0 of all clients: the weights of `adapter.start`, or the model's random initial ones."""
    config = model.adapter_config
    if config.start is None:
        return model.initial
    folder = Path(config.start)
    read = read_peft_folder(folder, model.encoder.places)
    if config.start_sha256 not in (None, starting_sha256(config)):
        raise InputError(
            f"the adapter in {folder} is not the one that this run started from: restore the "
            "original, or start a new run"
        )
    _check_kind(config, read.adapter, model.depth, folder)
    return params_of(_with_head(read, config, folder), model, folder)


def starting_sha256(config: AdapterConfig) -> str | None:
    """The checksum of the weights of `adapter.start`."""
    return None if config.start is None else sha256_of(Path(config.start) / WEIGHTS_FILE)


def _with_head(read: PeftFolder, config: AdapterConfig, folder: Path) -> PeftFolder:
    if not config.start_head:
        return replace(read, head=None)
    if read.head is None:
        raise InputError(f"{folder} has no head to start from: set adapter.start_head = false")
    return read


def _check_kind(mine: AdapterConfig, theirs: AdapterConfig, depth: int, folder: Path) -> None:
    """Refuse a folder whose adapter differs from the config, naming the first difference."""
    wanted: dict[str, tuple[object, object]] = {
        "kind": (mine.kind, theirs.kind),
        "targets": (sorted(mine.targets), sorted(theirs.targets)),
        "layers": (mine.layers_of(depth), theirs.layers_of(depth)),
    }
    if mine.kind == theirs.kind != "ia3":
        wanted |= {"rank": (mine.rank, theirs.rank), "alpha": (mine.alpha, theirs.alpha)}
    for key, (said, found) in wanted.items():
        if said != found:
            raise InputError(
                f"the adapter in {folder} has {key} {found}, but the config says adapter.{key} = "
                f"{said}: `pfedseq import {folder} CONFIG --to FILE` writes a config that fits"
            )
