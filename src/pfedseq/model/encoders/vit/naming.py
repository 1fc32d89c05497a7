"""Names and layouts of a ViT's tensors in timm and in the original augreg release."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import isqrt

from torch import Tensor, cat, zeros_like

from pfedseq.model.adapters import VIT
from pfedseq.model.encoders.timm import PATCHES, WeightRule, block_rules, renamed, same

REGISTERS = "embeddings.register_tokens"
"""The name of DINOv2's registers in a model of `pfedseq.model.encoders.vit.registers`."""


class Naming(ABC):
    """A family of files; the attributes are names of tensors, or patterns of them."""

    family: str
    block: str
    """Regular expression; its group is the index of the block."""
    example_block: str
    patch_kernel: str
    positions: str
    query_bias: str
    """Absent if queries, keys and values have no biases."""
    mlp_bias: str
    head: tuple[str, ...]
    """Prefixes of tensors used in pretraining only (heads, DINOv2's mask token), dropped here."""

    @abstractmethod
    def as_conv_weight(self, patch_kernel: Tensor) -> Tensor:
        """The patch embedding as (width, channels, patch, patch)."""

    @abstractmethod
    def num_heads(self, tensors: Mapping[str, Tensor]) -> int | None:
        """The number of attention heads, if the shapes reveal it."""

    @abstractmethod
    def entries(self, depth: int, tensors: Mapping[str, Tensor]) -> list[WeightRule]:
        """All tensors of a ViT of this depth, with biases where a file has them."""


class _Timm(Naming):
    """timm, DeiT, DINO and DINOv2: PyTorch layouts; query, key and value stacked into one `qkv`."""

    family = "timm"
    block = r"blocks\.(\d+)\."
    example_block = "blocks.0.*"
    patch_kernel = f"{PATCHES}.weight"
    positions = "pos_embed"
    query_bias = "blocks.0.attn.qkv.bias"
    mlp_bias = "blocks.0.mlp.fc1.bias"
    head = ("head.", "pre_logits.", "mask_token")

    def as_conv_weight(self, patch_kernel: Tensor) -> Tensor:
        return patch_kernel

    def num_heads(self, tensors: Mapping[str, Tensor]) -> int | None:
        return None

    def entries(self, depth: int, tensors: Mapping[str, Tensor]) -> list[WeightRule]:
        return [
            WeightRule("cls_token", 3, ("embeddings.cls_token",), same),
            WeightRule("pos_embed", 3, ("embeddings.position_embeddings",), same),
            *renamed(PATCHES, _PATCHES, 4),
            *renamed("norm", "layernorm", 1),
            *block_rules(VIT, depth, tensors),
        ]


class _Augreg(Naming):
    """The augreg .npz files: Flax layouts, where a kernel maps from its first axes to its last.

    Kernels of query, key and value are (width, heads, width/heads), the attention output's is
    (heads, width/heads, width), and the patch kernel is (patch, patch, channels, width).
    """

    family = "augreg"
    block = r"Transformer/encoderblock_(\d+)/"
    example_block = "Transformer/encoderblock_0/*"
    patch_kernel = "embedding/kernel"
    positions = "Transformer/posembed_input/pos_embedding"
    query_kernel = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    query_bias = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/bias"
    mlp_bias = "Transformer/encoderblock_0/MlpBlock_3/Dense_0/bias"
    head = ("head/", "pre_logits/")

    def as_conv_weight(self, patch_kernel: Tensor) -> Tensor:
        return patch_kernel.permute(3, 2, 0, 1)

    def num_heads(self, tensors: Mapping[str, Tensor]) -> int | None:
        kernel = tensors[self.query_kernel]
        return kernel.shape[1] if kernel.ndim == 3 else None

    def entries(self, depth: int, tensors: Mapping[str, Tensor]) -> list[WeightRule]:
        found = [
            WeightRule("cls", 3, ("embeddings.cls_token",), same),
            WeightRule(self.positions, 3, ("embeddings.position_embeddings",), same),
            WeightRule(
                self.patch_kernel,
                4,
                (f"{_PATCHES}.weight",),
                lambda kernel: (self.as_conv_weight(kernel),),
            ),
            WeightRule("embedding/bias", 1, (f"{_PATCHES}.bias",), same),
            *self._norm("Transformer/encoder_norm", "layernorm"),
        ]
        for i in range(depth):
            source, target = f"Transformer/encoderblock_{i}", f"layers.{i}"
            attention = f"{source}/MultiHeadDotProductAttention_1"
            found += [
                *self._norm(f"{source}/LayerNorm_0", f"{target}.layernorm_before"),
                *self._norm(f"{source}/LayerNorm_2", f"{target}.layernorm_after"),
                *self._dense(f"{source}/MlpBlock_3/Dense_0", f"{target}.mlp.fc1"),
                *self._dense(f"{source}/MlpBlock_3/Dense_1", f"{target}.mlp.fc2"),
                WeightRule(
                    f"{attention}/out/kernel",
                    3,
                    (f"{target}.attention.o_proj.weight",),
                    lambda kernel: (kernel.flatten(0, 1).T,),
                ),
                WeightRule(f"{attention}/out/bias", 1, (f"{target}.attention.o_proj.bias",), same),
            ]
            for part in ("query", "key", "value"):
                projection = f"{target}.attention.{part[0]}_proj"
                found.append(
                    WeightRule(
                        f"{attention}/{part}/kernel",
                        3,
                        (f"{projection}.weight",),
                        lambda kernel: (kernel.flatten(1).T,),
                    )
                )
                if self.query_bias in tensors:
                    found.append(
                        WeightRule(
                            f"{attention}/{part}/bias",
                            2,
                            (f"{projection}.bias",),
                            lambda bias: (bias.flatten(),),
                        )
                    )
        return found

    def _norm(self, source: str, target: str) -> list[WeightRule]:
        return [
            WeightRule(f"{source}/scale", 1, (f"{target}.weight",), same),
            WeightRule(f"{source}/bias", 1, (f"{target}.bias",), same),
        ]

    def _dense(self, source: str, target: str) -> list[WeightRule]:
        return [
            WeightRule(f"{source}/kernel", 2, (f"{target}.weight",), lambda kernel: (kernel.T,)),
            WeightRule(f"{source}/bias", 1, (f"{target}.bias",), same),
        ]


def take_registers(tensors: dict[str, Tensor]) -> Tensor | None:
    """Take DINOv2's registers (1, R, width) out of a file's tensors, if it has any.

    timm calls them `reg_token` and then has no position for the class token, which becomes zero.
    """
    registers = tensors.pop("register_tokens", None)
    if registers is None and "reg_token" in tensors:
        registers = tensors.pop("reg_token")
        if "pos_embed" in tensors:
            positions = tensors["pos_embed"]
            tensors["pos_embed"] = cat([zeros_like(positions[:, :1]), positions], dim=1)
    return registers


def add_class_position(tensors: dict[str, Tensor]) -> None:
    """Add a zero position for DeiT III's class token, which has none."""
    positions = tensors.get("pos_embed")
    if positions is None or "cls_token" not in tensors or positions.ndim != 3:
        return
    if isqrt(positions.shape[1]) ** 2 == positions.shape[1]:
        tensors["pos_embed"] = cat([zeros_like(positions[:, :1]), positions], dim=1)


OTHER_ARCHITECTURES = (
    ("blocks.0.attn.q_proj.", "EVA-02"),
    ("blocks.0.attn.q_bias", "EVA or EVA-02"),
    ("blocks.0.gamma_1", "ViT with rotary positions"),
    ("attn_pool.", "ViT with attention pooling beside a class token"),
    ("fc_norm.", "ViT that averages patches"),
    ("blocks.0.mlp.fc1_g.", "ViT with a gated MLP"),
)
"""(prefix of a tensor's name, the architecture it indicates) of timm files that are not read."""


def other_architecture(tensors: Iterable[str]) -> str:
    """The architecture of a timm file that is not a plain ViT; '' if unknown."""
    names = list(tensors)
    for sign, title in OTHER_ARCHITECTURES:
        if any(name.startswith(sign) for name in names):
            return f"; it looks like {title}: models of this kind are not read"
    return ""


def fold_layer_scale(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """DINOv2's x + γ · (W y + b) as the plain x + W' y + b', with W' = diag(γ) W and b' = γ · b.

    Only a γ of matching shape is folded in; any other is refused later as an unknown tensor.
    """
    folded = dict(tensors)
    for key, scale in tensors.items():
        block, _, name = key.rpartition(".ls")
        if name not in ("1.gamma", "2.gamma"):
            continue
        layer = f"{block}.attn.proj" if name == "1.gamma" else f"{block}.mlp.fc2"
        weight, bias = folded.get(f"{layer}.weight"), folded.get(f"{layer}.bias")
        if weight is None or bias is None or not scale.shape == bias.shape == weight.shape[:1]:
            continue
        folded[f"{layer}.weight"] = scale[:, None] * weight
        folded[f"{layer}.bias"] = scale * bias
        del folded[key]
    return folded


TIMM = _Timm()
AUGREG = _Augreg()

_PATCHES = "embeddings.patch_embeddings.projection"
