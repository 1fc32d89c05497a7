"""Writes (θ, ω) in PEFT's format, and reads adapters and heads from any PEFT folder.

A ViT's folder fits transformers' `ViTForImageClassification`: the adapter belongs to its `vit`, and
the head is its `classifier`, which PEFT keeps under `modules_to_save`. A BERT's folder fits
`BertModel`, which has no head, so PEFT's files do not contain it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from peft import PeftConfig
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.files import read_object, write_atomically
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig, Target
from pfedseq.model.adapters import VIT, Places, peft_config
from pfedseq.params import Params

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

_PREFIX = "base_model.model."
"""PEFT's wrapper in front of every parameter name of a saved adapter."""
_HEAD = "classifier"
_ADAPTER_NAME = re.compile(r"\.default(?=\.|$)")
"""The adapter's name in a model's parameter names; a saved adapter's names omit it."""

_KEY = re.compile(
    r"(?:[a-zA-Z_]\w*\.)+(?P<layer>\d+)\.(?P<module>.+?)"
    r"\.(?P<part>lora_A|lora_B|lora_magnitude_vector|ia3_l)(?:\.weight)?"
)
_LEAF = {
    "lora_A": "lora_A.default.weight",
    "lora_B": "lora_B.default.weight",
    "lora_magnitude_vector": "lora_magnitude_vector.default.weight",
    "ia3_l": "ia3_l.default",
}
"""PEFT's parameter names in a file, and their longer form in a model."""


def write_peft_folder(folder: Path, model: AdaptedModel, phi: Params, base: str) -> None:
    """Write the adapter and the head with PEFT's names; `base` names their backbone."""
    published = model.encoder.published_name
    weights = {
        _PREFIX + published(_ADAPTER_NAME.sub("", name)): tensor
        for name, tensor in model.layout.unflatten(phi.adapter).items()
    }
    head = model.readout.named(phi.head)
    weights |= {f"{_PREFIX}{_HEAD}.{part}": tensor for part, tensor in head.items()}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    config = peft_config(model.adapter_config, model.depth, model.encoder.places)
    config.base_model_name_or_path = base
    config.modules_to_save = [_HEAD] if model.encoder.has_classifier else None
    config.task_type = model.readout.task_type
    if config.task_type == "CAUSAL_LM" and model.adapter_config.kind != "ia3":
        _name_as_others_do(config, model)
    config.inference_mode = True
    described = {
        key: sorted(value) if isinstance(value, set) else value
        for key, value in config.to_dict().items()
    }
    write_atomically(folder / WEIGHTS_FILE, save(plain, metadata={"format": "pt"}))
    text = json.dumps(described, indent=2, default=str, sort_keys=True)
    write_atomically(folder / CONFIG_FILE, text + "\n")


def _name_as_others_do(config: PeftConfig, model: AdaptedModel) -> None:
    """Shorten LoRA's targets to their last names, as servers of language models expect."""
    places, chosen = model.encoder.places, model.adapter_config
    config.target_modules = {places.modules[t].split(".")[-1] for t in chosen.targets}
    if chosen.layers != "all":
        config.layers_to_transform = list(model.layout.layers)
        config.layers_pattern = places.layers


@dataclass(frozen=True)
class PeftFolder:
    """The content of a PEFT folder in this project's terms."""

    adapter: AdapterConfig
    """Its `layers` are a list, since the backbone's depth is not known from a folder."""
    named: dict[str, Tensor]
    """Adapter weights by the number of their layer and their name within it."""
    head: tuple[Tensor, Tensor] | None
    """Weight (C, F) and bias (C,), if the folder has a head."""
    base: str
    """The name of its backbone; '' if it has none."""


def read_base(folder: Path) -> str:
    """The name of a folder's backbone; '' if it has none."""
    return str(_read_config(folder / CONFIG_FILE).get("base_model_name_or_path") or "")


def read_task_type(folder: Path) -> str | None:
    """A folder's task type in PEFT's terms; None if it has none."""
    said = _read_config(folder / CONFIG_FILE).get("task_type")
    return None if said is None else str(said)


def read_peft_folder(folder: Path, places: Places = VIT) -> PeftFolder:
    """Read an adapter saved by this project or another program, for an encoder with `places`.

    The weights themselves determine which layers and projections carry it.
    """
    modules = {**{module: target for target, module in places.modules.items()}, **places.formerly}
    options = _read_config(folder / CONFIG_FILE)
    weights = _read_weights(folder / WEIGHTS_FILE)
    head_weight, head_bias = (
        weights.pop(f"{_PREFIX}{_HEAD}.{part}", None) for part in ("weight", "bias")
    )
    named: dict[str, Tensor] = {}
    layers: set[int] = set()
    targets: set[Target] = set()
    for name, tensor in weights.items():
        found = _KEY.fullmatch(_ADAPTER_NAME.sub("", name.removeprefix(_PREFIX)))
        target = modules.get(found["module"]) if found else None
        if found is None or target is None:
            raise InputError(
                f"{folder / WEIGHTS_FILE} has a tensor {name!r} that belongs to no adapter of the "
                "backbone's attention or MLP: only LoRA, DoRA and IA3 on these, and a "
                "`classifier`, are supported"
            )
        layers.add(int(found["layer"]))
        targets.add(target)
        within = f"{places.modules[target]}.{_LEAF[found['part']]}"
        named[f"{found['layer']}.{within}"] = tensor.float()
    if not named:
        raise InputError(f"{folder / WEIGHTS_FILE} contains no adapter weights")
    if (head_weight is None) != (head_bias is None):
        raise InputError(
            f"{folder / WEIGHTS_FILE} has only the weight or only the bias of a classifier"
        )
    head = None
    if head_weight is not None and head_bias is not None:
        head = (head_weight.float(), head_bias.float())
    adapter = _adapter_config(options, targets, layers, named, folder)
    return PeftFolder(adapter, named, head, str(options.get("base_model_name_or_path") or ""))


def params_of(read: PeftFolder, model: AdaptedModel, folder: Path) -> Params:
    """φ from a PEFT folder; its head is the model's initial one if the folder has none."""
    named = {f"{model.layout.prefix}.{name}": tensor for name, tensor in read.named.items()}
    if unknown := sorted(set(named) - set(model.layout.names())):
        raise InputError(f"{folder} does not fit the backbone: it has an adapter for {unknown[0]}")
    adapter = model.layout.flatten(named)
    head = model.initial.head
    if read.head is not None:
        weight, bias = read.head
        if weight.shape != (model.num_classes, model.feature_dim):
            raise InputError(
                f"{folder} has a head of shape {tuple(weight.shape)} where "
                f"({model.num_classes}, {model.feature_dim}) is expected"
            )
        head = model.join_head(weight, bias)
    return Params(adapter.to(model.device), head.to(model.device))


def _adapter_config(
    options: Mapping[str, Any],
    targets: set[Target],
    layers: set[int],
    named: Mapping[str, Tensor],
    folder: Path,
) -> AdapterConfig:
    common: dict[str, Any] = {
        "targets": tuple(target for target in get_args(Target) if target in targets),
        "layers": tuple(sorted(layers)),
    }
    kind = options.get("peft_type")
    if kind == "IA3":
        return AdapterConfig(kind="ia3", **common)
    if kind != "LORA":
        raise InputError(
            f"{folder} has a PEFT adapter of type {kind!r}: only LORA and IA3 are supported"
        )
    for key, harmless in (("rank_pattern", {}), ("alpha_pattern", {}), ("bias", "none")):
        if options.get(key) not in (harmless, None):
            raise InputError(
                f"{folder / CONFIG_FILE} has {key} = {options[key]!r}: every layer must carry the "
                "same adapter, without biases"
            )
    rank = next(len(tensor) for name, tensor in named.items() if ".lora_A." in name)
    alpha = float(options.get("lora_alpha", rank))
    if options.get("use_rslora"):  # its update is scaled by α / √r, ours by α / r
        alpha *= math.sqrt(rank)
    kind = "dora" if options.get("use_dora") else "lora"
    return AdapterConfig(kind=kind, rank=rank, alpha=alpha, **common)


def _read_config(path: Path) -> dict[str, Any]:
    values = read_object(path)
    if values is None:
        raise InputError(f"{path.parent} is not a PEFT adapter: it has no {path.name}")
    return values


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(
            f"{path.parent} has no {path.name}: save the adapter with safe_serialization=True "
            "(pickled weights are not read)"
        ) from None
    except (SafetensorError, OSError) as problem:
        raise InputError(f"{path} is not a complete safetensors file ({problem})") from None
