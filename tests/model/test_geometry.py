"""What is known of a backbone before it is loaded agrees with what loading it gives."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pfedseq import make_config
from pfedseq.model.backbone import load_backbone
from pfedseq.model.geometry import DEMO_FOLDER, quick_image_size
from tests.model.timm_vit import PATCH, SIDE, timm_tensors


@pytest.mark.parametrize("name", ["demo", "random:demo", "random:vit-tiny", str(DEMO_FOLDER)])
def test_the_size_known_beforehand_is_that_of_the_loaded_backbone(name: str) -> None:
    assert quick_image_size(name) == load_backbone(name).image_size


def test_a_weights_file_shows_its_size_in_its_header(tmp_path: Path) -> None:
    save_file(timm_tensors(), tmp_path / "vit.safetensors")
    assert quick_image_size(str(tmp_path / "vit.safetensors")) == SIDE * PATCH
    torch.save(timm_tensors(), tmp_path / "vit.pth")
    assert quick_image_size(str(tmp_path / "vit.pth")) is None, "only loading it tells"


@pytest.mark.parametrize("name", ["nobody/nothing", "gone.safetensors", "./nothing"])
def test_of_an_unknown_backbone_nothing_is_known(name: str) -> None:
    assert quick_image_size(name) is None


def test_image_size_left_out_is_the_backbones_own(tmp_path: Path) -> None:
    assert make_config({}).data.image_size == 32
    asked = {"data": {"name": "folder", "source": str(tmp_path)}}
    assert make_config(asked).data.image_size == 32
    vit = {"model": {"backbone": "random:vit-tiny"}}
    assert make_config(asked | vit).data.image_size == 224
    assert make_config(vit, ["data.image_size=96"]).data.image_size == 96
    torch.save(timm_tensors(), tmp_path / "vit.pth")
    later = make_config({"model": {"backbone": str(tmp_path / "vit.pth")}})
    assert later.data.image_size is None
    assert later.sized().data.image_size == SIDE * PATCH
    texts = {"data": {"name": "text", "source": "reviews.csv"}}
    assert make_config(texts).sized().data.image_size is None
