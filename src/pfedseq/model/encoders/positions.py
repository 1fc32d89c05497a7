"""Position embeddings for another image size, computed once instead of in every pass."""

from __future__ import annotations

from typing import Any

import torch

from pfedseq.model.geometry import check_divides


def resample_positions(model: Any, image_size: int, name: str) -> None:
    """Rebuild the embeddings of a model for images of another size, in place.

    The embeddings have a table `position_embeddings` (1, T, F) or `position_embedding` (T, F), some
    tokens before the patches, and a method that interpolates the table.
    """
    old, config = model.embeddings, model.config
    check_divides(int(config.patch_size), image_size, name)
    state = old.state_dict()
    key = "position_embeddings" if "position_embeddings" in state else "position_embedding.weight"
    table = state[key]
    before = table.shape[-2] - (int(config.image_size) // int(config.patch_size)) ** 2
    tokens = before + (image_size // int(config.patch_size)) ** 2
    with torch.no_grad():
        resampled = old.interpolate_pos_encoding(
            table.new_zeros(1, tokens, table.shape[-1]), image_size, image_size
        )
    config.image_size = image_size
    state[key] = resampled.reshape(*table.shape[:-2], tokens, table.shape[-1]).contiguous()
    new = type(old)(config)
    new.load_state_dict(state, assign=True)
    model.embeddings = new.requires_grad_(False).eval()
