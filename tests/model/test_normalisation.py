"""How inputs are normalised, and that nothing is assumed about a file in silence."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pfedseq.errors import InputError
from pfedseq.model.backbone import IMAGENET_MEAN, IMAGENET_STD, check_image_size, load_backbone
from tests.model.timm_vit import timm_tensors

HALF = (0.5, 0.5, 0.5)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_file(timm_tensors(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_imagenet_by_name_sets_both_and_is_no_assumption(weights: Path) -> None:
    for options in ({"mean": "imagenet"}, {"std": "imagenet"}):
        backbone = load_backbone(str(weights), **options)
        assert (backbone.mean, backbone.std) == (IMAGENET_MEAN, IMAGENET_STD)
        assert backbone.note is None
    mixed = load_backbone(str(weights), mean="imagenet", std=[1, 1, 1])
    assert (mixed.mean, mixed.std) == (IMAGENET_MEAN, (1.0, 1.0, 1.0))
    half = load_backbone(str(weights), mean="half")
    assert (half.mean, half.std, half.note) == (HALF, HALF, None)
    with pytest.raises(
        InputError, match="three numbers or one of half, imagenet, clip, not 'imgnet'"
    ):
        load_backbone(str(weights), mean="imgnet")


@pytest.mark.parametrize(
    ("name", "mean", "says"),
    [
        ("weights", HALF, "the input normalisation of"),
        ("deit_tiny_patch16_224-a1311bcf", IMAGENET_MEAN, "looks like 'deit', by its name"),
        ("dino_deitsmall16_pretrain", IMAGENET_MEAN, "looks like 'dino'"),
        ("vit_small_patch16_224.mae", IMAGENET_MEAN, "looks like 'mae'"),
        ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", HALF, "looks like 'augreg'"),
        ("image_maestro", HALF, "the input normalisation of"),
    ],
)
def test_a_bare_file_says_what_is_assumed_and_how_to_change_it(
    tmp_path: Path, name: str, mean: tuple[float, ...], says: str
) -> None:
    torch.save(timm_tensors(), tmp_path / f"{name}.pth")
    backbone = load_backbone(str(tmp_path / f"{name}.pth"))
    assert backbone.mean == mean
    assert backbone.std == (IMAGENET_STD if mean == IMAGENET_MEAN else HALF)
    assert backbone.note is not None
    assert says in backbone.note
    assert "model.mean = 'imagenet'" in backbone.note or "model.mean = 'half'" in backbone.note


def test_a_file_whose_config_speaks_and_a_known_backbone_need_no_note(weights: Path) -> None:
    cfg = {"architecture": "vit", "pretrained_cfg": {"mean": [0.1] * 3, "std": [0.2] * 3}}
    weights.with_name("config.json").write_text(json.dumps(cfg))
    backbone = load_backbone(str(weights))
    assert (backbone.mean, backbone.note) == ((0.1, 0.1, 0.1), None)
    assert load_backbone("demo").note is None


def test_a_folder_with_a_single_weights_file_is_that_file(weights: Path) -> None:
    backbone = load_backbone(str(weights.parent))
    expected = load_backbone(str(weights))
    assert backbone.note is not None
    for name, tensor in backbone.model.state_dict().items():
        torch.testing.assert_close(tensor, expected.model.state_dict()[name], rtol=0, atol=0)
    config = {"architecture": "vit_x", "pretrained_cfg": {"mean": HALF, "std": HALF}}
    weights.with_name("config.json").write_text(json.dumps(config))
    assert load_backbone(str(weights.parent)).note is None, "timm's config beside any file name"
    weights.with_name("config.json").unlink()
    torch.save(timm_tensors(), weights.with_name("other.pth"))
    with pytest.raises(InputError, match=r"has 2 weights files: name one of other\.pth, weights"):
        load_backbone(str(weights.parent))


def test_sizes_that_patches_do_not_divide_are_known_without_loading(weights: Path) -> None:
    for name, good, bad in (
        (str(weights), 64, 65),
        (str(weights.parent), 64, 65),
        ("demo", 32, 34),
        ("random:demo", 32, 34),
        ("random:vit-tiny", 96, 95),
        ("google/vit-base-patch16-224-in21k", 224, 225),
    ):
        check_image_size(name, good)
        with pytest.raises(InputError, match="image_size must be a multiple of"):
            check_image_size(name, bad)
    check_image_size("someone/something", 95)
