"""Converts stored pixels to a backbone's input."""

from collections.abc import Sequence

import torch
from torch import Tensor


def normalise(raw: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(B, 3, S, S) float of uint8: (x / 255 − mean) / std, in one multiply-add."""
    divisor = torch.tensor(std, device=raw.device).view(3, 1, 1)
    offset = torch.tensor(mean, device=raw.device).view(3, 1, 1)
    return torch.addcmul(-offset / divisor, raw.float(), 1 / (255 * divisor))
