"""Many clients' examples in one pass through the shared backbone, each under its own adapter.

All that clients share is computed on the examples of all of them together. Where a projection
carries an adapter, each client's rows are multiplied by its own W + (α/r)·BA: a product over a few
hundred tokens is large enough to be fast, and examples need no padding.

The products may be computed in bfloat16, which processors and cards that know it do twice as fast.
All between them (sums, norms, attention, and with them the gradients' way from block to block)
stays as precise as the inputs, and so do θ and what is added to W for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import LORA_A, LORA_B, MODULES, merged_weights
from pfedseq.model.encoders.vit.tower import Tower
from pfedseq.model.layout import AdapterLayout

_PROJECTIONS = {name.split(".")[-1] for name in MODULES.values()}

Project = Callable[[str, Tensor], Tensor]
"""(a projection's name in the backbone, tokens) ↦ the projected tokens."""


class StackedTower:
    """`AdaptedModel.features` for several clients at once; holds no state of theirs.

    Dropout is not for it: every client draws from a generator of its own, layer by layer.
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
        """What products are computed in; as the inputs if none is given."""
        self.frozen = dict(plain.named_parameters())
        self.adapted = {f"layers.{k}.{MODULES[t]}" for k in layout.layers for t in config.targets}
        self._rounded: dict[str, Tensor] = {**self.frozen}
        if precision is not None:
            projections = [name for name in self.frozen if name.split(".")[-2] in _PROJECTIONS]
            self._rounded = {name: self.frozen[name].to(precision) for name in projections}

    def features(self, adapters: Tensor, inputs: Tensor, counts: Sequence[int]) -> Tensor:
        """Class-token features (ΣB, F) of inputs (ΣB, …); client i has the next `counts[i]`.

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
        rows = _rows(counts, tokens)
        downs, ups = named[name + LORA_A], named[name + LORA_B]
        scale = self.config.alpha / self.config.rank
        apply: Callable[..., Tensor] = _LoraProducts.apply
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
    """A transformer block (B, T, F) ↦ (B, T, F); of the last one the class token alone is read."""
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


def _rows(counts: Sequence[int], tokens: Tensor) -> list[slice]:
    """Where each client's tokens lie when all are in one matrix."""
    bounds = accumulate((count * tokens.shape[1] for count in counts), initial=0)
    return [slice(start, stop) for start, stop in pairwise(bounds)]


class _LoraProducts(torch.autograd.Function):
    """x_i (W + (α/r)·B_i A_i)ᵀ + b for every client i; as `adapters.OneProductLinear` for one."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        downs: Tensor,
        ups: Tensor,
        scale: float,
        rows: list[slice],
    ) -> Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1])
        own = torch.baddbmm(weight.expand(len(rows), -1, -1), ups, downs, alpha=scale)
        own = own.to(flat.dtype)
        out = flat.new_empty(len(flat), len(weight))
        for i, part in enumerate(rows):
            if bias is None:
                torch.mm(flat[part], own[i].T, out=out[part])
            else:
                torch.addmm(bias, flat[part], own[i].T, out=out[part])
        ctx.save_for_backward(flat, own, downs, ups)
        ctx.scale, ctx.rows = scale, rows
        return out.view(*tokens.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The adapters' gradients by their thin products; none for the frozen W and b."""
        flat, own, downs, ups = ctx.saved_tensors
        shape, flat_gradient = gradient.shape, gradient.reshape(-1, gradient.shape[-1])
        to_inputs = torch.empty_like(flat) if ctx.needs_input_grad[0] else None
        exact, rounded = downs.dtype, flat.dtype
        downs = downs.to(rounded)
        ups = ups.mT.contiguous().to(rounded)  # wide: thin products are up to five times faster
        to_downs, to_ups = torch.empty_like(downs), torch.empty_like(ups)
        for i, part in enumerate(ctx.rows):
            x, g = flat[part], flat_gradient[part]
            if to_inputs is not None:
                torch.mm(g, own[i], out=to_inputs[part])
            torch.mm((g @ ups[i].T).T, x, out=to_downs[i])
            torch.mm((x @ downs[i].T).T, g, out=to_ups[i])
        if to_inputs is not None:
            to_inputs = to_inputs.view(*shape[:-1], -1)
        to_downs, to_ups = (x.to(exact).mul_(ctx.scale) for x in (to_downs, to_ups))
        return to_inputs, None, None, to_downs, to_ups.mT, None, None
