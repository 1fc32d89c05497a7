"""A config that starts from an existing PEFT adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfedseq.config import Config, make_config
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.backbone import load_backbone
from pfedseq.model.peft_folder import read_peft_folder
from pfedseq.model.starting import starting_params, starting_sha256
from pfedseq.workloads.personal import asked_backbone, read_about


def import_adapter(folder: Path, config: Config, *, head: bool = False) -> Config:
    """`config` with the folder's adapter, backbone, image size and normalisation; all is tried.

    What the folder does not say stays as `config` has it.
    """
    read = read_peft_folder(folder)
    if head and read.head is None:
        raise InputError(f"{folder} has no head: leave out --head")
    asked = asked_backbone(folder, read, read_about(folder), or_else=config.model.backbone)
    size = asked.image_size or config.data.image_size
    backbone = load_backbone(asked.name, size, asked.mean, asked.std, num_heads=asked.num_heads)
    every_layer = read.adapter.layers == tuple(range(backbone.num_layers))
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
    starting_params(AdaptedModel(backbone, adapter, num_classes, config.run.seed))
    values: dict[str, Any] = config.model_dump(exclude_none=True)
    values["adapter"] = adapter.model_dump(exclude_none=True)
    values["model"] |= {"backbone": asked.name, "mean": backbone.mean, "std": backbone.std}
    if asked.num_heads is not None:
        values["model"]["num_heads"] = asked.num_heads
    else:
        values["model"].pop("num_heads", None)
    values["data"]["image_size"] = backbone.image_size
    return make_config(values)
