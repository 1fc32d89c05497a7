"""A client's personal model as files that PEFT and plain PyTorch read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors.torch import save

from pfedseq.files import write_atomically
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapters import peft_config
from pfedseq.params import Params

_PEFT_PREFIX = "base_model.model."
"""PEFT's wrapper in front of every parameter name of a saved adapter."""

_ADAPTER_NAME = re.compile(r"\.default(?=\.|$)")
"""A model may carry several adapters by name; a saved one has no name."""


def save_personal_model(
    folder: Path, model: AdaptedModel, phi: Params, backbone: str, class_names: tuple[str, ...]
) -> None:
    """Write a standard PEFT adapter folder, and the head beside it.

    `PeftModel.from_pretrained(backbone, folder)` loads the adapter; `head.safetensors` holds
    `weight` (C, F) and `bias` (C,) of the linear layer on the class-token feature.
    """
    weights = {
        _PEFT_PREFIX + _ADAPTER_NAME.sub("", name): tensor.detach().cpu().contiguous()
        for name, tensor in model.layout.unflatten(phi.adapter).items()
    }
    config = peft_config(model.adapter_config, model.depth)
    config.base_model_name_or_path = backbone
    config.inference_mode = True
    described = {
        key: sorted(value) if isinstance(value, set) else value
        for key, value in config.to_dict().items()
    }
    write_atomically(folder / "adapter_model.safetensors", save(weights))
    write_atomically(folder / "adapter_config.json", json.dumps(described, indent=2, default=str))
    weight, bias = model.split_head(phi.head.detach().cpu())
    head = {"weight": weight.contiguous(), "bias": bias.contiguous()}
    names = {"class_names": json.dumps(class_names)}
    write_atomically(folder / "head.safetensors", save(head, metadata=names))
