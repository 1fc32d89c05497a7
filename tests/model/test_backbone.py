"""Backbones by folder, hub id and architecture, and at other resolutions."""

import copy
import json
from pathlib import Path

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
from tests.model.timm_vit import (
    HEADS,
    PATCH,
    SIDE,
    Bomb,
    assert_close,
    plain_forward,
    some_images,
    timm_tensors,
    tokens_of,
    without,
)


@pytest.fixture
def timm_file(tmp_path: Path) -> Path:
    path = tmp_path / "vit.safetensors"
    save_file(timm_tensors(), path)
    return path


@pytest.mark.parametrize("name", ["nowhere.safetensors", "no/such/folder", "./nothing"])
def test_missing_source_is_refused(name: str) -> None:
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


def test_a_nan_in_the_weights_is_said(tmp_path: Path, reference: ViTModel) -> None:
    with torch.no_grad():
        damaged = copy.deepcopy(reference)
        damaged.embeddings.cls_token[0, 0, 3] = torch.nan
    damaged.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"NaN or infinity \(in embeddings.cls_token\)"):
        load_backbone(str(tmp_path))


def test_half_precision_folder_is_read_as_float32(tmp_path: Path, reference: ViTModel) -> None:
    reference.half().save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["layernorm.weight"].dtype == torch.float16
    model = load_backbone(str(tmp_path)).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_folder_with_a_pytorch_bin_is_read_without_executing_it(
    tmp_path: Path, reference: ViTModel
) -> None:
    reference.config.save_pretrained(tmp_path)
    torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin")
    images = some_images(16)
    assert_close(tokens_of(tmp_path, images), expected_tokens(reference, images))
    torch.save({"layernorm.weight": Bomb(tmp_path / "exploded")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="objects beyond tensors, which are never executed"):
        load_backbone(str(tmp_path))
    assert not (tmp_path / "exploded").exists()


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
        (
            lambda t: t | {"embeddings.cls_token": torch.ones(1, 1, 7)},
            r"config: embeddings\.cls_token \(1, 1, 7\)",
        ),
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
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blip"}))
    with pytest.raises(InputError, match="model_type 'blip'"):
        load_backbone(str(tmp_path))
    oblong = {"model_type": "vit", "image_size": [224, 112]}
    (tmp_path / "config.json").write_text(json.dumps(oblong))
    with pytest.raises(InputError, match="square images"):
        load_backbone(str(tmp_path))
    small_config().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_backbone(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is not readable"):
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
    with pytest.raises(InputError, match=r"config\.json of backbone 'nobody/no-such-vit'"):
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
