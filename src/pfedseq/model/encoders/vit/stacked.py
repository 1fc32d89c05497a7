"""Many clients' examples in one pass through the shared backbone, each under its own adapter.

Everything that clients share is computed on the examples of all of them together. Where a
projection carries an adapter, each client's rows are multiplied by its own W + (α/r)·BA: a product
over a few hundred tokens is large enough to be fast, and examples need no padding.

The products can be computed in bfloat16, which is twice as fast on hardware that supports it.
Everything between them (sums, norms, attention, and the gradients passed from block to block)
keeps the precision of the inputs, as do θ and the product added to W.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import MODULES, merged_weights
from pfedseq.model.encoders.stacked import LoraProducts, rows_of
from pfedseq.model.encoders.vit.tower import Tower
from pfedseq.model.layout import LORA_A, LORA_B, AdapterLayout

_PROJECTIONS = {name.split(".")[-1] for name in MODULES.values()}

Project = Callable[[str, Tensor], Tensor]
"""(a projection's name in the backbone, tokens) ↦ the projected tokens."""


class StackedTower:
    """`AdaptedModel.features` for several clients at once; holds no client state.

    It does not support dropout, for which every client draws from its own generator in every layer.
    """

    def __init__(
        self,
        plain: Tower,
        config: AdapterConfig,
        layout: AdapterLayout,
        depth: int,
        precision: torch.dtype | None = None,
    ) -> None:
        self.plain, self.config, self.layout, self.depth = plain, config, layout, depth
        self.precision = precision
        """The data type of the products; None for that of the inputs."""
        self.frozen = dict(plain.named_parameters())
        self.adapted = {f"layers.{k}.{MODULES[t]}" for k in layout.layers for t in config.targets}
        self._rounded: dict[str, Tensor] = {**self.frozen}
        if precision is not None:
            projections = [name for name in self.frozen if name.split(".")[-2] in _PROJECTIONS]
            self._rounded = {name: self.frozen[name].to(precision) for name in projections}

    def features(self, adapters: Tensor, inputs: Tensor, counts: Sequence[int]) -> Tensor:
        """Class-token features (ΣB, F) of inputs (ΣB, …); client i has the next `counts[i]` rows.

        Gradients flow to the adapters (clients, K, D).
        """
        named = self.layout.unflatten_stacked(adapters)
        if self.config.kind == "lora":
            return self._run(inputs, lambda name, x: self._lora(name, x, named, counts))
        merged = [
            merged_weights(self.config, {n: w[i] for n, w in named.items()}, self.frozen)
            for i in range(len(counts))
        ]
        return self._run(inputs, lambda name, x: self._merged(name, x, merged, counts))

    def _lora(
        self, name: str, tokens: Tensor, named: Mapping[str, Tensor], counts: Sequence[int]
    ) -> Tensor:
        if name not in self.adapted:
            return self._plain_product(name, tokens)
        weight, bias = self.frozen[f"{name}.weight"], self._rounded.get(f"{name}.bias")
        rows = rows_of(counts, tokens)
        downs, ups = named[name + LORA_A], named[name + LORA_B]
        scale = self.config.alpha / self.config.rank
        apply: Callable[..., Tensor] = LoraProducts.apply
        return apply(tokens, weight, bias, downs, ups, scale, rows)

    def _merged(
        self,
        name: str,
        tokens: Tensor,
        merged: Sequence[Mapping[str, Tensor]],
        counts: Sequence[int],
    ) -> Tensor:
        if name not in self.adapted:
            return self._plain_product(name, tokens)
        parts = []
        for part, own in zip(tokens.split(list(counts)), merged, strict=True):
            bias = own.get(f"{name}.bias", self.frozen.get(f"{name}.bias"))
            weight = own[f"{name}.weight"].to(tokens.dtype)
            parts.append(linear(part, weight, bias if bias is None else bias.to(tokens.dtype)))
        return torch.cat(parts)

    def _plain_product(self, name: str, tokens: Tensor) -> Tensor:
        return linear(tokens, self._rounded[f"{name}.weight"], self._rounded.get(f"{name}.bias"))

    def _run(self, inputs: Tensor, project: Project) -> Tensor:
        plain = self.plain
        tokens: Tensor = inputs if plain.embeddings is None else plain.embeddings(inputs)
        for number, block in plain.layers.items():
            only_class = int(number) == self.depth - 1
            tokens = _block(
                block, f"layers.{number}", tokens, project, self.precision, only_class=only_class
            )
        assert plain.layernorm is not None
        features: Tensor = plain.layernorm(tokens)
        return features[:, 0]


def _block(
    block: Any,
    name: str,
    tokens: Tensor,
    project: Project,
    precision: torch.dtype | None,
    *,
    only_class: bool,
) -> Tensor:
    """A transformer block (B, T, F) ↦ (B, T, F), or (B, 1, F) for the last one: its class token."""
    exact, rounded = tokens.dtype, precision or tokens.dtype

    def heads(projection: str, asked: Tensor) -> Tensor:
        width: int = block.attention.head_dim
        # Attention's backward pass in bfloat16 takes four times as long as in float32.
        projected = project(f"{name}.attention.{projection}", asked).to(exact)
        return projected.view(*projected.shape[:2], -1, width).transpose(1, 2)

    normed = block.layernorm_before(tokens).to(rounded)
    asking = normed[:, :1] if only_class else normed
    mixed = scaled_dot_product_attention(
        heads("q_proj", asking), heads("k_proj", normed), heads("v_proj", normed)
    )
    residual: Tensor = tokens[:, :1] if only_class else tokens
    together = mixed.transpose(1, 2).flatten(2).to(rounded)
    residual = residual + project(f"{name}.attention.o_proj", together)
    inner = project(f"{name}.mlp.fc1", block.layernorm_after(residual).to(rounded))
    return residual + project(f"{name}.mlp.fc2", block.mlp.activation_fn(inner))
