"""Unlabelled images at the server, for methods that distil."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.auxiliary import AuxiliaryExamples
from pfedseq.workloads.images.source import ImageSource


def auxiliary_images(
    model: AdaptedModel, source: ImageSource, image_size: int, seed: int, threads: int = 1
) -> AuxiliaryExamples:
    """Auxiliary images; smaller ones are enlarged to the backbone's size when read."""

    def read(indices: NDArray[np.int64]) -> Tensor:
        pixels = source.pixels(indices)
        if pixels.shape[-1] != image_size:
            pixels = interpolate(pixels, (image_size, image_size), mode="bilinear")
        return model.inputs(pixels)

    return AuxiliaryExamples(model, read, len(source.images.images), seed, threads)
