"""Load a frozen Vision Transformer: the packaged demo, a hub id or folder, or a timm file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, ViTConfig, ViTModel

from pfedseq.data.framing import WHOLE, Framing
from pfedseq.errors import InputError
from pfedseq.files import read_object
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import Places
from pfedseq.model.encoders import find_family
from pfedseq.model.encoders.encoder import Stacked, Towers
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.loading import (
    check_finite,
    find_file,
    load_weights,
    quiet_transformers,
    read_config,
)
from pfedseq.model.encoders.parts import ImagePart, Part
from pfedseq.model.encoders.tensor_files import UNREADABLE, reason
from pfedseq.model.encoders.timm_files import LoadedModel, read_timm_file
from pfedseq.model.encoders.vit.family import FAMILY as VIT_FAMILY
from pfedseq.model.encoders.vit.naming import REGISTERS
from pfedseq.model.encoders.vit.registers import add_registers
from pfedseq.model.encoders.vit.timm_weights import VitWeights
from pfedseq.model.geometry import (
    ARCHITECTURES,
    DEMO_FOLDER,
    RANDOM_PREFIX,
    SUFFIXES,
    check_divides,
    check_image_size,
    name_some,
    weights_file,
)
from pfedseq.model.layout import AdapterLayout
from pfedseq.model.normalisation import (
    DEFAULT_MEAN,
    DEFAULT_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Channels,
    normalisation,
)
from pfedseq.model.processor import image_processor, processor_framing
from pfedseq.model.readout import TunedHead
from pfedseq.seeding import seeded

__all__ = [
    "DEFAULT_MEAN",
    "DEFAULT_STD",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Backbone",
    "check_image_size",
    "interpolate_positions",
    "load_backbone",
]


@dataclass(frozen=True)
class Backbone:
    """A frozen image encoder and how its input is normalised: x ↦ (x − mean) / std.

    x is in [0, 1]. Implements `encoder.Encoder`.
    """

    model: PreTrainedModel
    """In eval mode, without gradients; position embeddings fit `image_size`."""
    mean: Channels
    std: Channels
    image_size: int
    note: str | None = None
    """A remark for the user: an assumption, or a deviation from the checkpoint's settings."""
    name: str = ""
    """The name passed to `load_backbone`."""
    num_heads: int | None = None
    """As it was given, for a file that cannot tell."""
    framing: Framing = WHOLE
    """How images become squares of `image_size`."""
    as_published: bool = False
    """Whether transformers alone loads exactly these weights from the hub by `name`."""
    family: Family = VIT_FAMILY

    @property
    def feature_dim(self) -> int:
        """F, the length of a feature vector."""
        return self.family.feature_dim(self.model.config)

    @property
    def num_layers(self) -> int:
        """K, the number of transformer blocks."""
        return self.family.depth(self.model.config)

    @property
    def places(self) -> Places:
        """Names of the modules that can carry adapters."""
        return self.family.places

    @property
    def tunes_head(self) -> bool:
        """True: every client tunes a head."""
        return True

    def readout(self, tower: nn.Module, num_classes: int) -> TunedHead:
        """The client's linear head."""
        return TunedHead(num_classes, self.feature_dim)

    @property
    def has_classifier(self) -> bool:
        """Whether transformers has a class with a `classifier` layer on these features."""
        return self.family.has_classifier

    def published_name(self, name: str) -> str:
        """The name of a tower's parameter in transformers' own model."""
        return self.family.published_name(name)

    def check(self, adapter: AdapterConfig) -> None:
        """Refuse an adapter with targets that the blocks do not have."""
        self.family.check(adapter, self.name)
        for target in adapter.targets:
            place = f"{self.places.layers}.0.{self.places.modules[target]}"
            try:
                self.model.get_submodule(place)
            except AttributeError:
                raise InputError(
                    f"adapter.targets names {target!r}, which backbone {self.name!r} does not have "
                    f"(there is no {place}): remove it"
                ) from None

    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of the features, computed from the weights."""
        return self.family.feature_length(tower)

    def towers(self, first: int, inject: Callable[[nn.Module], None]) -> Towers:
        """The encoder in two towers, cut below layer `first`."""
        return self.family.towers(self.model, self.num_layers, first, inject, self._part)

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        precision: torch.dtype | None,
    ) -> Stacked | None:
        """A function for several clients' features in one pass; None if not supported."""
        return self.family.stacked(plain, adapter, layout, self.num_layers, precision)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Several clients' images as one batch."""
        return torch.cat(list(parts))

    def checksum(self) -> str:
        """Changes with any weight and any option that affects the computation."""
        return self.family.checksum(self._part(self.model, self.num_layers, True))

    def _part(self, model: nn.Module, num_layers: int, to_the_top: bool) -> Part:
        family, size = self.family, self.image_size
        options, pool = family.options(self.model.config), family.pool if to_the_top else None
        return ImagePart(model, num_layers, options, lambda m, x: family.run(m, x, size), pool)


def load_backbone(
    name: str,
    image_size: int | None = None,
    mean: Sequence[float] | str | None = None,
    std: Sequence[float] | str | None = None,
    *,
    num_heads: int | None = None,
    seed: int = 0,
    framing: Framing | None = None,
) -> Backbone:
    """Load an image encoder, frozen, for images of `image_size` × `image_size` pixels.

    `name` is one of

    - `demo`: the small ViT inside this package;
    - a hub id such as `google/vit-base-patch16-224-in21k`, or a local folder of such files
      (transformers' format, or timm's: `config.json` with an `architecture`);
    - a timm-format file: `.safetensors`, `.pth`/`.pt`/`.bin`, or `.npz` of the augreg release; or
      a folder with just one of them;
    - `random:vit-tiny` (`-small`, `-base`, `-large`) or `random:demo`: that architecture with
      random weights drawn from `seed`.

    `image_size`, `mean`, `std` and `framing` default to what the source says, else to 224, to what
    a bare file is recognised as (`Backbone.note` says it) or 0.5, and to whole images, resized
    bicubically; `mean="imagenet"` sets mean and std.
    `num_heads` is for a timm-format file whose heads have an unusual width, which most files
    cannot tell.
    """
    if num_heads is not None and not name.endswith(SUFFIXES):
        raise InputError(
            f"num_heads = {num_heads} was given for backbone {name!r}, whose config defines it: "
            "remove it (it is for timm-format files only)"
        )
    bare = weights_file(name) is not None
    loaded, source = _read(name, num_heads, seed)
    family = VIT_FAMILY if isinstance(loaded, VitWeights) else loaded.family
    config = loaded.config if isinstance(loaded, VitWeights) else loaded.model.config
    own = family.image_size(config)
    size = own if image_size is None else image_size
    chosen = normalisation(name, mean, std, source, loaded.origin, bare=bare)
    if isinstance(loaded, VitWeights):
        model = _frozen_model(loaded, size, name)
    else:
        model = loaded.model
        if size != own:
            family.resize(model, size, name)
    return Backbone(
        model=model,
        mean=chosen.mean,
        std=chosen.std,
        image_size=size,
        note=chosen.note,
        name=name,
        num_heads=num_heads,
        framing=framing or processor_framing(name, source, size, family.name),
        as_published=_is_hub_id(name)
        and "architecture" not in source  # timm's config
        and size == own,
        family=family,
    )


def _read(
    name: str, num_heads: int | None, seed: int
) -> tuple[VitWeights | LoadedModel, dict[str, Any]]:
    """A backbone's weights and what its files say of preparing images."""
    file = weights_file(name)
    if name.startswith(RANDOM_PREFIX):
        return _random_weights(name, seed), {}
    if name == "demo":
        return _transformers_weights(str(DEMO_FOLDER)), image_processor(str(DEMO_FOLDER))
    if file is not None:
        beside = read_object(file.with_name("config.json")) or {}  # as timm's releases have it
        return read_timm_file(file, num_heads, beside), beside
    config = read_config(name)
    if "architecture" in config and "model_type" not in config:  # how timm writes its repositories
        return read_timm_file(_timm_weights(name), None, config), config
    family = find_family(config.get("model_type"), "image", name)
    if family is VIT_FAMILY:
        _refuse_unusual_images(name, config)
        return _transformers_weights(name), image_processor(name)
    return LoadedModel(load_weights(name, family), family), image_processor(name)


def _is_hub_id(name: str) -> bool:
    local = name == "demo" or name.startswith(RANDOM_PREFIX) or name.endswith(SUFFIXES)
    return not local and not Path(name).exists()


def _frozen_model(weights: VitWeights, image_size: int, name: str) -> ViTModel:
    """Build the model from tensors, with position embeddings resampled to the image size."""
    patch = int(weights.config.patch_size)
    check_divides(patch, image_size, name)
    config = ViTConfig.from_dict(
        {**weights.config.to_dict(), "image_size": image_size}, attn_implementation="sdpa"
    )
    positions = "embeddings.position_embeddings"
    state = dict(weights.state)
    state[positions] = interpolate_positions(state[positions], image_size // patch)
    # Avoids allocating initial weights that would be overwritten at once.
    with torch.device("meta"):
        model = ViTModel(config, add_pooling_layer=False)
        if REGISTERS in state:
            add_registers(model, state[REGISTERS].shape[1])
    model.load_state_dict(state, assign=True)
    check_finite(name, model)
    return model.requires_grad_(False).eval()


def interpolate_positions(positions: Tensor, side: int) -> Tensor:
    """Resample position embeddings (1, 1 + g², width) to a grid of side² patches, bicubically.

    The class token's embedding comes first and is unchanged. When the grid shrinks, the filter is
    widened (antialias), as in timm.
    """
    _, tokens, width = positions.shape
    old_side = round((tokens - 1) ** 0.5)
    if old_side == side:
        return positions
    grid = positions[:, 1:].reshape(1, old_side, old_side, width).permute(0, 3, 1, 2)
    grid = functional.interpolate(grid, size=(side, side), mode="bicubic", antialias=True)
    return torch.cat([positions[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def _random_weights(name: str, seed: int) -> VitWeights:
    architecture = name.removeprefix(RANDOM_PREFIX)
    if architecture == "demo":
        config = ViTConfig.from_pretrained(DEMO_FOLDER)
    elif architecture in ARCHITECTURES:
        width, depth = ARCHITECTURES[architecture]
        config = ViTConfig(
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            layer_norm_eps=1e-6,
        )
    else:
        known = ", ".join(RANDOM_PREFIX + key for key in [*ARCHITECTURES, "demo"])
        raise InputError(f"backbone {name!r} has an unknown architecture: choose one of {known}")
    with seeded(seed):
        model = ViTModel(config, add_pooling_layer=False)
    return VitWeights(config, dict(model.state_dict()))


def _refuse_unusual_images(name: str, config: dict[str, Any]) -> None:
    """Refuse a ViT for images that are not square, or without three channels."""
    keys = ("image_size", "patch_size", "num_channels")
    geometry = {key: config[key] for key in keys if key in config}
    square = all(isinstance(value, int) for value in geometry.values())
    if not square or geometry.get("num_channels", 3) != 3:
        raise InputError(
            f"backbone {name!r} has {geometry} in its config.json, but square images and patches "
            "(one number each) and 3 channels are needed"
        )


def _timm_weights(name: str) -> Path:
    """The weights beside timm's config.json: a folder's only .safetensors, or the hub's file."""
    if Path(name).is_dir():
        files = sorted(Path(name).glob("*.safetensors"))
        if len(files) == 1:
            return files[0]
    return Path(find_file(name, "model.safetensors"))


def _transformers_weights(name: str) -> VitWeights:
    """Read with transformers, which handles its older tensor names, and check the result."""
    try:
        with quiet_transformers(progress_bar=not Path(name).is_dir()):
            model, report = ViTModel.from_pretrained(
                name,
                add_pooling_layer=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that they are reported by name and refused below
                weights_only=True,
                dtype=torch.float32,
            )
    except UNREADABLE as error:
        raise InputError(f"backbone {name!r} cannot be read: {reason(error)}") from error
    missing = sorted(report["missing_keys"])
    unexpected = sorted(key for key in report["unexpected_keys"] if not _is_head(key))
    misshapen = sorted(f"{key} {tuple(shape)}" for key, shape, _ in report["mismatched_keys"])
    if missing or unexpected or misshapen:
        raise InputError(
            f"backbone {name!r} is not a complete ViT: missing {name_some(missing)}; unexpected "
            f"{name_some(unexpected)}; shapes that differ from its config: "
            f"{name_some(misshapen)}"
        )
    return VitWeights(model.config, dict(model.state_dict()))


def _is_head(key: str) -> bool:
    return key.removeprefix("vit.").startswith(("pooler.", "classifier."))
