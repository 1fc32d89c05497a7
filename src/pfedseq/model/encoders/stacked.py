"""Several clients' examples in one pass through any encoder, each under its own adapter.

The projections that carry adapters are replaced by ones that multiply each client's rows by its own
weights; everything else is transformers' forward on the examples of all clients together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import Places, merged_weights
from pfedseq.model.encoders.parts import same_weights
from pfedseq.model.layout import LORA_A, LORA_B, AdapterLayout


class OwnLinear(nn.Module):
    """A projection whose weights differ from client to client; set before each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.project: Callable[[Tensor], Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Multiply each client's rows by that client's weights."""
        assert self.project is not None
        return self.project(tokens)


class StackedPart:
    """`AdaptedModel.features` for several clients at once, for any encoder; holds no client state.

    It does not support dropout, for which every client draws from its own generator in every layer.
    """

    def __init__(
        self, plain: nn.Module, config: AdapterConfig, layout: AdapterLayout, places: Places
    ) -> None:
        self.plain, self.config, self.layout = plain, config, layout
        self.frozen = dict(plain.named_parameters())
        self.targets = [
            f"{layout.prefix}.{k}.{places.modules[target]}"
            for k in layout.layers
            for target in config.targets
        ]
        self._skeletons = threading.local()

    def features(self, adapters: Tensor, inputs: Tensor, counts: Sequence[int]) -> Tensor:
        """Features (ΣB, F) of inputs (ΣB, …), of which client i has the next `counts[i]` rows.

        Gradients flow to the adapters (clients, K, D).
        """
        skeleton = self._skeleton()
        named = self.layout.unflatten_stacked(adapters)
        products = self._lora(named, counts) if self.config.kind == "lora" else None
        if products is None:
            products = self._merged(named, counts)
        for target in self.targets:
            layer = skeleton.get_submodule(target)
            assert isinstance(layer, OwnLinear)
            layer.project = products(target)
        features: Tensor = skeleton(inputs)
        return features

    def _lora(
        self, named: Mapping[str, Tensor], counts: Sequence[int]
    ) -> Callable[[str], Callable[[Tensor], Tensor]]:
        scale = self.config.alpha / self.config.rank
        apply: Callable[..., Tensor] = LoraProducts.apply

        def of(target: str) -> Callable[[Tensor], Tensor]:
            weight, bias = self.frozen[f"{target}.weight"], self.frozen.get(f"{target}.bias")
            downs, ups = named[target + LORA_A], named[target + LORA_B]
            return lambda x: apply(x, weight, bias, downs, ups, scale, rows_of(counts, x))

        return of

    def _merged(
        self, named: Mapping[str, Tensor], counts: Sequence[int]
    ) -> Callable[[str], Callable[[Tensor], Tensor]]:
        merged = [
            merged_weights(self.config, {n: w[i] for n, w in named.items()}, self.frozen)
            for i in range(len(counts))
        ]

        def of(target: str) -> Callable[[Tensor], Tensor]:
            plain_bias = self.frozen.get(f"{target}.bias")
            weights = [own[f"{target}.weight"] for own in merged]
            biases = [own.get(f"{target}.bias", plain_bias) for own in merged]

            def project(tokens: Tensor) -> Tensor:
                parts = tokens.split(list(counts))
                return torch.cat(list(map(linear, parts, weights, biases)))

            return project

        return of

    def _skeleton(self) -> nn.Module:
        """The calling thread's module, with the shared weights."""
        if not hasattr(self._skeletons, "module"):
            module = same_weights(self.plain)
            for target in self.targets:
                parent, _, last = target.rpartition(".")
                setattr(module.get_submodule(parent), last, OwnLinear())
            self._skeletons.module = module
        skeleton: nn.Module = self._skeletons.module
        return skeleton


def rows_of(counts: Sequence[int], tokens: Tensor) -> list[slice]:
    """The rows of each client's tokens (ΣB, …, F) when all are flattened to one matrix."""
    each = tokens[0, ..., 0].numel()
    bounds = accumulate((count * each for count in counts), initial=0)
    return [slice(start, stop) for start, stop in pairwise(bounds)]


class LoraProducts(torch.autograd.Function):
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
        """The projected tokens (ΣB, …, F')."""
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
        """Gradients of the adapters, by thin products; none for the frozen W and b."""
        flat, own, downs, ups = ctx.saved_tensors
        shape, flat_gradient = gradient.shape, gradient.reshape(-1, gradient.shape[-1])
        to_inputs = torch.empty_like(flat) if ctx.needs_input_grad[0] else None
        exact, rounded = downs.dtype, flat.dtype
        downs = downs.to(rounded)
        ups = ups.mT.contiguous().to(rounded)  # wide, for up to five times faster thin products
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
