"""A family of transformers: one file describes it, and one line of the registry names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from pfedseq.errors import InputError
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import Places
from pfedseq.model.encoders.encoder import Stacked, Towers
from pfedseq.model.encoders.parts import Part, cut, same_weights
from pfedseq.model.encoders.stacked import StackedPart
from pfedseq.model.encoders.timm import TimmNaming
from pfedseq.model.feature_length import feature_length
from pfedseq.model.layout import AdapterLayout

Unit = Literal["image", "text", "dialogue"]


def class_token(outputs: Any) -> Tensor:
    """The first token of the last layer (B, F)."""
    token: Tensor = outputs.last_hidden_state[:, 0]
    return token


def pooler_output(outputs: Any) -> Tensor:
    """The output of the model's own pooling (B, F)."""
    token: Tensor = outputs.pooler_output
    return token


def blocks_and_norm(model: Any, tokens: Tensor) -> BaseModelOutput:
    """A ViT's outputs for the inputs of its first block (B, T, F)."""
    for block in model.layers:
        tokens = block(tokens, None)
    return BaseModelOutput(last_hidden_state=model.layernorm(tokens))


_PYTHON: dict[Callable[[Any], Tensor], str] = {
    class_token: "last_hidden_state[:, 0]",
    pooler_output: "pooler_output",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """The blocks of a family's models, the projections that can carry adapters, and the features.

    This class runs any encoder that has a list of equal blocks: PEFT injects the adapters, and
    transformers' own forward computes. A subclass may override `towers` and `stacked` with faster
    versions.
    """

    title: str
    """The name for people, such as `DINOv2`."""
    model_types: tuple[str, ...]
    """Values of `model_type` in transformers' config.json."""
    unit: Unit
    """The word for one example: `image`, `text` or `dialogue`."""
    places: Places
    """Names of the blocks and their projections."""
    below: tuple[str, ...] = ("embeddings",)
    """The modules before the first block; () for a model that cannot be cut below it."""
    above: tuple[str, ...] = ()
    """The modules between the last block and `last_hidden_state`."""
    pool: Callable[[Any], Tensor] = class_token
    """For images: transformers' outputs ↦ features (B, F)."""
    model_class: str = "AutoModel"
    """The class of transformers that loads it."""
    load_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of transformers' `from_pretrained`, such as `add_pooling_layer=False`."""
    other_towers: tuple[str, ...] = ()
    """Prefixes of the other weights of a complete checkpoint, which are not read."""
    has_classifier: bool = False
    """Whether transformers has a class with a `classifier` layer on these features."""
    timm: TimmNaming | None = None
    """How timm names such a model's tensors, if its files are read."""
    example: str = ""
    """The hub id of an example, for `pfedseq backbones`."""
    fast_paths: tuple[str, ...] = ("prefix", "stacked passes")
    """Optimisations over plain PEFT, for `pfedseq backbones`."""

    @property
    def reads_timm(self) -> bool:
        """Whether timm's files of this family are read."""
        return self.timm is not None

    @property
    def name(self) -> str:
        """The name in the registry: the first of its model types."""
        return self.model_types[0]

    def depth(self, config: Any) -> int:
        """K, the number of blocks."""
        return int(config.num_hidden_layers)

    def feature_dim(self, config: Any) -> int:
        """F, the length of a feature vector."""
        return int(config.hidden_size)

    def positions(self, config: Any) -> int:
        """For texts: the maximum number of tokens."""
        return int(config.max_position_embeddings)

    def image_size(self, config: Any) -> int:
        """For images: the pixels per side that the positions fit."""
        return int(config.image_size)

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """For images: fit the positions to another size, in place."""
        raise InputError(
            f"backbone {name!r} reads images of {self.image_size(model.config)} pixels a side, not "
            f"{image_size}: set data.image_size"
        )

    def run(self, model: nn.Module, inputs: Tensor, image_size: int) -> Any:
        """For images: transformers' outputs for pixels (B, 3, S, S).

        For a model cut below a block, the outputs for that block's input tokens (B, T, F).
        """
        return model(pixel_values=inputs)

    def call(self, config: Any) -> str:
        """For images: Python code for features (B, F), given a `model` and pixels in `inputs`."""
        return f"model(**inputs).{_PYTHON[self.pool]}"

    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of the features, computed from a complete tower's weights."""
        return feature_length(tower)

    def options(self, config: Any) -> tuple[object, ...]:
        """Options that affect the blocks' computation, for checksums."""
        keys: tuple[str, ...]
        keys = ("model_type", "num_attention_heads", "hidden_act", "layer_norm_eps", "norm_eps")
        if self.unit == "image":
            keys += ("image_size", "patch_size", "rope_theta", "use_mean_pooling")
        return tuple(getattr(config, key, None) for key in keys)

    def checksum(self, whole: Part) -> str:
        """Changes with any weight of a complete model and any option of its computation."""
        return whole.checksum()

    def published_name(self, name: str) -> str:
        """The name of a tower's parameter in transformers' own model."""
        return name.removeprefix("model.")

    def towers(
        self,
        model: nn.Module,
        depth: int,
        first: int,
        inject: Callable[[nn.Module], None],
        part: Callable[[nn.Module, int, bool], Part],
    ) -> Towers:
        """Cut below layer `first`, if the family can be cut; `inject` adds the adapters.

        `part` makes a `Part` from a model, its number of blocks, and whether it ends at the top.
        """
        first = first if self.below else 0

        def stretch(whole: nn.Module, start: int, stop: int) -> Part:
            if (start, stop) != (0, depth):
                cut(whole, self.places.layers, start, stop, self.below, self.above)
            return part(whole, stop - start, stop == depth)

        adapted = same_weights(model)
        inject(adapted)
        return Towers(
            stretch(same_weights(model), 0, first) if first else None,
            stretch(same_weights(model), first, depth),
            stretch(adapted, first, depth),
        )

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        depth: int,
        precision: torch.dtype | None,
    ) -> Stacked | None:
        """A function for several clients' features in one pass; None if not supported."""
        return StackedPart(plain, adapter, layout, self.places) if precision is None else None

    def check(self, adapter: AdapterConfig, name: str) -> None:
        """Refuse an adapter with targets that the blocks do not have."""
        known = list(self.places.modules)
        for target in adapter.targets:
            if target not in known:
                raise InputError(
                    f"adapter.targets names {target!r}, which the blocks of {self.title} do not "
                    f"have (backbone {name!r}): choose from {', '.join(known)}"
                )
