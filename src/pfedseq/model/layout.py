"""θ as one tensor (K, D): the position of every adapter weight of every adapted layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from pfedseq.errors import InputError
from pfedseq.lora import Factors, Projection

LORA_A, LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"
"""Endings of PEFT's names for the two factors."""
_BLOCK = re.compile(r"^(?P<before>.+?)\.(?P<index>\d+)\.(?P<within>.+)$")


@dataclass(frozen=True)
class AdapterLayout:
    """The names and shapes of the adapter weights that every adapted backbone layer carries.

    Row k of θ holds the k-th adapted layer's weights in the order of `weights`, each flattened.
    """

    prefix: str
    """The part of a parameter's name before the layer's number, e.g. `layers`."""
    layers: tuple[int, ...]
    """The K backbone layers that carry an adapter, in ascending order."""
    weights: tuple[tuple[str, tuple[int, ...]], ...]
    """(name within the layer, shape), the same for every layer."""

    @property
    def num_layers(self) -> int:
        """K, the number of adapted layers."""
        return len(self.layers)

    @property
    def adapter_dim(self) -> int:
        """D, the number of adapter parameters per layer."""
        return sum(prod(shape) for _, shape in self.weights)

    @classmethod
    def of(cls, model: nn.Module) -> AdapterLayout:
        """The layout of the trainable parameters of a model with injected adapters."""
        return cls.from_shapes(
            {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad}
        )

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> AdapterLayout:
        """The layout of named shapes; refuses unequal blocks, since (K, D) needs equal rows."""
        blocks: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        prefixes = set()
        for name, shape in shapes.items():
            match = _BLOCK.match(name)
            if match is None:
                raise InputError(f"adapter weight {name!r} belongs to no numbered backbone layer")
            prefixes.add(match["before"])
            blocks.setdefault(int(match["index"]), []).append((match["within"], shape))
        if not blocks:
            raise InputError("the model has no adapter weights: check adapter.targets")
        if len(prefixes) > 1:
            raise InputError(f"adapters must sit on one stack of layers, not on {sorted(prefixes)}")
        layers = tuple(sorted(blocks))
        first = blocks[layers[0]]
        for k, block in blocks.items():
            if block != first:
                raise InputError(
                    f"layer {k}'s adapter {block} differs from layer {layers[0]}'s {first}: every "
                    "adapted layer must carry the same adapter"
                )
        return cls(prefixes.pop(), layers, tuple(first))

    @property
    def factors(self) -> Factors | None:
        """The positions of LoRA's A and B in a row; None for an adapter without them."""
        places, place = {}, 0
        for within, shape in self.weights:
            places[within] = place
            place += prod(shape)
        shapes = dict(self.weights)
        downs = [within for within in shapes if within.endswith(LORA_A)]
        ups = [within.removesuffix(LORA_A) + LORA_B for within in downs]
        projections = tuple(
            Projection(places[down], places[up], shapes[down][1], shapes[up][0])
            for down, up in zip(downs, ups, strict=True)
        )
        return Factors(place, shapes[downs[0]][0], projections) if downs else None

    def names(self) -> list[str]:
        """Full parameter names, layer by layer."""
        return [f"{self.prefix}.{k}.{within}" for k in self.layers for within, _ in self.weights]

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """θ (K, D) from the weights by name."""
        missing = [name for name in self.names() if name not in named]
        if missing:
            raise InputError(f"adapter weights are missing: {', '.join(missing[:3])} …")
        rows = [
            torch.cat(
                [
                    self._shaped(named, f"{self.prefix}.{k}.{within}", shape).reshape(-1)
                    for within, shape in self.weights
                ]
            )
            for k in self.layers
        ]
        return torch.stack(rows)

    def unflatten(self, adapter: Tensor) -> dict[str, Tensor]:
        """The weights by name, as views of θ through which gradients flow.

        `unbind` and `split` are used instead of indexing: their backward is one stack and K
        concatenations, while indexing would add a zero-filled (K, D) for every weight.
        """
        if adapter.shape != (self.num_layers, self.adapter_dim):
            raise InputError(
                f"the adapter has shape {tuple(adapter.shape)} where "
                f"({self.num_layers}, {self.adapter_dim}) is expected"
            )
        sizes = [prod(shape) for _, shape in self.weights]
        named = {}
        for k, row in zip(self.layers, adapter.unbind(), strict=True):
            for (within, shape), piece in zip(self.weights, row.split(sizes), strict=True):
                named[f"{self.prefix}.{k}.{within}"] = piece.view(shape)
        return named

    def unflatten_stacked(self, adapters: Tensor) -> dict[str, Tensor]:
        """The weights of several θ (clients, K, D) by name, each (clients, *shape)."""
        if adapters.shape[1:] != (self.num_layers, self.adapter_dim):
            raise InputError(
                f"the adapters have shape {tuple(adapters.shape)} where "
                f"(clients, {self.num_layers}, {self.adapter_dim}) is expected"
            )
        sizes = [prod(shape) for _, shape in self.weights]
        named = {}
        for k, rows in zip(self.layers, adapters.unbind(1), strict=True):
            for (within, shape), piece in zip(self.weights, rows.split(sizes, 1), strict=True):
                named[f"{self.prefix}.{k}.{within}"] = piece.reshape(-1, *shape)
        return named

    @staticmethod
    def _shaped(named: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
        if tuple(named[name].shape) != shape:
            raise InputError(
                f"adapter weight {name} has shape {tuple(named[name].shape)}, not {shape}"
            )
        return named[name]
