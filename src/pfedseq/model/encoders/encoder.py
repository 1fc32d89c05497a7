"""What the adapted model needs of a frozen transformer, whatever it reads: images or texts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import Places
from pfedseq.model.encoders.vit.stacked import StackedTower
from pfedseq.model.encoders.vit.tower import Tower
from pfedseq.model.layout import AdapterLayout

Module = TypeVar("Module", bound=nn.Module)


class Towers(NamedTuple):
    """A transformer cut below its first adapted layer; the upper part is there twice."""

    prefix: Tower | None
    """Inputs ↦ what the first adapted layer is given; None where the upper part takes inputs."""
    plain: nn.Module
    """… ↦ features (B, F), without adapters."""
    adapted: nn.Module
    """The same with adapters in it."""

    def on(self, device: torch.device) -> Towers:
        """Copies on a device; weights that towers have in common are there once, too."""
        weights = {id(p): p for tower in self if tower is not None for p in tower.parameters()}
        moved = {
            number: nn.Parameter(weight.to(device), requires_grad=False)
            for number, weight in weights.items()
        }
        towers = Towers(
            copy.deepcopy(self.prefix, moved),
            copy.deepcopy(self.plain, moved),
            copy.deepcopy(self.adapted, moved),
        )
        for tower in towers:
            for module in tower.modules() if tower is not None else ():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.to(device))
        return towers


class Encoder(Protocol):
    """A frozen transformer of K layers that makes a feature vector of every example."""

    @property
    def places(self) -> Places:
        """Where adapters go."""

    @property
    def feature_dim(self) -> int:
        """F, the length of a feature vector."""

    @property
    def num_layers(self) -> int:
        """K, the number of transformer blocks."""

    def towers(self, first: int, inject: Callable[[nn.Module], None]) -> Towers:
        """Cut below layer `first`; `inject` puts adapters into a module, in place."""

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        precision: torch.dtype | None,
    ) -> StackedTower | None:
        """Several clients' features in one pass, where it can be done."""


def same_weights(module: Module) -> Module:
    """A copy of the modules around the very same parameters."""
    return copy.deepcopy(module, memo={id(p): p for p in module.parameters()})
