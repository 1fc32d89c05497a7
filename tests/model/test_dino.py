"""DINO's and DINOv2's own checkpoints against a forward pass written out from the definition."""

import argparse
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import IMAGENET_MEAN, load_backbone
from tests.model.timm_vit import (
    DEPTH,
    HEADS,
    WIDTH,
    Bomb,
    assert_close,
    plain_forward,
    some_images,
    timm_tensors,
    tokens_of,
)

REGISTERS = 3


def dinov2_tensors(registers: bool) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(3)
    tensors = {k: v for k, v in timm_tensors().items() if not k.startswith("head")}
    tensors["mask_token"] = torch.randn(1, WIDTH, generator=rng)
    for i in range(DEPTH):
        for scale in ("ls1", "ls2"):
            gamma = 0.5 + torch.rand(WIDTH, generator=rng)
            tensors[f"blocks.{i}.{scale}.gamma"] = gamma
    if registers:
        tensors["register_tokens"] = torch.randn(1, REGISTERS, WIDTH, generator=rng)
    return tensors


def dinov2_forward(t: dict[str, Tensor], images: Tensor) -> Tensor:
    """All tokens: class token, registers (which have no position), patches."""
    grid = functional.conv2d(
        images, t["patch_embed.proj.weight"], t["patch_embed.proj.bias"], stride=8
    )
    patches = grid.flatten(2).transpose(1, 2) + t["pos_embed"][:, 1:]
    first = (t["cls_token"] + t["pos_embed"][:, :1]).expand(len(images), -1, -1)
    registers = t.get("register_tokens", torch.zeros(1, 0, WIDTH)).expand(len(images), -1, -1)
    x = torch.cat([first, registers, patches], dim=1)

    def norm(x: Tensor, key: str) -> Tensor:
        return functional.layer_norm(x, (WIDTH,), t[f"{key}.weight"], t[f"{key}.bias"], 1e-6)

    def linear(x: Tensor, key: str) -> Tensor:
        return x @ t[f"{key}.weight"].T + t[f"{key}.bias"]

    for i in range(DEPTH):
        block = f"blocks.{i}"
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv").chunk(3, -1)
        )
        weights = (q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        x = x + t[f"{block}.ls1.gamma"] * linear(mixed, f"{block}.attn.proj")
        hidden = functional.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + t[f"{block}.ls2.gamma"] * linear(hidden, f"{block}.mlp.fc2")
    return norm(x, "norm")


@pytest.mark.parametrize("registers", [False, True])
def test_dinov2_gives_the_forward_pass_of_its_definition(tmp_path: Path, registers: bool) -> None:
    tensors = dinov2_tensors(registers)
    torch.save(tensors, tmp_path / "vit.pth")
    images = some_images()
    assert_close(tokens_of(tmp_path / "vit.pth", images), dinov2_forward(tensors, images))
    backbone = load_backbone(str(tmp_path / "vit.pth"))
    assert backbone.mean == IMAGENET_MEAN
    assert "looks like DINOv2" in (backbone.note or "")
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())


def test_timm_writes_the_same_registers_without_a_position_for_the_class_token(
    tmp_path: Path,
) -> None:
    tensors = dinov2_tensors(registers=True)
    tensors["pos_embed"][:, 0] = 0
    timm = {k: v for k, v in tensors.items() if k not in ("register_tokens", "mask_token")}
    timm["reg_token"] = tensors["register_tokens"]
    timm["pos_embed"] = tensors["pos_embed"][:, 1:].contiguous()
    save_file(timm, tmp_path / "vit.safetensors")
    images = some_images()
    assert_close(tokens_of(tmp_path / "vit.safetensors", images), dinov2_forward(tensors, images))


def test_deit_iii_has_layer_scale_and_no_position_for_the_class_token(tmp_path: Path) -> None:
    tensors = dinov2_tensors(registers=False)
    tensors["pos_embed"][:, 0] = 0
    timm = {k: v for k, v in tensors.items() if k != "mask_token"}
    timm["pos_embed"] = tensors["pos_embed"][:, 1:].contiguous()
    save_file(timm, tmp_path / "deit3.safetensors")
    images = some_images()
    assert_close(tokens_of(tmp_path / "deit3.safetensors", images), dinov2_forward(tensors, images))


def test_registers_stay_with_adapters_and_at_another_size(tmp_path: Path) -> None:
    tensors = dinov2_tensors(registers=True)
    save_file(tensors, tmp_path / "vit.safetensors")
    model = AdaptedModel(
        load_backbone(str(tmp_path / "vit.safetensors")), AdapterConfig(), num_classes=5, seed=0
    )
    images = some_images()
    expected = dinov2_forward(tensors, images)[:, 0]
    assert_close(model.features(model.initial.adapter, images), expected)
    assert_close(model.merged(model.initial.adapter)(images), expected)
    larger = some_images(48)
    assert tokens_of(tmp_path / "vit.safetensors", larger, image_size=48).shape[1] == 1 + 3 + 36


def test_registers_of_another_width_are_refused(tmp_path: Path) -> None:
    tensors = timm_tensors() | {"register_tokens": torch.ones(1, 4, 7)}
    save_file(tensors, tmp_path / "vit.safetensors")
    with pytest.raises(InputError, match=r"has registers of shape \(1, 4, 7\)"):
        load_backbone(str(tmp_path / "vit.safetensors"))


def test_a_full_dino_checkpoint_with_its_arguments_and_optimizer(tmp_path: Path) -> None:
    tensors = {k: v for k, v in timm_tensors().items() if not k.startswith("head")}
    teacher = {f"backbone.{k}": v for k, v in tensors.items()}
    full = {
        "student": {f"module.{k}": v + 1 for k, v in teacher.items()},
        "teacher": teacher | {"head.mlp.0.weight": torch.ones(2, 2)},
        "optimizer": {"state": {0: {"step": 3}}, "param_groups": [{"lr": 1e-3}]},
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", patch_size=16, lr=5e-4),
    }
    torch.save(full, tmp_path / "checkpoint.pth")
    images = some_images()
    actual = tokens_of(tmp_path / "checkpoint.pth", images)
    assert_close(actual, plain_forward(timm_tensors(), images, HEADS))
    backbone = load_backbone(str(tmp_path / "checkpoint.pth"))
    assert backbone.mean == IMAGENET_MEAN
    assert "looks like a DINO checkpoint" in (backbone.note or "")


def test_code_hidden_in_the_arguments_is_not_executed(tmp_path: Path) -> None:
    hostile = argparse.Namespace(arch=Bomb(tmp_path / "touched"))
    torch.save({"teacher": timm_tensors(), "args": hostile}, tmp_path / "checkpoint.pth")
    with pytest.raises(InputError, match="never executed"):
        load_backbone(str(tmp_path / "checkpoint.pth"))
    assert not (tmp_path / "touched").exists()
