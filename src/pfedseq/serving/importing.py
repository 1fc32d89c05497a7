"""A config that starts from an existing PEFT adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfedseq.config import Config, make_config
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.peft_folder import read_base, read_peft_folder
from pfedseq.model.starting import starting_params, starting_sha256
from pfedseq.workloads import asked_backbone
from pfedseq.workloads.personal import read_about


def import_adapter(folder: Path, config: Config, *, head: bool = False) -> Config:
    """`config` with the folder's adapter, backbone and preprocessing, after a test load.

    Options that the folder does not specify keep their values in `config`.
    """
    asked = asked_backbone(
        folder, read_base(folder), read_about(folder), or_else=config.model.backbone
    )
    encoder = asked.completed(config).load()
    read = read_peft_folder(folder, encoder.places)
    if head and read.head is None:
        raise InputError(f"{folder} has no head: remove --head")
    every_layer = read.adapter.layers == tuple(range(encoder.num_layers))
    adapter = read.adapter.model_copy(
        update={
            "layers": "all" if every_layer else read.adapter.layers,
            "dropout": 0.0 if read.adapter.kind == "ia3" else config.adapter.dropout,
            "start": str(folder.resolve()),
            "start_head": head,
        }
    )
    adapter = adapter.model_copy(update={"start_sha256": starting_sha256(adapter)})
    num_classes = len(read.head[0]) if read.head is not None else 1
    starting_params(AdaptedModel(encoder, adapter, num_classes, config.run.seed))
    values: dict[str, Any] = config.model_dump(exclude_none=True)
    values["adapter"] = adapter.model_dump(exclude_none=True)
    for section, options in asked.options(encoder).items():
        kept = {key: value for key, value in values[section].items() if key not in options}
        values[section] = kept | {k: value for k, value in options.items() if value is not None}
    return make_config(values)
