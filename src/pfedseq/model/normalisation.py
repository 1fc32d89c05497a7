"""The normalisation of a backbone's inputs: set by the user, read from its files, or inferred.

Inputs are x ↦ (x − mean) / std per channel for x in [0, 1]. A bare weights file does not contain
these values, and a wrong choice silently costs many points of accuracy.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfedseq.errors import InputError

Channels = tuple[float, float, float]
Given = Sequence[float] | str | None
"""Three numbers, a name of `NAMED`, or None."""

DEFAULT_MEAN: Channels = (0.5, 0.5, 0.5)
DEFAULT_STD: Channels = (0.5, 0.5, 0.5)
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
"""DeiT and DINO use this and `IMAGENET_STD`; the paper's ViT uses 0.5 for both."""
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)
CLIP_MEAN: Channels = (0.48145466, 0.4578275, 0.40821073)
"""OpenAI's CLIP and many of OpenCLIP's use this and `CLIP_STD`."""
CLIP_STD: Channels = (0.26862954, 0.26130258, 0.27577711)

NAMED: dict[str, dict[str, Channels]] = {
    "half": {"mean": DEFAULT_MEAN, "std": DEFAULT_STD},
    "imagenet": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
    "clip": {"mean": CLIP_MEAN, "std": CLIP_STD},
}
_BY_FILE_NAME = (
    (r"deit|deit3|dino|dinov2|dinov3|ibot|mae|moco|beitv2", "imagenet"),
    (r"augreg|augreg2|in21k|orig", "half"),
)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel."""

    mean: Channels
    std: Channels
    note: str | None = None
    """An assumption and how to change it, if neither the user nor the source set the values."""


def recognise(file_name: str) -> tuple[str, str] | None:
    """(name of a normalisation, the telling word) for a file named after its origin."""
    for words, name in _BY_FILE_NAME:
        if found := re.search(rf"(?<![a-z])({words})(?![a-z])", file_name.lower()):
            return name, found[1]
    return None


def normalisation(
    backbone: str,
    mean: Given,
    std: Given,
    source: Mapping[str, Any],
    origin: tuple[str, str] | None = None,
    *,
    bare: bool = False,
) -> Normalisation:
    """The user's `mean` and `std`, else the `source` config's, else `origin`'s, else 0.5.

    `origin` is the recognised origin of a bare file: the name of a normalisation, and the reason.
    If only one of mean and std is given, by name, the other follows it.
    """
    timm = source.get("pretrained_cfg", source)
    named = mean if isinstance(mean, str) else std if isinstance(std, str) else None
    assumed = NAMED[origin[0] if origin else "half"]
    found = {}
    for key, given in (("mean", mean), ("std", std)):
        value = given if given is not None else named
        if value is None:
            value = source.get(f"image_{key}", timm.get(key, assumed[key]))
        found[key] = _channels(key, value, backbone)
    told = (mean is not None and std is not None) or named is not None
    said = "image_mean" in source or "mean" in timm
    note = _note(backbone, origin) if bare and not told and not said else None
    return Normalisation(found["mean"], found["std"], note)


def _channels(key: str, value: Any, backbone: str) -> Channels:
    if isinstance(value, str):
        if value not in NAMED:
            raise InputError(
                f"the {key} of backbone {backbone!r} should be three numbers or one of "
                f"{', '.join(NAMED)}, not {value!r}"
            )
        return NAMED[value][key]
    try:
        red, green, blue = (float(number) for number in value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the {key} of backbone {backbone!r} should be three numbers, not {value!r}"
        ) from error
    if key == "std" and min(red, green, blue) <= 0:
        raise InputError(f"the std of backbone {backbone!r} should be positive, not {value!r}")
    return red, green, blue


def _note(backbone: str, origin: tuple[str, str] | None) -> str:
    if origin is None:
        return (
            f"the input normalisation of {backbone} is unknown: assuming mean and std of 0.5, as "
            "for Google's ViTs; for DeiT, DINO or MAE set model.mean = 'imagenet', otherwise set "
            "model.mean = 'half' to confirm"
        )
    name, because = origin
    other = "half" if name == "imagenet" else "imagenet"
    what = {
        "half": "mean and std of 0.5",
        "imagenet": "ImageNet's mean and std",
        "clip": "CLIP's mean and std",
    }[name]
    return (
        f"{backbone} looks like {because}: inputs are normalised with {what}; set "
        f"model.mean = {other!r} if that is wrong, {name!r} to confirm"
    )
