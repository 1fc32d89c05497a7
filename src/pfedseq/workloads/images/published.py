"""Plain transformers checkpoints: a backbone for others to load, and one with an adapter merged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import torch
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification

from pfedseq.errors import InputError
from pfedseq.model.adapters import merged_weights
from pfedseq.model.backbone import Backbone
from pfedseq.model.encoders.loading import quiet_transformers
from pfedseq.model.encoders.vit.naming import REGISTERS
from pfedseq.workloads.images.reader import write_processor
from pfedseq.workloads.personal import PersonalModel


def write_backbone(backbone: Backbone, folder: Path) -> None:
    """A backbone of any origin as `ViTModel.from_pretrained` reads it, whole or not at all."""
    refuse_registers(backbone)
    _write_whole(folder, lambda place: _save(backbone.model, backbone, place))


def write_merged(personal: PersonalModel, folder: Path) -> None:
    """A whole `ViTForImageClassification` with the adapter in its weights."""
    model = merged_classifier(personal)
    _write_whole(folder, lambda place: _save(model, personal.model.backbone, place))


@torch.no_grad()
def merged_classifier(personal: PersonalModel) -> ViTForImageClassification:
    """The personal model as one module of transformers, on the CPU."""
    model, backbone = personal.model, personal.model.backbone
    refuse_registers(backbone)
    vit = backbone.model
    state = dict(vit.state_dict())
    named = model.layout.unflatten(personal.phi.adapter)
    state |= merged_weights(model.adapter_config, named, state)
    weight, bias = model.split_head(personal.phi.head)
    names = dict(enumerate(personal.class_names))
    config = ViTConfig.from_dict(
        {
            **vit.config.to_dict(),
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
        },
        attn_implementation="sdpa",
    )
    whole = {f"vit.{name}": tensor for name, tensor in state.items()}
    whole |= {"classifier.weight": weight, "classifier.bias": bias}
    with torch.device("meta"):
        classifier = ViTForImageClassification(config)
    classifier.load_state_dict(
        {name: tensor.detach().cpu().clone() for name, tensor in whole.items()}, assign=True
    )
    return classifier.requires_grad_(False).eval()


def refuse_registers(backbone: Backbone) -> None:
    """transformers' ViT has none: such a backbone is of use through this package alone."""
    if REGISTERS in backbone.model.state_dict():
        raise InputError(
            f"backbone {backbone.name!r} has registers, which transformers' ViT does not know: its "
            "models predict and serve here, but cannot be exported"
        )


def _save(model: PreTrainedModel, backbone: Backbone, folder: Path) -> None:
    with quiet_transformers(progress_bar=False):
        model.save_pretrained(folder)
    write_processor(folder, backbone)


def _write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Write under a temporary name beside `folder`, which is replaced by it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as problem:
        raise InputError(f"cannot write {folder}: {problem.strerror}") from None
    try:
        write(place)
        place.chmod(0o755)  # a temporary folder is its owner's alone
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(place, folder)
    except OSError as problem:
        raise InputError(f"cannot write {folder}: {problem.strerror}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
