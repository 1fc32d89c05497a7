"""What a checkpoint's image processor says of size, interpolation and centre crop.

`preprocessor_config.json` is transformers' file; timm says the same in the `pretrained_cfg` of its
config.json. transformers is imported for hub ids alone.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from pfedseq.data.framing import WHOLE, Framing, Interpolation
from pfedseq.errors import InputError
from pfedseq.files import read_object
from pfedseq.model.geometry import RANDOM_PREFIX, weights_file

PROCESSOR_FILE = "preprocessor_config.json"
_BILINEAR = 2
_KEEP_RATIO = ("CLIP", "Bit")
"""Processors that mean the shorter side by a bare number; the others mean both."""


def stated_framing(backbone: str, side: int) -> Framing:
    """How the files of a backbone say that images become squares; no weights are read."""
    if backbone == "demo" or backbone.startswith(RANDOM_PREFIX):
        return WHOLE
    if (file := weights_file(backbone)) is not None:
        beside = read_object(file.with_name("config.json")) or {}
        return processor_framing(backbone, beside, side, "vit")
    config = _json(backbone, "config.json")
    if "model_type" not in config:
        return processor_framing(backbone, config, side)
    return processor_framing(backbone, image_processor(backbone), side, config["model_type"])


def image_processor(backbone: str) -> dict[str, Any]:
    """What a folder or repository says of its image processor; {} where it says nothing."""
    said = _json(backbone, PROCESSOR_FILE)
    return said or _json(backbone, "processor_config.json").get("image_processor", {})


def _json(backbone: str, filename: str) -> dict[str, Any]:
    if Path(backbone).is_dir():
        return read_object(Path(backbone) / filename) or {}
    from pfedseq.model.encoders.loading import find_optional  # imports transformers

    return find_optional(backbone, filename)


def processor_side(processor: Mapping[str, Any]) -> Any:
    """Pixels a side of what a processor gives, as the file says; None where it does not."""
    cropped = processor.get("do_center_crop")
    size = processor.get("crop_size" if cropped else "size")
    return size.get("height") if isinstance(size, Mapping) else size


def processor_framing(
    backbone: str, source: Mapping[str, Any], side: int, model_type: str | None = None
) -> Framing:
    """How images become squares of `side` pixels, as a checkpoint's files say.

    A size before cropping is scaled with `side`. Where nothing is said, images are resized whole
    and bicubically. `resample = 2` without a crop, the default that transformers writes for every
    ViT (`model_type` "vit"), counts as nothing said.
    """
    timm = source.get("pretrained_cfg", source)
    if "crop_pct" in timm or "interpolation" in timm:
        return _of_timm(backbone, timm, side)
    resized, keeps_ratio = _resized(source)
    crop = processor_side(source) if source.get("do_center_crop") else None
    resample = source.get("resample", WHOLE.resample)
    if model_type == "vit" and resample == _BILINEAR and crop is None and not keeps_ratio:
        resample = WHOLE.resample
    names = get_args(Interpolation)
    if not isinstance(resample, int) or not 0 <= resample < len(names):
        raise _unknown(backbone, f"has resample = {resample!r}", "data.interpolation = 'bicubic'")
    resize_to = None
    if crop is not None and resized is not None:
        if not (isinstance(crop, int) and isinstance(resized, int) and 0 < crop <= resized):
            said = f"resizes to {resized!r} pixels and crops to {crop!r}"
            raise _unknown(backbone, said, "data.resize = 'whole'")
        resize_to = round(side * resized / crop)
    return Framing(
        names[resample],
        "shorter" if keeps_ratio else "whole",
        None if resize_to == side else resize_to,
    )


def _resized(processor: Mapping[str, Any]) -> tuple[Any, bool]:
    """(pixels that a side is resized to, whether it is the shorter one)."""
    size = processor.get("size")
    if not processor.get("do_resize", True) or size is None:
        return None, False
    if isinstance(size, Mapping):
        if "shortest_edge" in size:
            return size["shortest_edge"], True
        return size.get("height"), False
    kind = processor.get("image_processor_type", processor.get("feature_extractor_type", ""))
    return size, str(kind).startswith(_KEEP_RATIO)


def _of_timm(backbone: str, stated: Mapping[str, Any], side: int) -> Framing:
    """As timm's evaluation does it: a share `crop_pct` of the resized image is kept."""
    interpolation = stated.get("interpolation") or WHOLE.interpolation
    if interpolation not in get_args(Interpolation):
        said = f"has interpolation = {interpolation!r}"
        raise _unknown(backbone, said, "data.interpolation = 'bicubic'")
    interpolation = cast("Interpolation", interpolation)
    share, mode = stated.get("crop_pct"), stated.get("crop_mode") or "center"
    if share is None:
        return Framing(interpolation)
    if not (isinstance(share, int | float) and 0 < share <= 1) or mode not in ("center", "squash"):
        said = f"has crop_pct = {share!r} and crop_mode = {mode!r}"
        raise _unknown(backbone, said, "data.resize = 'whole'")
    resize_to = math.floor(side / share)
    return Framing(
        interpolation,
        "shorter" if mode == "center" else "whole",
        None if resize_to == side else resize_to,
    )


def _unknown(backbone: str, said: str, remedy: str) -> InputError:
    return InputError(
        f"the image processor of backbone {backbone!r} {said}, which is not known here: set "
        f"{remedy} to do without"
    )


def processor_settings(
    side: int, mean: tuple[float, ...], std: tuple[float, ...], framing: Framing
) -> dict[str, Any]:
    """The same as `preprocessor_config.json`, for transformers' own image processors."""
    target = framing.resize_to or side
    cropped = framing.resize == "shorter" or target != side
    size = {"height": target, "width": target}
    crop = {"do_center_crop": True, "crop_size": {"height": side, "width": side}}
    return {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": target} if framing.resize == "shorter" else size,
        "resample": framing.resample,
        **(crop if cropped else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
