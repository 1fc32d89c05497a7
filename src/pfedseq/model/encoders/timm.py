"""How timm names the tensors of a transformer, and their conversion to models of transformers.

A family with a `TimmNaming` loads timm's files besides transformers' folders; plain ViTs are read
by `pfedseq.model.encoders.vit.timm_weights`. A file must contain exactly the tensors of its
architecture, apart from heads, which are dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pfedseq.errors import InputError
from pfedseq.model.adapters import Places
from pfedseq.model.geometry import USUAL_IMAGE, name_some
from pfedseq.seeding import seeded

HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
"""Attention heads of timm's widths (SO-400M, huge, giant, …) whose heads are not 64 wide."""
MLP = {"mlp_in": "fc1", "mlp_out": "fc2"}
"""timm's names of the two layers of an MLP."""
PATCHES = "patch_embed.proj"


def heads_of(width: int) -> int:
    """The attention heads of timm's models of this width, which their tensors do not reveal."""
    return HEADS.get(width, max(1, width // 64))


@dataclass(frozen=True)
class WeightRule:
    """One tensor of a file and the tensors of transformers' model that it becomes."""

    source: str
    ndim: int
    targets: tuple[str, ...]
    convert: Callable[[Tensor], tuple[Tensor, ...]]


def same(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensor, unchanged."""
    return (tensor,)


def thirds(tensor: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value, which timm stacks."""
    return tensor.chunk(3)


def unbatched(tensor: Tensor) -> tuple[Tensor, ...]:
    """(1, …) ↦ (…)."""
    return tensor.unbind(0)


def renamed(source: str, target: str, ndim: int) -> list[WeightRule]:
    """Rules for a module's weight, which has `ndim` dimensions, and its bias."""
    return [
        WeightRule(f"{source}.weight", ndim, (f"{target}.weight",), same),
        WeightRule(f"{source}.bias", 1, (f"{target}.bias",), same),
    ]


def block_rules(
    places: Places,
    depth: int,
    tensors: Mapping[str, Tensor],
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after"),
    mlp: Mapping[str, str] = MLP,
) -> list[WeightRule]:
    """Rules for all blocks but their layer scales; biases of queries, … are those of block 0."""
    found = []
    names: Mapping[str, str] = places.modules  # type: ignore[assignment]
    for i in range(depth):
        source, target = f"blocks.{i}", f"{places.layers}.{i}"
        query, key, value = (f"{target}.{names[part]}" for part in ("query", "key", "value"))
        weights = tuple(f"{projection}.weight" for projection in (query, key, value))
        found += [
            *renamed(f"{source}.norm1", f"{target}.{norms[0]}", 1),
            *renamed(f"{source}.norm2", f"{target}.{norms[1]}", 1),
            *renamed(f"{source}.attn.proj", f"{target}.{names['output']}", 2),
            WeightRule(f"{source}.attn.qkv.weight", 2, weights, thirds),
        ]
        for part, timm in mlp.items():
            found += renamed(f"{source}.mlp.{timm}", f"{target}.{names[part]}", 2)
        if "blocks.0.attn.qkv.bias" in tensors:
            biases = tuple(f"{projection}.bias" for projection in (query, key, value))
            found.append(WeightRule(f"{source}.attn.qkv.bias", 1, biases, thirds))
        elif "blocks.0.attn.q_bias" in tensors:
            found += [
                WeightRule(f"{source}.attn.q_bias", 1, (f"{query}.bias",), same),
                WeightRule(f"{source}.attn.v_bias", 1, (f"{value}.bias",), same),
            ]
    return found


def scale_rules(places: Places, depth: int, first: str, second: str) -> list[WeightRule]:
    """Rules for the layer scales of attention and MLP."""
    return [
        WeightRule(f"blocks.{i}.{timm}", 1, (f"{places.layers}.{i}.{name}",), same)
        for i in range(depth)
        for timm, name in (("gamma_1", first), ("gamma_2", second))
    ]


@dataclass(frozen=True)
class TimmFile:
    """The tensors of a file, and what its name and the config.json beside it say."""

    path: Path
    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]
    num_heads: int | None = None
    """As the user gave it."""

    @property
    def name(self) -> str:
        """timm's name, such as `vit_base_patch16_clip_224.openai`, or else the file's."""
        architecture = self.about.get("architecture")
        tag = self.about.get("pretrained_cfg", {}).get("tag", "")
        return f"{architecture}.{tag}" if architecture else self.path.stem

    @property
    def depth(self) -> int:
        """K, the number of blocks."""
        found = (re.match(r"blocks\.(\d+)\.", key) for key in self.tensors)
        return 1 + max((int(match[1]) for match in found if match), default=-1)

    @property
    def pretrained_size(self) -> int:
        """Pixels a side in pretraining, if the config says it; 224 otherwise."""
        said = self.about.get("pretrained_cfg", {}).get("input_size", ())
        return int(said[-1]) if len(said) == 3 else USUAL_IMAGE

    def side(self, before: int) -> int:
        """Patches along each side, from the positions, of which `before` are not patches."""
        patches = self.tensors["pos_embed"].shape[-2] - before
        side = math.isqrt(max(0, patches))
        if side < 1 or side**2 != patches:
            raise InputError(
                f"{self.path} has {patches} positions of patches, which are no square grid"
            )
        return side

    def geometry(self, heads: int | None = None) -> dict[str, Any]:
        """The settings that all of transformers' configs share, but for the image size.

        `heads` is the number of attention heads, if the file reveals it.
        """
        kernel = self.tensors[f"{PATCHES}.weight"]
        if kernel.ndim != 4 or kernel.shape[1] != 3 or kernel.shape[2] != kernel.shape[3]:
            raise InputError(
                f"{self.path} has a patch embedding of shape {tuple(kernel.shape)}, but square "
                "patches of 3 channels are needed"
            )
        width = kernel.shape[0]
        if None not in (heads, self.num_heads) and heads != self.num_heads:
            raise InputError(
                f"{self.path} has {heads} attention heads, not num_heads = {self.num_heads}"
            )
        heads = heads or self.num_heads or heads_of(width)
        if width % heads:
            raise InputError(
                f"{self.path} has width {width}, which {heads} attention heads do not divide; give "
                "the right num_heads"
            )
        return {
            "hidden_size": width,
            "num_hidden_layers": self.depth,
            "num_attention_heads": heads,
            "intermediate_size": self.tensors["blocks.0.mlp.fc2.weight"].shape[-1],
            "patch_size": kernel.shape[2],
            "attn_implementation": "sdpa",
        }


@dataclass(frozen=True, kw_only=True)
class TimmNaming:
    """A family's files in timm's naming."""

    title: str
    """What timm calls these models."""
    sign: Callable[[Mapping[str, Tensor]], bool]
    """Whether a file's tensors are of this family."""
    model: type[PreTrainedModel]
    settings: Callable[[TimmFile], dict[str, Any]]
    """The arguments of the model's config."""
    rules: Callable[[TimmFile], list[WeightRule]]
    normalisation: Literal["half", "imagenet", "clip"]
    """The name of what a file's inputs are normalised with, where nothing says it."""
    prepare: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: tensors
    """Makes the tensors that the rules name from those of a file."""
    dropped: tuple[str, ...] = ("head.",)
    """Prefixes of tensors that are not read."""
    absent: tuple[str, ...] = ()
    """Tensors of transformers' model that timm leaves out, as they are used in pretraining only."""

    def load(self, file: TimmFile, options: Mapping[str, Any]) -> PreTrainedModel:
        """The model, frozen; refuses files that do not have exactly its tensors.

        `options` are further arguments of the model's class.
        """
        file = replace(file, tensors=self.prepare(file.tensors))
        rules = self._checked_rules(file)
        config = self.model.config_class(**self.settings(file))
        with seeded(0):  # initial weights, which are all overwritten
            model = self.model(config, **options)
        wanted = model.state_dict()
        state = {name: torch.zeros_like(wanted[name]) for name in self.absent}
        misfits = []
        for rule in rules:
            parts = rule.convert(file.tensors[rule.source])
            if [part.shape for part in parts] != [wanted[name].shape for name in rule.targets]:
                misfits.append(rule.source)
            state.update(zip(rule.targets, (part.contiguous() for part in parts), strict=False))
        if misfits:
            raise self._misfit(file, misfits)
        model.load_state_dict(state, assign=True)
        frozen: PreTrainedModel = model.requires_grad_(False).eval()
        return frozen

    def _checked_rules(self, file: TimmFile) -> list[WeightRule]:
        rules = self.rules(file)
        known = {rule.source for rule in rules}
        missing = sorted(known - file.tensors.keys())
        unexpected = sorted(
            key for key in file.tensors.keys() - known if not key.startswith(self.dropped)
        )
        if missing or unexpected:
            raise InputError(
                f"{file.path} looks like a {self.title} in timm's naming, but is not one: missing "
                f"{name_some(missing)}; unexpected {name_some(unexpected)} (in transformers' "
                "format, more is read: give its folder or hub id)"
            )
        flat = [rule.source for rule in rules if file.tensors[rule.source].ndim != rule.ndim]
        if flat:
            raise self._misfit(file, flat)
        return rules

    def _misfit(self, file: TimmFile, sources: list[str]) -> InputError:
        shapes = [f"{source} {tuple(file.tensors[source].shape)}" for source in sources]
        return InputError(
            f"{file.path} does not fit a {self.title} with {file.depth} blocks: the shapes of "
            f"{name_some(shapes)} are wrong"
        )
