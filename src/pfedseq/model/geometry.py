"""A backbone's patch and image size, as far as they are known before it is loaded.

Nothing here imports transformers, so that reading a config stays quick.
"""

import math
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pfedseq.errors import InputError
from pfedseq.files import read_object

DEMO_FOLDER = Path(__file__).resolve().parents[1] / "assets" / "demo_vit"
RANDOM_PREFIX = "random:"
ARCHITECTURES = {
    "vit-tiny": (192, 12),
    "vit-small": (384, 12),
    "vit-base": (768, 12),
    "vit-large": (1024, 24),
}
"""Width and depth; all have patches of 16, heads of width 64 and an MLP four times as wide."""
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")
"""Suffixes of weight files with timm's names or those of the augreg release."""
USUAL_PATCH, USUAL_IMAGE = 16, 224
"""Sizes for a ViT whose config omits them: transformers' defaults."""


def weights_file(name: str) -> Path | None:
    """The timm-format file that `name` refers to: itself, or the only one in a bare folder."""
    if name.endswith(SUFFIXES):
        return Path(name)
    folder = Path(name)
    if name == "demo" or not folder.is_dir() or (folder / "config.json").exists():
        return None
    files = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    if len(files) > 1:
        raise InputError(
            f"backbone folder {name!r} has {len(files)} weights files: name one of "
            f"{name_some([path.name for path in files])}"
        )
    return files[0] if files else None


def check_divides(patch: int, image_size: int, name: str) -> None:
    """Refuse an image size that is not a multiple of the patch size."""
    if image_size < patch or image_size % patch:
        raise InputError(
            f"backbone {name!r} cuts images into patches of {patch} pixels, so image_size must be "
            f"a multiple of {patch}, not {image_size}"
        )


def check_image_size(name: str, image_size: int) -> None:
    """Refuse an image size that the backbone's patches do not divide, if this is cheap to check.

    It is for the demo, random weights, folders with a config.json and .safetensors files; for any
    other backbone, a name such as `…patch16…` is trusted.
    """
    patch = _known_patch_size(name)
    if patch is not None:
        check_divides(patch, image_size, name)


def _known_patch_size(name: str) -> int | None:
    config = (DEMO_FOLDER if name.endswith("demo") else Path(name)) / "config.json"
    if config.is_file():
        stated = (read_object(config) or {}).get("patch_size")
        if isinstance(stated, int):
            return stated
    if name.startswith(RANDOM_PREFIX):
        return USUAL_PATCH
    file = weights_file(name)
    if file is not None and file.suffix == ".safetensors" and file.is_file():
        geometry = _header_geometry(file)
        return geometry[0] if geometry else None
    by_name = re.search(r"patch(\d+)", name)
    return int(by_name[1]) if by_name else None


def quick_image_size(name: str) -> int | None:
    """The image size that a backbone was trained on, if known without loading it.

    It is known for the demo, random weights, transformers' folders and .safetensors files.
    """
    folder = DEMO_FOLDER if name in ("demo", f"{RANDOM_PREFIX}demo") else Path(name)
    if (folder / "config.json").is_file():
        about = read_object(folder / "config.json") or {}
        stated = about.get("image_size", USUAL_IMAGE)
        return stated if about.get("model_type") == "vit" and isinstance(stated, int) else None
    if name.removeprefix(RANDOM_PREFIX) in ARCHITECTURES:
        return USUAL_IMAGE
    file = Path(name)
    if file.suffix == ".safetensors" and file.is_file():
        geometry = _header_geometry(file)
        return geometry[1] if geometry else None
    return None


def _header_geometry(path: Path) -> tuple[int, int] | None:
    """(patch size, image size) of a .safetensors file in timm's naming, from its header alone."""
    try:
        with safe_open(path, "pt") as file:
            if not {"patch_embed.proj.weight", "pos_embed"} <= set(file.keys()):
                return None
            patch = int(file.get_slice("patch_embed.proj.weight").get_shape()[-1])
            positions = int(file.get_slice("pos_embed").get_shape()[1])
    except (OSError, ValueError, IndexError, SafetensorError):
        return None  # loading it reports the error
    # With registers the class token has no position; the root of the grid is the same.
    return patch, math.isqrt(positions) * patch


def name_some(names: list[str]) -> str:
    """The first few of many names, as part of a sentence."""
    if not names:
        return "nothing"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
