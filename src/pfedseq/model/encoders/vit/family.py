"""ViT (`model_type` `vit`) with all optimisations; includes DeiT and the first DINO."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import VIT
from pfedseq.model.encoders.encoder import Towers
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.parts import Part, same_weights
from pfedseq.model.encoders.vit.class_token import keep_class_token_only
from pfedseq.model.encoders.vit.stacked import StackedTower
from pfedseq.model.encoders.vit.tower import Tower
from pfedseq.model.layout import AdapterLayout


class VitFamily(Family):
    """ViT: the last block runs on the class token only, and stacked passes support bfloat16."""

    @property
    def reads_timm(self) -> bool:
        """True; see `pfedseq.model.encoders.vit.timm_weights`."""
        return True

    def towers(
        self,
        model: nn.Module,
        depth: int,
        first: int,
        inject: Callable[[nn.Module], None],
        part: Callable[[nn.Module, int, bool], Part],
    ) -> Towers:
        """The encoder in two towers, cut below layer `first`."""
        plain = same_weights(model)
        keep_class_token_only(plain)
        adapted = same_weights(plain)
        inject(adapted)
        prefix = Tower(plain, 0, first) if first else None
        return Towers(prefix, *(Tower(vit, first, depth) for vit in (plain, adapted)))

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        depth: int,
        precision: torch.dtype | None,
    ) -> StackedTower:
        """A function for several clients' features in one pass, in any precision."""
        assert isinstance(plain, Tower)
        return StackedTower(plain, adapter, layout, depth, precision)

    def checksum(self, whole: Part) -> str:
        """The checksum of the blocks, with a ViT's own parameter names."""
        return Tower(whole.get_submodule("model"), 0, whole.num_layers).checksum()

    def published_name(self, name: str) -> str:
        """The name of a tower's parameter in `ViTForImageClassification`."""
        return f"vit.{name}"


FAMILY = VitFamily(
    title="ViT",
    model_types=("vit",),
    example="google/vit-base-patch16-224-in21k",
    unit="image",
    places=VIT,
    above=("layernorm",),
    has_classifier=True,
    fast_paths=(
        "prefix",
        "stacked passes",
        "class token alone in the last block",
        "bfloat16",
    ),
)
