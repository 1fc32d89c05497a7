"""The image processor of a checkpoint: size, interpolation and centre crop are honoured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor

from pfedseq.config import Config, make_config
from pfedseq.data.decode import decode
from pfedseq.data.framing import WHOLE, Framing
from pfedseq.data.loading import load_images
from pfedseq.errors import InputError
from pfedseq.model.backbone import load_backbone
from pfedseq.model.processor import PROCESSOR_FILE, processor_framing
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.world import World
from pfedseq.workloads.images.kind import ImageKind
from pfedseq.workloads.images.reader import asked_backbone, write_processor
from tests.model.tiny_image_models import write_image_model

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
CLIP_CROP: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 36},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 32, "width": 32},
    "image_mean": MEAN,
    "image_std": STD,
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "clip": CLIP_CROP,
    "clip, bilinear": {**CLIP_CROP, "resample": 2},
    "clip, no margin": {**CLIP_CROP, "size": {"shortest_edge": 32}},
    "clip, as it was written": {
        **{k: v for k, v in CLIP_CROP.items() if k != "image_processor_type"},
        "feature_extractor_type": "CLIPFeatureExtractor",
        "size": 36,
        "crop_size": 32,
    },
    "dinov2": {**CLIP_CROP, "image_processor_type": "BitImageProcessor"},
    "deit": {**CLIP_CROP, "image_processor_type": "DeiTImageProcessor", "size": 36},
    "beit, lanczos": {
        **CLIP_CROP,
        "image_processor_type": "BeitImageProcessor",
        "size": {"height": 37, "width": 37},
        "resample": 1,
    },
    "siglip": {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": 32, "width": 32},
        "resample": 2,
        "image_mean": MEAN,
        "image_std": STD,
    },
}


def photograph(height: int = 50, width: int = 71) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)


def folder_of(place: Path, processor: dict[str, Any], family: str = "clip") -> Path:
    write_image_model(family, place, processor)
    return place


@pytest.mark.parametrize("shape", [(50, 71), (71, 50), (32, 32), (20, 33)])
@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_those_of_transformers(
    name: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    image, processor = photograph(*shape), PROCESSORS[name]
    (tmp_path / PROCESSOR_FILE).write_text(json.dumps(processor))
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(
        Image.fromarray(image), return_tensors="pt"
    )["pixel_values"][0]
    ours = decode(("it", image), 32, framing=processor_framing("it", processor, 32)).pixels
    scaled = (torch.tensor(ours / 255).permute(1, 2, 0) - torch.tensor(MEAN)) / torch.tensor(STD)
    assert torch.allclose(scaled.permute(2, 0, 1).float(), theirs, atol=1e-5)


def test_a_size_before_cropping_is_scaled_with_the_image_size() -> None:
    said = {**CLIP_CROP, "size": {"shortest_edge": 256}, "crop_size": 224}
    assert processor_framing("it", said, 224) == Framing("bicubic", "shorter", 256)
    assert processor_framing("it", said, 112) == Framing("bicubic", "shorter", 128)


@pytest.mark.parametrize(
    ("said", "framing"),
    [
        ({}, WHOLE),
        ({"crop_pct": 0.9, "interpolation": "bicubic"}, Framing("bicubic", "shorter", 248)),
        ({"crop_pct": 1.0, "interpolation": "bilinear"}, Framing("bilinear", "shorter")),
        ({"crop_pct": 0.9, "crop_mode": "squash"}, Framing("bicubic", "whole", 248)),
        ({"crop_pct": 1.0, "crop_mode": "squash"}, WHOLE),
        ({"interpolation": "bilinear"}, Framing("bilinear")),
    ],
)
def test_timm_crops_a_share_of_the_resized_image(said: dict[str, Any], framing: Framing) -> None:
    assert processor_framing("it", {"pretrained_cfg": said}, 224) == framing


def test_the_default_processor_of_a_vit_says_nothing() -> None:
    default = {"size": {"height": 224, "width": 224}, "resample": 2}
    assert processor_framing("it", default, 224, "vit") == WHOLE
    assert processor_framing("it", default, 224, "siglip") == Framing("bilinear")
    assert processor_framing("it", {**default, "resample": 1}, 224, "vit") == Framing("lanczos")
    cropped = {**default, "do_center_crop": True, "crop_size": 112}
    assert processor_framing("it", cropped, 112, "vit") == Framing("bilinear", "whole", 224)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({**CLIP_CROP, "resample": 9}, "resample = 9"),
        ({**CLIP_CROP, "crop_size": 64}, "resizes to 36 pixels and crops to 64"),
        ({"crop_pct": 0.9, "crop_mode": "border"}, "crop_mode = 'border'"),
        ({"crop_pct": 1.5}, "crop_pct = 1.5"),
        ({"interpolation": "random"}, "interpolation = 'random'"),
    ],
)
def test_what_is_not_known_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        processor_framing("it", said, 32)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_saved_processor_gives_the_same_pixels(name: str, tmp_path: Path) -> None:
    backbone = load_backbone(str(folder_of(tmp_path / "model", PROCESSORS[name])), 32)
    write_processor(tmp_path, backbone)
    asked = asked_backbone(tmp_path, backbone.name, {})
    assert asked.fits(backbone)
    assert (asked.framing, asked.image_size) == (backbone.framing, 32)
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(
        Image.fromarray(photograph()), return_tensors="pt"
    )["pixel_values"]
    reader = asked.reader(asked.load())
    ours = reader.inputs([reader.read(("it", photograph()))], torch.device("cpu"))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_another_framing_is_another_backbone(tmp_path: Path) -> None:
    backbone = load_backbone(str(folder_of(tmp_path / "model", CLIP_CROP)), 32)
    write_processor(tmp_path, load_backbone(backbone.name, 32, framing=WHOLE))
    assert not asked_backbone(tmp_path, backbone.name, {}).fits(backbone)


@pytest.fixture
def own_photographs(tmp_path: Path) -> Config:
    """A run on a folder of photographs with a CLIP that crops."""
    photos, rng = tmp_path / "photos", np.random.default_rng(0)
    for owner in ("ann", "bob"):
        for number in range(16):
            place = photos / owner / ("cat", "dog")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
    model = folder_of(tmp_path / "model", CLIP_CROP)
    return make_config(
        {
            "run": {"methods": ["fedavg"], "rounds": 1},
            "model": {"backbone": str(model)},
            "data": {
                "name": "folder",
                "source": str(photos),
                "store": str(tmp_path / "cache"),
                "layout": "owner/class",
            },
        }
    )


def test_a_run_prepares_trains_and_reads_alike(own_photographs: Config) -> None:
    world = World.build(own_photographs)
    data = world.config.data
    assert (data.image_size, data.resize, data.resize_to) == (32, "shorter", 36)
    framing = Framing("bicubic", "shorter", 36)
    reader = world.workload.reader(world.data.examples)
    files = sorted(Path(str(data.source)).rglob("*.png"))
    stored = {image.tobytes() for image in np.asarray(load_images(data).images)}
    assert len(files) == len(stored) == 32
    for file in files:
        pixels = reader.read((str(file), file.read_bytes()))
        assert pixels.tobytes() in stored
        assert np.array_equal(pixels, decode(("it", file.read_bytes()), 32, framing=framing).pixels)


def test_stores_of_several_framings_lie_side_by_side(own_photographs: Config) -> None:
    sized = own_photographs.sized()
    whole = make_config(
        {"data": {**own_photographs.data.model_dump(), "image_size": 32, "resize": "whole"}}
    )
    cropped, plain = load_images(sized.data), load_images(whole.data)
    assert cropped.fingerprint != plain.fingerprint
    unnamed = sized.data.model_copy(update={"source": None})
    assert load_images(unnamed).fingerprint == cropped.fingerprint
    missing = unnamed.model_copy(update={"interpolation": "lanczos"})
    with pytest.raises(InputError, match=r"--set data\.interpolation=lanczos"):
        load_images(missing)


def test_a_run_is_not_continued_with_another_framing(
    own_photographs: Config, tmp_path: Path
) -> None:
    from pfedseq.config import dump_config

    world = World.build(own_photographs)
    folder = RunFolder.create(tmp_path / "run", dump_config(world.written_out(own_photographs)))
    assert folder.other_options(own_photographs) is None
    data = {**own_photographs.data.model_dump(), "resize": "whole"}
    other = make_config({**own_photographs.model_dump(exclude_none=True), "data": data})
    assert "resize" in str(folder.other_options(other))
    assert not world.serves(other)


def test_sites_of_a_federation_share_the_framing(own_photographs: Config) -> None:
    world = World.build(own_photographs)
    agreed = world.workload.agreed(world.config.data)
    assert agreed == {
        "image_size": 32,
        "interpolation": None,
        "resize": "shorter",
        "resize_to": 36,
    }


def test_digits_are_drawn_at_their_size(tmp_path: Path) -> None:
    model = folder_of(tmp_path / "model", CLIP_CROP)
    sized = make_config({"model": {"backbone": str(model)}}).sized()
    assert sized.data.framing == WHOLE


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="resize_to needs resize"):
        make_config({"data": {"resize_to": 256}})
    with pytest.raises(InputError, match="less than the 64 pixels"):
        make_config({"data": {"image_size": 64, "resize": "whole", "resize_to": 40}})


def test_the_kind_asks_for_the_framing_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / PROCESSOR_FILE).write_text(json.dumps(CLIP_CROP))
    assert ImageKind().asked(tmp_path, "it", {}).framing == Framing("bicubic", "shorter", 36)
