"""Families of frozen transformers, by what transformers calls them.

A family is a file of this folder with a `FAMILY` in it and a line here; installed packages bring
their own under the entry-point group `pfedseq.encoders`.
"""

from __future__ import annotations

from pfedseq.errors import InputError
from pfedseq.model.encoders import bert, distilbert, modernbert, mpnet, roberta
from pfedseq.model.encoders.family import Family, Unit
from pfedseq.model.encoders.vit import family as vit
from pfedseq.plugins import Registry

FAMILIES: Registry[Family] = Registry(
    "encoder family",
    "pfedseq.encoders",
    Family,
    [
        vit.FAMILY,
        bert.FAMILY,
        roberta.FAMILY,
        distilbert.FAMILY,
        modernbert.FAMILY,
        mpnet.FAMILY,
    ],
)


def find_family(model_type: object, unit: Unit, backbone: str) -> Family:
    """The family of a `model_type` of config.json; refuses what reads something else."""
    for family in FAMILIES.values():
        if model_type in family.model_types:
            if family.unit != unit:
                raise InputError(
                    f"backbone {backbone!r} is a {model_type!r}, which reads {family.unit}s, and "
                    f"the data are {unit}s: name another model.backbone"
                )
            return family
    known = sorted(name for f in FAMILIES.values() if f.unit == unit for name in f.model_types)
    raise InputError(
        f"backbone {backbone!r} has model_type {model_type!r} in its config.json; for {unit}s "
        f"there are {', '.join(known)}"
    )
