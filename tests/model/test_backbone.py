"""Every form of backbone against a plain ViT forward pass in timm's terms."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from pfedseq.errors import InputError
from pfedseq.model.backbone import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    interpolate_positions,
    load_backbone,
)
from tests.model.timm_forward import plain_forward

WIDTH, DEPTH, HEADS, PATCH, SIDE, MLP = 128, 2, 2, 8, 4, 320


def timm_tensors(seed: int = 0, scale: float = 1.0, qkv_bias: bool = True) -> dict[str, Tensor]:
    """A random ViT as timm names it, with every tensor away from its usual initial value."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float = 0.1, mean: float = 0.0) -> Tensor:
        return mean + std * torch.randn(*shape, generator=rng)

    tensors = {
        "cls_token": scale * normal(1, 1, WIDTH),
        "pos_embed": scale * normal(1, 1 + SIDE**2, WIDTH),
        "patch_embed.proj.weight": scale * normal(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": scale * normal(WIDTH),
        "norm.weight": normal(WIDTH, mean=1.0),
        "norm.bias": normal(WIDTH),
        "head.weight": normal(10, WIDTH),
        "head.bias": normal(10),
    }
    for i in range(DEPTH):
        block = {
            "norm1.weight": normal(WIDTH, mean=1.0),
            "norm1.bias": normal(WIDTH),
            "attn.qkv.weight": normal(3 * WIDTH, WIDTH),
            "attn.qkv.bias": normal(3 * WIDTH),
            "attn.proj.weight": normal(WIDTH, WIDTH),
            "attn.proj.bias": normal(WIDTH),
            "norm2.weight": normal(WIDTH, mean=1.0),
            "norm2.bias": normal(WIDTH),
            "mlp.fc1.weight": normal(MLP, WIDTH),
            "mlp.fc1.bias": normal(MLP),
            "mlp.fc2.weight": normal(WIDTH, MLP),
            "mlp.fc2.bias": normal(WIDTH),
        }
        if not qkv_bias:
            del block["attn.qkv.bias"]
        tensors |= {f"blocks.{i}.{key}": value for key, value in block.items()}
    return tensors


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


def some_images(size: int = SIDE * PATCH, count: int = 3) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(7))


def tokens_of(name: str | Path, images: Tensor, **options: object) -> Tensor:
    with torch.no_grad():
        model = load_backbone(str(name), **options).model
        return model(pixel_values=images).last_hidden_state


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


# --- timm-format files ----------------------------------------------------------------------


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


def without(key: str):
    return lambda t: {k: v for k, v in t.items() if k != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("blocks.1.mlp.fc2.bias"),
            r"missing blocks\.1\.mlp\.fc2\.bias; unexpected nothing",
        ),
        (without("norm.weight"), r"missing norm\.weight"),
        (without("cls_token"), r"missing cls_token"),
        (without("patch_embed.proj.weight"), r"missing patch_embed\.proj\.weight"),
        (without("blocks.1.attn.qkv.bias"), r"missing blocks\.1\.attn\.qkv\.bias"),
        (lambda t: t | {"dist_token": torch.ones(1, 1, WIDTH)}, r"unexpected dist_token"),
        (lambda t: t | {"blocks.0.ls1.gamma": torch.ones(WIDTH)}, r"unexpected blocks\.0\.ls1"),
        (lambda t: t | {"fc_norm.weight": torch.ones(WIDTH)}, r"unexpected fc_norm\.weight"),
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


class Bomb:
    """What a hostile pickle would do: touch a file while it is being loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


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


def test_checkpoint_with_other_things_than_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pth")
    torch.save([1, 2], tmp_path / "b.pth")
    with pytest.raises(InputError, match=r"holds a int under 'epoch', not a tensor"):
        load_backbone(str(tmp_path / "a.pth"))
    with pytest.raises(InputError, match="holds a list, not a state dict"):
        load_backbone(str(tmp_path / "b.pth"))


@pytest.mark.parametrize("name", ["nowhere.safetensors", "no/such/folder", "./nothing"])
def test_missing_source_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load_backbone(name)


# --- resolutions ----------------------------------------------------------------------------


def test_positions_are_kept_at_the_same_resolution() -> None:
    positions = torch.randn(1, 1 + SIDE**2, 5)
    assert interpolate_positions(positions, SIDE) is positions


@pytest.mark.parametrize("side", [2, 3, 8])
def test_interpolated_positions_keep_the_class_token_and_both_axes(side: int) -> None:
    """A ramp along y and a ramp along x stay ramps along y and x, with the same ends in mind."""
    ramp = torch.arange(SIDE, dtype=torch.float32)
    grid = torch.stack(
        [ramp.view(-1, 1).expand(SIDE, SIDE), ramp.view(1, -1).expand(SIDE, SIDE)], dim=-1
    )
    class_token = torch.tensor([[[40.0, 50.0]]])
    positions = torch.cat([class_token, grid.reshape(1, -1, 2)], dim=1)
    result = interpolate_positions(positions, side)
    assert result.shape == (1, 1 + side**2, 2)
    torch.testing.assert_close(result[:, :1], class_token)
    along_y, along_x = result[0, 1:].view(side, side, 2).unbind(-1)
    torch.testing.assert_close(along_y, along_y[:, :1].expand(side, side), atol=1e-5, rtol=0)
    torch.testing.assert_close(along_x, along_y.T, atol=1e-5, rtol=0)
    assert (along_y[1:] > along_y[:-1]).all()
    torch.testing.assert_close(along_y.mean(), torch.tensor(1.5), atol=1e-5, rtol=0)


def test_other_resolution_gives_the_plain_forward_with_resampled_positions(timm_file: Path) -> None:
    size = 6 * PATCH
    images = some_images(size)
    tensors = timm_tensors()
    tensors["pos_embed"] = interpolate_positions(tensors["pos_embed"], 6)
    actual = tokens_of(timm_file, images, image_size=size)
    assert load_backbone(str(timm_file), image_size=size).image_size == size
    assert_close(actual, plain_forward(tensors, images, HEADS))


@pytest.mark.parametrize("size", [0, 4, 33, -8])
def test_size_that_patches_do_not_divide_is_refused(timm_file: Path, size: int) -> None:
    with pytest.raises(InputError, match=rf"multiple of 8, not {size}"):
        load_backbone(str(timm_file), image_size=size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.5]}, "mean of backbone .* should be three numbers"),
        ({"std": ["a", "b", "c"]}, "std of backbone .* should be three numbers"),
        ({"std": [0.5, 0, 0.5]}, "should be positive"),
    ],
)
def test_bad_normalisation_is_refused(timm_file: Path, options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_backbone(str(timm_file), **options)


# --- folders in transformers' format --------------------------------------------------------


def small_config() -> ViTConfig:
    return ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
    )


@pytest.fixture
def reference() -> ViTModel:
    torch.manual_seed(3)
    model = ViTModel(small_config(), add_pooling_layer=True).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def expected_tokens(model: ViTModel, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(pixel_values=images).last_hidden_state


def test_folder_with_the_names_of_older_transformers(tmp_path: Path, reference: ViTModel) -> None:
    """`google/vit-base-patch16-224-in21k` is stored like this: older names and a pooler."""
    reference.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "encoder.layer.0.attention.attention.query.weight" in stored
    assert "pooler.dense.weight" in stored
    images = some_images(16)
    assert_close(tokens_of(tmp_path, images), expected_tokens(reference, images))
    assert load_backbone(str(tmp_path)).model.pooler is None


def test_folder_with_todays_names(tmp_path: Path, reference: ViTModel) -> None:
    reference.config.save_pretrained(tmp_path)
    save_file(reference.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    images = some_images(16)
    assert_close(tokens_of(tmp_path, images), expected_tokens(reference, images))


def test_folder_of_a_classifier_drops_the_classifier(tmp_path: Path) -> None:
    torch.manual_seed(3)
    classifier = ViTForImageClassification(small_config()).eval()
    classifier.save_pretrained(tmp_path)
    images = some_images(16)
    assert_close(tokens_of(tmp_path, images), expected_tokens(classifier.vit, images))


def test_folder_at_another_resolution(tmp_path: Path, reference: ViTModel) -> None:
    reference.save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path), image_size=32)
    resampled = interpolate_positions(reference.embeddings.position_embeddings.detach(), 8)
    assert_close(backbone.model.embeddings.position_embeddings, resampled)
    images = some_images(32)
    with torch.no_grad():
        ours = backbone.model(pixel_values=images).last_hidden_state
        theirs = reference(pixel_values=images, interpolate_pos_encoding=True).last_hidden_state
    # transformers resamples with another cubic kernel, so the two are near, not equal.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02)


def test_folder_gives_its_own_normalisation(tmp_path: Path, reference: ViTModel) -> None:
    reference.save_pretrained(tmp_path)
    assert load_backbone(str(tmp_path)).mean == (0.5, 0.5, 0.5)
    processor = {"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    backbone = load_backbone(str(tmp_path))
    assert (backbone.mean, backbone.std) == (IMAGENET_MEAN, IMAGENET_STD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("encoder.layer.1.output.dense.bias"),
            r"missing layers\.1\.mlp\.fc2\.bias; unexpected nothing",
        ),
        (lambda t: t | {"embeddings.extra": torch.ones(1)}, r"unexpected embeddings\.extra"),
        (lambda t: t | {"embeddings.cls_token": torch.ones(1, 1, 7)}, r"cannot be read"),
    ],
)
def test_misfitting_folder_is_refused(
    tmp_path: Path, reference: ViTModel, change, message: str
) -> None:
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=message):
        load_backbone(str(tmp_path))


def test_folder_without_weights_or_with_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_backbone(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deit"}))
    with pytest.raises(InputError, match="model_type 'deit'"):
        load_backbone(str(tmp_path))
    small_config().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_backbone(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not a readable JSON file"):
        load_backbone(str(tmp_path))


def test_folder_in_timms_format(tmp_path: Path) -> None:
    save_file(timm_tensors(), tmp_path / "model.safetensors")
    cfg = {"architecture": "vit_x", "pretrained_cfg": {"mean": IMAGENET_MEAN, "std": [1, 1, 1]}}
    (tmp_path / "config.json").write_text(json.dumps(cfg))
    images = some_images()
    assert_close(tokens_of(tmp_path, images), plain_forward(timm_tensors(), images, HEADS))
    assert load_backbone(str(tmp_path)).mean == IMAGENET_MEAN


def test_unreachable_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: True)
    with pytest.raises(InputError, match=r"'nobody/no-such-vit' has no config\.json that can be"):
        load_backbone("nobody/no-such-vit")


# --- random weights -------------------------------------------------------------------------


def test_random_backbone_is_a_function_of_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (load_backbone("random:vit-tiny", seed=s).model for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    name = "layers.3.mlp.fc1.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
    # timm's ViT-Ti/16 has 5,717,416 parameters with its 1000-class head of 193,000.
    assert sum(parameter.numel() for parameter in first.parameters()) == 5_524_416


def test_random_architecture_must_exist() -> None:
    with pytest.raises(InputError, match=r"random:vit-tiny, .*random:demo"):
        load_backbone("random:vit-huge")


def test_heads_are_refused_where_the_config_says_them() -> None:
    with pytest.raises(InputError, match="timm-format files only"):
        load_backbone("random:vit-tiny", num_heads=3)
