"""LoRA on a frozen ViT, injected by PEFT, and the functional model that clients share."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, Literal

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.func import functional_call

from pfedseq.model.adapter_config import AdapterConfig, Target
from pfedseq.model.backbone import Backbone
from pfedseq.model.layout import AdapterLayout
from pfedseq.params import Params
from pfedseq.seeding import derive_seed, torch_generator

HEAD_STD = 0.02
"""Standard deviation of the initial head weights, as ViT's own classification head."""

_MODULES: dict[Target, str] = {
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "output": "attention.o_proj",
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
}
"""Where transformers' ViT keeps each projection of a block."""


_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"
"""PEFT's names for the two factors beside a target."""


def peft_config(adapter: AdapterConfig) -> LoraConfig:
    """The adapter as PEFT writes it down."""
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=[_MODULES[target] for target in adapter.targets],
    )


class AdaptedModel:
    """x ↦ logits for any φ = (θ, ω) over one frozen backbone.

    The backbone holds no client state: θ and ω are arguments, so N clients cost one backbone and
    N small vectors. `functional_call` swaps parameters inside the module while it runs, so each
    thread works on a skeleton of its own; the frozen weights are the same tensors in all of them.
    """

    def __init__(
        self, backbone: Backbone, adapter: AdapterConfig, num_classes: int, seed: int
    ) -> None:
        self.adapter_config, self.num_classes = adapter, num_classes
        self.feature_dim = backbone.feature_dim
        self._plain = backbone.model
        module = _same_weights(backbone.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "adapter"))
            inject_adapter_in_model(peft_config(adapter), module)
        module.eval()
        self.layout = AdapterLayout.of(module)
        weights = dict(module.named_parameters())
        head = torch.zeros(num_classes * (self.feature_dim + 1))
        head[:-num_classes].normal_(std=HEAD_STD, generator=torch_generator(seed, "head"))
        self.initial = Params(
            self.layout.flatten(weights).detach().clone(),
            head.to(next(module.parameters()).device),
        )
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        self._adapted = module
        self._skeletons = threading.local()

    @property
    def device(self) -> torch.device:
        """Where the backbone lives."""
        return self.initial.adapter.device

    def features(self, adapter: Tensor, pixels: Tensor) -> Tensor:
        """Class-token features (B, F) of normalised images (B, 3, S, S)."""
        return _class_token(self._skeleton("adapted"), self.layout.unflatten(adapter), pixels)

    @torch.no_grad()
    def merged(self, adapter: Tensor) -> Callable[[Tensor], Tensor]:
        """The same features for a θ that stays: W + (α/r)·BA is formed once, not per image."""
        scale = self.adapter_config.alpha / self.adapter_config.rank
        named = self.layout.unflatten(adapter)
        frozen = dict(self._plain.named_parameters())
        weights = {}
        for name, down in named.items():
            if (target := name.removesuffix(_LORA_A)) != name:
                up = named[target + _LORA_B]
                weights[f"{target}.weight"] = torch.addmm(
                    frozen[f"{target}.weight"], up, down, alpha=scale
                )
        return lambda pixels: _class_token(self._skeleton("plain"), weights, pixels)

    def classify(self, head: Tensor, features: Tensor) -> Tensor:
        """Logits (B, C) of features (B, F)."""
        return nn.functional.linear(features, *self.split_head(head))

    def split_head(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """ω as the weight (C, F) and the bias (C,) of a linear layer: views."""
        weight, bias = head.split([self.num_classes * self.feature_dim, self.num_classes])
        return weight.view(self.num_classes, self.feature_dim), bias

    def _skeleton(self, kind: Literal["adapted", "plain"]) -> nn.Module:
        """This thread's own module of that kind around the shared weights."""
        if not hasattr(self._skeletons, kind):
            original = self._adapted if kind == "adapted" else self._plain
            setattr(self._skeletons, kind, _same_weights(original))
        module: nn.Module = getattr(self._skeletons, kind)
        return module


def _same_weights(module: nn.Module) -> nn.Module:
    """A copy of the modules around the very same parameters."""
    return copy.deepcopy(module, memo={id(p): p for p in module.parameters()})


def _class_token(module: nn.Module, weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    output: Any = functional_call(module, weights, (pixels,))
    feature: Tensor = output.last_hidden_state[:, 0]
    return feature
