"""Families of frozen transformers, by transformers' `model_type`.

A family is a file in this folder that defines `FAMILY`, and a line here; installed packages add
families through the entry-point group `pfedseq.encoders`.
"""

from __future__ import annotations

from pfedseq.errors import InputError
from pfedseq.model.encoders import (
    beit,
    bert,
    causal,
    clip,
    deit,
    dinov2,
    dinov3,
    distilbert,
    modernbert,
    mpnet,
    roberta,
    siglip,
    siglip2,
    vit_mae,
)
from pfedseq.model.encoders.family import Family, Unit
from pfedseq.model.encoders.vit import family as vit
from pfedseq.plugins import Registry

FAMILIES: Registry[Family] = Registry(
    "encoder family",
    "pfedseq.encoders",
    Family,
    [
        vit.FAMILY,
        deit.FAMILY,
        beit.FAMILY,
        vit_mae.FAMILY,
        dinov2.FAMILY,
        dinov3.FAMILY,
        clip.FAMILY,
        siglip.FAMILY,
        siglip2.FAMILY,
        bert.FAMILY,
        roberta.FAMILY,
        distilbert.FAMILY,
        modernbert.FAMILY,
        mpnet.FAMILY,
        causal.LLAMA,
        causal.MISTRAL,
        causal.QWEN2,
        causal.QWEN3,
    ],
)

UNEQUAL = (
    *("swin", "swinv2", "convnext", "convnextv2", "resnet", "regnet", "efficientnet", "cvt"),
    *(
        "mobilenet_v1",
        "mobilenet_v2",
        "mobilevit",
        "mobilevitv2",
        "pvt",
        "pvt_v2",
        "hiera",
        "levit",
    ),
)
"""Model types of image encoders whose blocks differ from stage to stage."""


def find_family(model_type: object, unit: Unit, backbone: str) -> Family:
    """The family of a config.json's `model_type`; refuses one that reads another kind of data."""
    for family in FAMILIES.values():
        if model_type in family.model_types:
            if family.unit != unit:
                raise InputError(
                    f"backbone {backbone!r} is a {model_type!r}, which reads {family.unit}s, but "
                    f"the data are {unit}s: choose another model.backbone"
                )
            return family
    known = ", ".join(family.title for family in FAMILIES.values() if family.unit == unit)
    if model_type in UNEQUAL:
        raise InputError(
            f"backbone {backbone!r} is a {model_type!r}, whose blocks have several sizes, but "
            f"adapters need equal blocks; for {unit}s choose one of {known}"
        )
    raise InputError(
        f"backbone {backbone!r} has the unsupported model_type {model_type!r} in its config.json; "
        f"for {unit}s choose one of {known} (`pfedseq backbones` lists them)"
    )
