"""timm-format and augreg files against the plain forward pass, and the files that do not fit."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.model.backbone import IMAGENET_MEAN, IMAGENET_STD, load_backbone
from tests.model.timm_vit import (
    DEPTH,
    HEADS,
    MLP,
    WIDTH,
    Bomb,
    assert_close,
    plain_forward,
    some_images,
    timm_tensors,
    tokens_of,
    without,
)


def augreg_arrays(t: dict[str, Tensor], heads: int = HEADS) -> dict[str, np.ndarray]:
    """The same network as the augreg release stores it: Flax names and layouts."""
    head_dim = WIDTH // heads
    arrays = {
        "cls": t["cls_token"],
        "Transformer/posembed_input/pos_embedding": t["pos_embed"],
        "embedding/kernel": torch.einsum("dcyx->yxcd", t["patch_embed.proj.weight"]),
        "embedding/bias": t["patch_embed.proj.bias"],
        "Transformer/encoder_norm/scale": t["norm.weight"],
        "Transformer/encoder_norm/bias": t["norm.bias"],
        "head/kernel": t["head.weight"].T,
        "head/bias": t["head.bias"],
        "pre_logits/kernel": torch.eye(WIDTH),
        "pre_logits/bias": torch.zeros(WIDTH),
    }
    for i in range(DEPTH):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        for flax, timm in (("LayerNorm_0", "norm1"), ("LayerNorm_2", "norm2")):
            arrays[f"{theirs}/{flax}/scale"] = t[f"{ours}.{timm}.weight"]
            arrays[f"{theirs}/{flax}/bias"] = t[f"{ours}.{timm}.bias"]
        for flax, timm in (("Dense_0", "fc1"), ("Dense_1", "fc2")):
            arrays[f"{theirs}/MlpBlock_3/{flax}/kernel"] = t[f"{ours}.mlp.{timm}.weight"].T
            arrays[f"{theirs}/MlpBlock_3/{flax}/bias"] = t[f"{ours}.mlp.{timm}.bias"]
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        weight = t[f"{ours}.attn.qkv.weight"].view(3, heads, head_dim, WIDTH)
        bias = t[f"{ours}.attn.qkv.bias"].view(3, heads, head_dim)
        for index, part in enumerate(("query", "key", "value")):
            arrays[f"{attention}/{part}/kernel"] = torch.einsum("hkd->dhk", weight[index])
            arrays[f"{attention}/{part}/bias"] = bias[index]
        out = t[f"{ours}.attn.proj.weight"].view(WIDTH, heads, head_dim)
        arrays[f"{attention}/out/kernel"] = torch.einsum("dhk->hkd", out)
        arrays[f"{attention}/out/bias"] = t[f"{ours}.attn.proj.bias"]
    return {key: value.contiguous().numpy() for key, value in arrays.items()}


@pytest.fixture
def timm_file(tmp_path: Path) -> Path:
    path = tmp_path / "vit.safetensors"
    save_file(timm_tensors(), path)
    return path


def test_safetensors_file_gives_the_plain_forward(timm_file: Path) -> None:
    backbone = load_backbone(str(timm_file))
    assert (backbone.feature_dim, backbone.num_layers, backbone.image_size) == (WIDTH, DEPTH, 32)
    assert backbone.mean == backbone.std == (0.5, 0.5, 0.5)
    images = some_images()
    assert_close(tokens_of(timm_file, images), plain_forward(timm_tensors(), images, HEADS))


def test_backbone_is_frozen(timm_file: Path) -> None:
    model = load_backbone(str(timm_file)).model
    assert not model.training
    assert model.pooler is None
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_number_of_heads_can_be_told(timm_file: Path) -> None:
    images = some_images()
    expected = plain_forward(timm_tensors(), images, heads=8)
    assert_close(tokens_of(timm_file, images, num_heads=8), expected)
    with pytest.raises(InputError, match="5 attention heads do not divide"):
        load_backbone(str(timm_file), num_heads=5)


def test_layer_norm_epsilon_is_timms(tmp_path: Path) -> None:
    """Embeddings of standard deviation about 1e-3 have a variance of the size of ε = 1e-6."""
    tensors = timm_tensors(scale=1e-3)
    save_file(tensors, tmp_path / "small.safetensors")
    images = some_images()
    actual = tokens_of(tmp_path / "small.safetensors", images)
    assert_close(actual, plain_forward(tensors, images, HEADS))


def test_file_without_qkv_bias(tmp_path: Path) -> None:
    tensors = timm_tensors(qkv_bias=False)
    save_file(tensors, tmp_path / "vit.safetensors")
    images = some_images()
    actual = tokens_of(tmp_path / "vit.safetensors", images)
    assert_close(actual, plain_forward(tensors, images, HEADS))


def test_half_precision_file_is_read_as_float32(tmp_path: Path) -> None:
    halves = {key: value.half() for key, value in timm_tensors().items()}
    save_file(halves, tmp_path / "vit.safetensors")
    images = some_images()
    expected = plain_forward({k: v.float() for k, v in halves.items()}, images, HEADS)
    assert_close(tokens_of(tmp_path / "vit.safetensors", images), expected)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda t: t, id="plain"),
        pytest.param(lambda t: {"model": t}, id="DeiT"),
        pytest.param(
            lambda t: {
                "teacher": {f"module.backbone.{k}": v for k, v in t.items() if "head" not in k}
                | {"module.head.mlp.0.weight": torch.ones(2, 2)}
            },
            id="DINO",
        ),
    ],
)
def test_pth_checkpoints(tmp_path: Path, wrap) -> None:
    torch.save(wrap(timm_tensors()), tmp_path / "vit.pth")
    images = some_images()
    actual = tokens_of(tmp_path / "vit.pth", images)
    assert_close(actual, plain_forward(timm_tensors(), images, HEADS))


@pytest.mark.parametrize("heads", [2, 4])
def test_augreg_npz_gives_the_plain_forward_and_knows_its_heads(tmp_path: Path, heads: int) -> None:
    np.savez(tmp_path / "vit.npz", **augreg_arrays(timm_tensors(), heads))
    images = some_images()
    actual = tokens_of(tmp_path / "vit.npz", images)
    assert_close(actual, plain_forward(timm_tensors(), images, heads))


def test_npz_refuses_a_contradicting_number_of_heads(tmp_path: Path) -> None:
    np.savez(tmp_path / "vit.npz", **augreg_arrays(timm_tensors()))
    with pytest.raises(InputError, match=r"has 2 attention heads, not num_heads = 4"):
        load_backbone(str(tmp_path / "vit.npz"), num_heads=4)


def test_timm_config_beside_the_file_gives_the_normalisation(timm_file: Path) -> None:
    cfg = {"architecture": "deit", "pretrained_cfg": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}}
    timm_file.with_name("config.json").write_text(json.dumps(cfg))
    backbone = load_backbone(str(timm_file))
    assert (backbone.mean, backbone.std) == (IMAGENET_MEAN, IMAGENET_STD)
    told = load_backbone(str(timm_file), mean=[0.1, 0.2, 0.3], std=[1, 1, 2])
    assert (told.mean, told.std) == ((0.1, 0.2, 0.3), (1.0, 1.0, 2.0))


# --- files that do not fit ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("blocks.1.mlp.fc2.bias"),
            r"missing blocks\.1\.mlp\.fc2\.bias; unexpected nothing",
        ),
        (without("norm.weight"), r"missing norm\.weight"),
        (without("cls_token"), r"17 positions of patches, which are no square grid"),
        (without("patch_embed.proj.weight"), r"missing patch_embed\.proj\.weight"),
        (without("blocks.1.attn.qkv.bias"), r"missing blocks\.1\.attn\.qkv\.bias"),
        (
            lambda t: t | {"blocks.0.attn.q_bias": torch.ones(WIDTH)},
            r"looks like EVA or EVA-02: models of this kind are not read",
        ),
        (
            lambda t: t | {"blocks.0.attn.q_proj.weight": torch.ones(WIDTH, WIDTH)},
            r"like EVA-02: models of this kind are not read",
        ),
        (
            lambda t: t | {"blocks.0.gamma_1": torch.ones(WIDTH)},
            r"looks like ViT with rotary positions: models",
        ),
        (
            lambda t: t | {"attn_pool.latent": torch.ones(1, 1, WIDTH)},
            r"looks like ViT with attention pooling beside a class token: models",
        ),
        (
            lambda t: t | {"blocks.0.mlp.fc1.bias": torch.ones(2 * MLP)},
            r"gated MLPs \(SwiGLU\), like DINOv2's giant ViT: .* in transformers' format only",
        ),
        (lambda t: t | {"blocks.0.ls1.gamma": torch.ones(7)}, r"unexpected blocks\.0\.ls1"),
        (
            lambda t: t | {"fc_norm.weight": torch.ones(WIDTH)},
            r"unexpected fc_norm\.weight; it looks like ViT that averages patches",
        ),
        (
            lambda t: t | {"blocks.1.attn.proj.weight": torch.ones(WIDTH, 7)},
            r"shapes of blocks\.1\.attn\.proj\.weight \(128, 7\) are wrong",
        ),
        (
            lambda t: t | {"blocks.0.attn.qkv.weight": torch.ones(2 * WIDTH, WIDTH)},
            r"shapes of blocks\.0\.attn\.qkv\.weight \(256, 128\) are wrong",
        ),
        (lambda t: t | {"pos_embed": torch.ones(1, 16, WIDTH)}, r"16 positions"),
        (lambda t: {"a": torch.ones(1)}, r"has no blocks\.0\.\*, but a "),
    ],
)
def test_misfitting_timm_file_is_refused_by_name(tmp_path: Path, change, message: str) -> None:
    save_file(change(timm_tensors()), tmp_path / "vit.safetensors")
    with pytest.raises(InputError, match=message):
        load_backbone(str(tmp_path / "vit.safetensors"))


def test_misfitting_npz_is_refused_by_name(tmp_path: Path) -> None:
    arrays = augreg_arrays(timm_tensors())
    del arrays["Transformer/encoderblock_1/LayerNorm_2/scale"]
    np.savez(tmp_path / "vit.npz", **arrays, conv_root=np.ones(1))
    with pytest.raises(InputError, match=r"encoderblock_1/LayerNorm_2/scale; unexpected conv_root"):
        load_backbone(str(tmp_path / "vit.npz"))


def test_transposed_npz_kernel_is_refused(tmp_path: Path) -> None:
    arrays = augreg_arrays(timm_tensors())
    key = "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"
    arrays[key] = arrays[key].T.copy()
    np.savez(tmp_path / "vit.npz", **arrays)
    with pytest.raises(InputError, match=r"Dense_0/kernel \(320, 128\) are wrong"):
        load_backbone(str(tmp_path / "vit.npz"))


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
def test_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"vit{suffix}"
    if suffix == ".safetensors":
        save_file(timm_tensors(), path)
    elif suffix == ".npz":
        np.savez(path, **augreg_arrays(timm_tensors()))
    else:
        torch.save(timm_tensors(), path)
    path.write_bytes(truncated(path.read_bytes()))
    with pytest.raises(InputError, match=rf"is not a readable {suffix} file"):
        load_backbone(str(path))


def test_pickled_objects_are_never_executed(tmp_path: Path) -> None:
    exploded = tmp_path / "exploded"
    torch.save({"model": Bomb(exploded)}, tmp_path / "vit.pth")
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb(exploded)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "vit.npz", "w") as archive:
        archive.writestr("cls.npy", buffer.getvalue())
    for file in ("vit.pth", "vit.npz"):
        with pytest.raises(InputError, match="file of plain tensors"):
            load_backbone(str(tmp_path / file))
    assert not exploded.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04garbage"])
@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
def test_garbage_is_refused_with_a_reason(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"vit{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"is not a readable {suffix} file of plain tensors: \S"):
        load_backbone(str(path))


def test_checkpoint_with_other_things_than_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pth")
    torch.save([1, 2], tmp_path / "b.pth")
    with pytest.raises(InputError, match=r"holds a int under 'epoch', not a tensor"):
        load_backbone(str(tmp_path / "a.pth"))
    with pytest.raises(InputError, match="holds a list, not a state dict"):
        load_backbone(str(tmp_path / "b.pth"))
