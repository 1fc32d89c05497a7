"""Augmented training images: new ones in every round, or a few views with stored tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.data.dataset import ClientData
from pfedseq.model.encoders.parts import Part
from pfedseq.model.token_store import Kept, Prefix, Storage, tokens_for
from pfedseq.seeding import derive_seed
from pfedseq.training.augmentations import augmented
from pfedseq.workloads.images.pixels import normalise
from pfedseq.workloads.images.source import ImageSource

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Variation:
    """The augmentation of an image, a function of only its index and the random stream."""

    names: tuple[str, ...]
    seed: int
    layers: Callable[[Tensor], Tensor] | None = None
    """The frozen layers below the first adapter, if they are run on every new image."""
    views: int = 0
    """The number of augmented views per image; 0 draws a new one in every round."""
    tokens: Callable[[Indices], Tensor] | None = None
    """Reads the frozen layers' outputs for view v of image i, by index i · views + v."""

    def inputs(self, source: ImageSource, indices: Indices, stream: int) -> Tensor:
        """The adapted model's inputs in a client's round, which `stream` identifies."""
        if self.tokens is not None:
            drawn = [derive_seed(stream, int(i)) % self.views for i in indices]
            return self.tokens(indices * self.views + drawn).to(source.device, torch.float32)
        pixels = self._pixels(source, [(int(i), (stream, int(i))) for i in indices])
        return pixels if self.layers is None else self.layers(pixels)

    def through(self, prefix: Part) -> Variation:
        """This augmentation, followed by the frozen layers for each new image on its own."""

        @torch.no_grad()
        def layers(pixels: Tensor) -> Tensor:
            return torch.cat([prefix(one.unsqueeze(0)) for one in pixels])

        return replace(self, layers=layers)

    def with_views(
        self,
        views: int,
        prefix: Part,
        source: ImageSource,
        clients: Sequence[ClientData],
        storage: Storage,
        store: Path | None,
    ) -> Variation:
        """This augmentation with the tokens of `views` views per training image computed."""

        def read(places: Indices) -> Tensor:
            pairs = [divmod(int(place), views) for place in places]
            return self._pixels(source, [(i, ("view", i, v)) for i, v in pairs])

        nothing = np.zeros(0, dtype=np.int64)
        spread = [
            ClientData(
                client.name,
                (client.train[:, None] * views + np.arange(views)).reshape(-1),
                nothing,
                nothing,
            )
            for client in clients
        ]
        facts = (source.mean, source.std, list(self.names), self.seed, views)
        images = source.images
        kept = Kept(images.name, views * len(images.labels), images.fingerprint, facts)
        towers = Prefix(prefix, read, source.device)
        return replace(self, views=views, tokens=tokens_for(towers, spread, kept, storage, store))

    def _pixels(
        self, source: ImageSource, wanted: Sequence[tuple[int, tuple[str | int, ...]]]
    ) -> Tensor:
        """(B, 3, S, S), normalised; augmented on the CPU, so that all devices agree."""
        raw = [
            augmented(
                torch.from_numpy(np.array(source.images.images[i])), self.names, self.seed, *stream
            )
            for i, stream in wanted
        ]
        return normalise(torch.stack(raw).to(source.device), source.mean, source.std)
