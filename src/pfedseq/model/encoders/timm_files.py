"""Reads a file of any architecture in timm's naming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from pfedseq.errors import InputError
from pfedseq.model.encoders import FAMILIES
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.loading import check_finite
from pfedseq.model.encoders.tensor_files import read_tensors
from pfedseq.model.encoders.timm import TimmFile
from pfedseq.model.encoders.vit.timm_weights import VitWeights, read_vit
from pfedseq.model.normalisation import recognise


@dataclass(frozen=True)
class LoadedModel:
    """A frozen model of a family other than plain ViTs."""

    model: PreTrainedModel
    family: Family
    origin: tuple[str, str] | None = None
    """Of a timm file: the name of a normalisation and how the file was recognised."""


def read_timm_file(
    path: Path, num_heads: int | None, about: Mapping[str, Any]
) -> VitWeights | LoadedModel:
    """Read `path`, given the config.json beside it; a .npz is of the augreg release.

    `num_heads` is for heads of an unusual width where the tensors do not reveal their number.
    """
    if not path.is_file():
        raise InputError(f"there is no backbone file {path}")
    tensors, wrapped_in = read_tensors(path)
    file = TimmFile(path, tensors, about, num_heads)
    for family in FAMILIES.values():
        naming = family.timm
        if naming is not None and file.depth and naming.sign(tensors):
            model = naming.load(file, family.load_options)
            check_finite(str(path), model)
            by_name = recognise(path.name)
            origin = (by_name[0] if by_name else naming.normalisation, f"a {naming.title}")
            return LoadedModel(model, family, origin)
    return read_vit(file, wrapped_in)
