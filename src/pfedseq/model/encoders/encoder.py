"""What the adapted model needs of a frozen transformer, whatever it reads: images or texts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import Places
from pfedseq.model.encoders.parts import Part
from pfedseq.model.layout import AdapterLayout
from pfedseq.model.readout import Readout


class Towers(NamedTuple):
    """A transformer cut below its first adapted layer; the upper part is there twice."""

    prefix: Part | None
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


class Stacked(Protocol):
    """Several clients' features in one pass."""

    def features(self, adapters: Tensor, inputs: Tensor, counts: Sequence[int]) -> Tensor:
        """Features (ΣB, F) of inputs (ΣB, …); client i has the next `counts[i]`.

        Gradients flow to the adapters (clients, K, D).
        """


class Encoder(Protocol):
    """A frozen transformer of K layers that makes a feature vector of every example."""

    @property
    def name(self) -> str:
        """What it was loaded by: a folder, a hub id, a weights file."""

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

    def checksum(self) -> str:
        """Changes when any frozen weight does, or how the layers compute."""

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        precision: torch.dtype | None,
    ) -> Stacked | None:
        """Several clients' features in one pass, where it can be done."""

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Several clients' inputs as one batch."""

    def check(self, adapter: AdapterConfig) -> None:
        """Refuse an adapter that does not fit the blocks."""

    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of the features that a tower to the top gives."""

    def readout(self, tower: nn.Module, num_classes: int) -> Readout:
        """What is read off the features of a tower to the top."""

    @property
    def tunes_head(self) -> bool:
        """Whether clients tune a head; a language model keeps its own output layer."""

    @property
    def has_classifier(self) -> bool:
        """Whether transformers has a class with a layer `classifier` on the features used here."""

    def published_name(self, name: str) -> str:
        """The name that a tower's parameter has in the model that others load."""
