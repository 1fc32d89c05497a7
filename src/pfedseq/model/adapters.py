"""The kinds of adapter: how PEFT injects each, and how each is merged into the frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from peft import IA3Config, LoraConfig, PeftConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Generator, Tensor, nn

from pfedseq.model.adapter_config import AdapterConfig, Target
from pfedseq.model.layout import LORA_A, LORA_B


class Places(NamedTuple):
    """Names of the modules of a transformer that can carry an adapter."""

    modules: Mapping[Target, str]
    """Each projection's name within a layer."""
    layers: str
    """The path of the list of layers, which precedes a layer's number in parameter names."""
    formerly: Mapping[str, Target] = {}
    """Names of projections in adapters saved with earlier versions of transformers."""
    outside: tuple[str, ...] = ()
    """Modules outside the blocks whose names have the same endings as projections."""


MODULES: dict[Target, str] = {
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "output": "attention.o_proj",
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
}
"""Names of the blocks and their projections in transformers' ViT."""

VIT = Places(
    MODULES,
    "layers",
    {
        "attention.attention.query": "query",
        "attention.attention.key": "key",
        "attention.attention.value": "value",
        "attention.output.dense": "output",
        "intermediate.dense": "mlp_in",
        "output.dense": "mlp_out",
    },
)

_DORA_MAGNITUDE = ".lora_magnitude_vector.default.weight"
_IA3 = ".ia3_l.default"
"""Endings of the names that PEFT gives its parameters."""


def peft_config(adapter: AdapterConfig, depth: int, places: Places = VIT) -> PeftConfig:
    """The adapter as a PEFT config, for a backbone of `depth` layers.

    PEFT finds modules by the end of their names. The projection's name suffices if all layers carry
    the adapter and no other name has that ending; otherwise the layer's is prepended. (PEFT's
    `layers_to_transform` does not exist for IA3.)
    """
    layers = [f"{places.layers}.{k}." for k in adapter.layers_of(depth)]
    names = {target: places.modules[target] for target in adapter.targets}
    endings = [f".{name}" for name in names.values()]
    others = (*places.modules.values(), *places.outside)
    alone = not any(name.endswith(end) for name in others for end in endings)
    if adapter.layers == "all" and alone:
        layers = [""]
    modules = [layer + name for layer in layers for name in names.values()]
    if (
        adapter.kind == "ia3"
    ):  # scales the inputs of the MLP's second layer, the outputs of all others
        feedforward = [layer + names["mlp_out"] for layer in layers if "mlp_out" in names]
        return IA3Config(target_modules=modules, feedforward_modules=feedforward)
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        use_dora=adapter.kind == "dora",
        target_modules=modules,
    )


def inject(module: nn.Module, adapter: AdapterConfig, depth: int, places: Places) -> None:
    """Put the adapter into a backbone, drawing from PyTorch's global generator."""
    config = peft_config(adapter, depth, places)
    if adapter.kind == "lora" and not adapter.dropout:
        config._register_custom_module({nn.Linear: OneProductLinear})
    inject_adapter_in_model(config, module)
    module.eval()
    if adapter.dropout:
        for layer in module.modules():
            if isinstance(layer, LoraLayer):
                layer.lora_dropout["default"] = SeededDropout(adapter.dropout)
                layer.training = True  # PEFT's DoRA skips dropout in layers that are not


class OneProductLinear(LoraLinear):  # type: ignore[misc]  # PEFT has no types
    """PEFT's LoRA layer with W + (α/r)·BA formed first: one product over the tokens, not three.

    Forming the sum costs r multiply-adds per weight, and saves two thin products and an addition,
    each a pass over all tokens. A training step of ViT-Ti becomes 2 to 5 % faster.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """x (W + (α/r)·BA)ᵀ + b."""
        base = self.base_layer
        down, up = self.lora_A["default"].weight, self.lora_B["default"].weight
        scale = self.scaling["default"]
        apply: Callable[..., Tensor] = _OneProduct.apply
        return apply(inputs, base.weight, base.bias, down, up, scale)


class _OneProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight, down, up)
        ctx.scale = scale
        return nn.functional.linear(inputs, torch.addmm(weight, up, down, alpha=scale), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the adapter, by thin products; none for the frozen W and b."""
        inputs, weight, down, up = ctx.saved_tensors
        to_inputs = None
        if ctx.needs_input_grad[0]:  # false in the first block: nothing below it is tuned
            to_inputs = gradient @ torch.addmm(weight, up, down, alpha=ctx.scale)
        tokens, gradient = inputs.flatten(0, -2), gradient.flatten(0, -2)
        # Both thin factors are stored wide, which is up to five times faster than tall.
        to_down = ctx.scale * ((gradient @ up.T.contiguous().T).T @ tokens)
        to_up = ctx.scale * ((tokens @ down.T).T @ gradient).T
        return to_inputs, None, None, to_down, to_up, None


class SeededDropout(nn.Module):
    """Dropout that draws from a given generator, and drops nothing without one.

    PyTorch's dropout draws from one generator per process, so clients in different threads would
    consume each other's numbers.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.generator: Generator | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Zero each input with the probability p, and divide the others by 1 − p."""
        if self.generator is None:
            return inputs
        kept = 1 - self.probability
        mask = torch.empty(inputs.shape).bernoulli_(kept, generator=self.generator)
        return inputs * mask.to(inputs.device).div_(kept)


def merged_weights(
    adapter: AdapterConfig, named: Mapping[str, Tensor], frozen: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The backbone's weights with the adapter merged, for every target by name.

    LoRA: W + (α/r)·BA. DoRA: that, with each row rescaled to the learnt magnitude. IA3: the rows
    of W and the bias times l, or, where l scales the inputs, the columns of W.
    """
    merged = {}
    for name, tensor in named.items():
        if adapter.kind == "ia3":
            target = name.removesuffix(_IA3)
            merged[f"{target}.weight"] = frozen[f"{target}.weight"] * tensor
            bias = frozen.get(f"{target}.bias")
            if tensor.shape[0] != 1 and bias is not None:
                merged[f"{target}.bias"] = bias * tensor.flatten()
        elif name.endswith(LORA_A):
            target = name.removesuffix(LORA_A)
            weight = torch.addmm(
                frozen[f"{target}.weight"],
                named[target + LORA_B],
                tensor,
                alpha=adapter.alpha / adapter.rank,
            )
            if adapter.kind == "dora":
                # As in PEFT and the DoRA paper, the gradient treats the rows' lengths as constants.
                lengths = torch.linalg.vector_norm(weight.detach(), dim=1)
                weight = weight * (named[target + _DORA_MAGNITUDE] / lengths).unsqueeze(1)
            merged[f"{target}.weight"] = weight
    return merged
