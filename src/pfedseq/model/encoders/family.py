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
from pfedseq.model.feature_length import feature_length
from pfedseq.model.layout import AdapterLayout

Unit = Literal["image", "text", "dialogue"]


def class_token(outputs: Any) -> Tensor:
    """The first token of the last layer (B, F)."""
    token: Tensor = outputs.last_hidden_state[:, 0]
    return token


def pooler_output(outputs: Any) -> Tensor:
    """What the model's own pooling gives (B, F)."""
    token: Tensor = outputs.pooler_output
    return token


def blocks_and_norm(model: Any, tokens: Tensor) -> BaseModelOutput:
    """A ViT's outputs for what its first block is given (B, T, F)."""
    for block in model.layers:
        tokens = block(tokens, None)
    return BaseModelOutput(last_hidden_state=model.layernorm(tokens))


_PYTHON: dict[Callable[[Any], Tensor], str] = {
    class_token: "last_hidden_state[:, 0]",
    pooler_output: "pooler_output",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where the blocks of a family's models are, what may carry an adapter, and how they are read.

    This class runs any encoder that has a list of equal blocks: PEFT injects the adapters,
    transformers' own forward computes. A subclass may override `towers` and `stacked` by something
    faster.
    """

    title: str
    """As people call it."""
    model_types: tuple[str, ...]
    """What transformers calls it in a config.json."""
    unit: Unit
    """What one example is called: `image`, `text`, `dialogue`."""
    places: Places
    """Where the blocks and their projections are."""
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
    """What the names of a whole checkpoint's other weights begin with; they are left unread."""
    has_classifier: bool = False
    """Whether transformers has a class with a layer `classifier` on the features used here."""
    example: str = ""
    """A hub id of such a model, for `pfedseq backbones`."""
    fast_paths: tuple[str, ...] = ("prefix", "stacked passes")
    """What is faster than plain PEFT, for `pfedseq backbones`."""

    @property
    def name(self) -> str:
        """By which the registry knows it: the first of its model types."""
        return self.model_types[0]

    def depth(self, config: Any) -> int:
        """K, the number of blocks."""
        return int(config.num_hidden_layers)

    def feature_dim(self, config: Any) -> int:
        """F, the length of a feature vector."""
        return int(config.hidden_size)

    def positions(self, config: Any) -> int:
        """For texts: how many tokens the model reads at most."""
        return int(config.max_position_embeddings)

    def image_size(self, config: Any) -> int:
        """For images: pixels a side that the positions are for."""
        return int(config.image_size)

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """For images: fit the positions to another size, in place."""
        raise InputError(
            f"backbone {name!r} reads images of {self.image_size(model.config)} pixels a side, not "
            f"{image_size}: set data.image_size"
        )

    def run(self, model: nn.Module, inputs: Tensor, image_size: int) -> Any:
        """For images: transformers' outputs for pixels (B, 3, S, S).

        Of a model that is cut below a block, for the tokens (B, T, F) that the block is given.
        """
        return model(pixel_values=inputs)

    def call(self, config: Any) -> str:
        """For images: Python for features (B, F) out of a `model` and pixels in `inputs`."""
        return f"model(**inputs).{_PYTHON[self.pool]}"

    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of features, known from the weights of a whole tower."""
        return feature_length(tower)

    def options(self, config: Any) -> tuple[object, ...]:
        """How the blocks compute beyond their weights, for checksums."""
        keys: tuple[str, ...]
        keys = ("model_type", "num_attention_heads", "hidden_act", "layer_norm_eps", "norm_eps")
        if self.unit == "image":
            keys += ("image_size", "patch_size", "rope_theta", "use_mean_pooling")
        return tuple(getattr(config, key, None) for key in keys)

    def checksum(self, whole: Part) -> str:
        """Changes when any weight of a whole model does, or how its blocks compute."""
        return whole.checksum()

    def published_name(self, name: str) -> str:
        """The name that a tower's parameter has in the model that others load."""
        return name.removeprefix("model.")

    def towers(
        self,
        model: nn.Module,
        depth: int,
        first: int,
        inject: Callable[[nn.Module], None],
        part: Callable[[nn.Module, int, bool], Part],
    ) -> Towers:
        """Cut below layer `first`, where the family can be cut; `inject` puts adapters in.

        `part` makes a `Part` of a model: how many blocks it has, and whether it ends at the top.
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
        """Several clients' features in one pass; None where it cannot be computed so."""
        return StackedPart(plain, adapter, layout, self.places) if precision is None else None

    def check(self, adapter: AdapterConfig, name: str) -> None:
        """Refuse targets that a family's blocks do not have."""
        known = list(self.places.modules)
        for target in adapter.targets:
            if target not in known:
                raise InputError(
                    f"adapter.targets names {target!r}, which the blocks of {self.title} do not "
                    f"have (backbone {name!r}): choose among {', '.join(known)}"
                )
