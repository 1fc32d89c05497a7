"""Names of classes, and parameters that are no model's first ones."""

import torch

from pfedseq.params import Params
from pfedseq.workloads.images.reader import ImageReader
from pfedseq.workloads.personal import PersonalModel

NAMES = ("ant", "bee", "cat", "dog", "eel")


def some_phi(model, seed=3, scale=0.3):
    rng = torch.Generator().manual_seed(seed)
    initial = model.initial
    return Params(
        initial.adapter + scale * torch.randn(initial.adapter.shape, generator=rng),
        initial.head + scale * torch.randn(initial.head.shape, generator=rng),
    )


def personal_model(model, phi, names=NAMES, window=None, **about):
    """A personal model for images."""
    return PersonalModel(model, phi, names, ImageReader(model.encoder, window), about)
