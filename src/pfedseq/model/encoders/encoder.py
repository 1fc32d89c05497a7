"""The interface of a frozen transformer to the adapted model, for images, texts and dialogues."""

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
    """A transformer cut below its first adapted layer; the upper part exists twice."""

    prefix: Part | None
    """Inputs ↦ inputs of the first adapted layer; None if the upper part takes the inputs."""
    plain: nn.Module
    """… ↦ features (B, F), without adapters."""
    adapted: nn.Module
    """The same with adapters injected."""

    def on(self, device: torch.device) -> Towers:
        """Copies on a device; weights that towers share remain shared."""
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
    """Computes several clients' features in one pass."""

    def features(self, adapters: Tensor, inputs: Tensor, counts: Sequence[int]) -> Tensor:
        """Features (ΣB, F) of inputs (ΣB, …), of which client i has the next `counts[i]` rows.

        Gradients flow to the adapters (clients, K, D).
        """


class Encoder(Protocol):
    """A frozen transformer of K layers that computes a feature vector for every example."""

    @property
    def name(self) -> str:
        """The folder, hub id or weights file that it was loaded from."""

    @property
    def places(self) -> Places:
        """Names of the modules that can carry adapters."""

    @property
    def feature_dim(self) -> int:
        """F, the length of a feature vector."""

    @property
    def num_layers(self) -> int:
        """K, the number of transformer blocks."""

    def towers(self, first: int, inject: Callable[[nn.Module], None]) -> Towers:
        """Cut below layer `first`; `inject` puts adapters into a module, in place."""

    def checksum(self) -> str:
        """Changes with any frozen weight and any option that affects the computation."""

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        precision: torch.dtype | None,
    ) -> Stacked | None:
        """A function for several clients' features in one pass; None if not supported."""

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Several clients' inputs as one batch."""

    def check(self, adapter: AdapterConfig) -> None:
        """Refuse an adapter that does not fit the blocks."""

    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of the features that a complete upper tower computes."""

    def readout(self, tower: nn.Module, num_classes: int) -> Readout:
        """The layer that maps the features of an upper tower to logits."""

    @property
    def tunes_head(self) -> bool:
        """Whether clients tune a head; a language model keeps its output layer."""

    @property
    def has_classifier(self) -> bool:
        """Whether transformers has a class with a `classifier` layer on these features."""

    def published_name(self, name: str) -> str:
        """The name of a tower's parameter in transformers' own model."""
