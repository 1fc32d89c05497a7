"""Checkpoints of encoders that have no head; the head is saved in a separate file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from pfedseq.model.adapters import merged_weights
from pfedseq.model.encoders.parts import same_weights
from pfedseq.workloads.personal import PersonalModel

HEAD_FILE = "head.safetensors"


@torch.no_grad()
def merged_encoder(personal: PersonalModel, whole: PreTrainedModel) -> PreTrainedModel:
    """The `whole` encoder of a personal model with the adapter merged into its weights.

    All other weights are shared with `whole`.
    """
    model, encoder = personal.model, personal.model.encoder
    named = {
        encoder.published_name(name): tensor.cpu()
        for name, tensor in model.layout.unflatten(personal.phi.adapter).items()
    }
    merged: PreTrainedModel = same_weights(whole)
    for name, weight in merged_weights(model.adapter_config, named, whole.state_dict()).items():
        layer, _, kind = name.rpartition(".")
        setattr(merged.get_submodule(layer), kind, nn.Parameter(weight, requires_grad=False))
    return merged


def write_head(personal: PersonalModel, folder: Path) -> None:
    """Write the linear layer on the features, as `weight` (C, F) and `bias` (C,)."""
    weight, bias = personal.model.split_head(personal.phi.head)
    tensors = {"weight": weight, "bias": bias}
    save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, folder / HEAD_FILE)
