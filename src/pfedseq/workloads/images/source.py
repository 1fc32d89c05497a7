"""Images by index, as the adapted model reads them; implements `task.Examples`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.data.image_store import Report
from pfedseq.model.encoders.parts import Part
from pfedseq.model.token_store import Kept, Prefix, Storage, tokens_for
from pfedseq.workloads.images.pixels import normalise

if TYPE_CHECKING:
    from pfedseq.workloads.images.variation import Variation

SKETCH_SIZE = 32
"""Pixels per side of the result of `sketches`."""


@dataclass(frozen=True)
class ImageSource:
    """Images and labels by index, normalised for the backbone when they are read."""

    images: ImageSet
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: torch.device
    tokens: Callable[[NDArray], Tensor] | None = None  # type: ignore[type-arg]
    """Reads the stored outputs of the frozen layers below the first adapter; None if not stored."""
    variation: Variation | None = None
    """The augmentation of training images; None if there is none."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self.images.class_names

    def inputs(self, indices: NDArray) -> Tensor:  # type: ignore[type-arg]
        """The adapted model's inputs: tokens (B, T, F), or pixels (B, 3, S, S)."""
        if self.tokens is None:
            return self.pixels(indices)
        return self.tokens(indices).to(self.device, torch.float32)

    def training_inputs(self, indices: NDArray, stream: int) -> Tensor:  # type: ignore[type-arg]
        """The inputs of images augmented by the random `stream`, if augmentation is on."""
        if self.variation is None:
            return self.inputs(indices)
        return self.variation.inputs(self, indices, stream)

    def pixels(self, indices: NDArray) -> Tensor:  # type: ignore[type-arg]
        """(B, 3, S, S), normalised."""
        raw = torch.from_numpy(self.images.images[indices]).to(self.device)
        return normalise(raw, self.mean, self.std)

    def labels(self, indices: NDArray) -> Tensor:  # type: ignore[type-arg]
        """(B,) class indices."""
        return torch.from_numpy(self.images.labels[indices]).to(self.device)

    def sketches(self, indices: NDArray) -> Tensor:  # type: ignore[type-arg]
        """Images averaged down to (B, 3, 32, 32)."""
        return adaptive_avg_pool2d(self.pixels(indices), SKETCH_SIZE)


def with_tokens(
    source: ImageSource,
    tower: Part,
    clients: Sequence[ClientData],
    storage: Storage,
    store: Path | None,
    report: Report | None = None,
) -> ImageSource:
    """A source with the tokens of all clients' images computed, in `store` or the cache."""
    prefix, images = Prefix(tower, source.pixels, source.device), source.images
    facts = (source.mean, source.std)
    kept = Kept(images.name, len(images.labels), images.fingerprint, facts)
    return replace(source, tokens=tokens_for(prefix, clients, kept, storage, store, report))
