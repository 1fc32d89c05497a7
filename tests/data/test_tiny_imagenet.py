import io
import zipfile

import numpy as np
import pytest
from data_samples import copy_zip, png, truncated
from PIL import Image

from pfedseq.data.config import DataConfig
from pfedseq.data.decode import decode
from pfedseq.data.location import locate
from pfedseq.data.preparing import prepare_data
from pfedseq.data.tiny_imagenet import open_tiny_imagenet
from pfedseq.errors import InputError

ROOT = "tiny-imagenet-200/"


@pytest.fixture
def sample(shared_data):
    return shared_data / "tiny-imagenet-200/tiny-imagenet-200-sample.zip"


def test_the_sample_is_read_in_the_order_of_names(sample):
    source = open_tiny_imagenet(locate(str(sample)))
    assert len(source.labels) == 2_000
    assert (np.bincount(source.labels, minlength=200) == 10).all()
    assert source.is_test.tolist() == [False] * 1_600 + [True] * 400
    assert list(source.class_names) == sorted(source.class_names)
    assert source.labels[:1_600].tolist() == sorted(source.labels[:1_600])
    assert source.notes == ("only part of tiny_imagenet: 2,000 of 110,000 images",)
    with zipfile.ZipFile(sample) as archive:
        lines = archive.read(f"{ROOT}val/val_annotations.txt").decode().splitlines()
        annotated = dict(line.split("\t")[:2] for line in lines)
        names = [name for block in source.blocks for name, _ in block.read()]
        for number in (1_600, 1_777, 1_999):
            file = names[number].split(" in ")[0].rsplit("/", 1)[-1]
            assert source.class_names[source.labels[number]] == annotated[file]
        first = f"{ROOT}train/{source.class_names[0]}/"
        assert names[0].startswith(first)


def test_a_grey_image_becomes_three_equal_channels(sample):
    source = open_tiny_imagenet(locate(str(sample)))
    grey = next(
        raw
        for block in source.blocks
        for raw in block.read()
        if Image.open(io.BytesIO(raw[1])).mode == "L"
    )
    pixels = decode(grey, 32).pixels
    assert pixels.shape == (3, 32, 32)
    assert (pixels[0] == pixels[1]).all()


def test_an_unpacked_folder_is_the_same(sample, tmp_path):
    with zipfile.ZipFile(sample) as archive:
        archive.extractall(tmp_path)
    packed = open_tiny_imagenet(locate(str(sample)))
    unpacked = open_tiny_imagenet(locate(str(tmp_path / "tiny-imagenet-200")))
    np.testing.assert_array_equal(packed.labels, unpacked.labels)
    for one, other in zip(packed.blocks[3].read(), unpacked.blocks[3].read(), strict=True):
        assert one[1] == other[1]


def test_broken_copies_are_one_sentence_and_leave_nothing(sample, tmp_path):
    annotations = f"{ROOT}val/val_annotations.txt"
    with zipfile.ZipFile(sample) as archive:
        notes = b"".join(archive.read(annotations).splitlines(keepends=True)[:3])
        image = next(name for name in archive.namelist() if "/train/" in name)
    kept = {image, f"{ROOT}wnids.txt", *(f"{ROOT}val/images/val_{n}.JPEG" for n in (0, 1, 10))}
    sample = copy_zip(
        sample, tmp_path / "few.zip", change={annotations: notes}, keep=lambda n: n in kept
    )
    assert len(open_tiny_imagenet(locate(str(sample))).labels) == 4
    copies = [
        (
            copy_zip(sample, tmp_path / "1.zip", change={annotations: None}),
            "does not contain .*annotations",
        ),
        (
            copy_zip(sample, tmp_path / "2.zip", change={f"{ROOT}wnids.txt": None}),
            "does not contain .*wnids.txt",
        ),
        (
            copy_zip(
                sample, tmp_path / "3.zip", change={annotations: notes.replace(b"n03444034", b"n1")}
            ),
            "line 1 of .*val_annotations.txt .* has the class 'n1', not in wnids.txt",
        ),
        (
            copy_zip(sample, tmp_path / "4.zip", change={f"{ROOT}val/images/val_1.JPEG": None}),
            "line 2 of .* names val_1.JPEG, which is not there",
        ),
        (
            copy_zip(sample, tmp_path / "5.zip", change={f"{ROOT}wnids.txt": b"n01443537\n"}),
            "names 1 classes, but Tiny-ImageNet has 200",
        ),
        (
            copy_zip(sample, tmp_path / "6.zip", change={f"{ROOT}train/n999/images/a.JPEG": b"x"}),
            "is of the class n999, not in wnids.txt",
        ),
        (
            copy_zip(sample, tmp_path / "7.zip", change={image: b"\xff\xd8 broken"}),
            f"{image} in .* is not a readable image",
        ),
        (
            copy_zip(sample, tmp_path / "8.zip", change={"../../x.JPEG": b"x"}),
            "points outside the archive",
        ),
        (truncated(sample, tmp_path / "9.zip"), "is not a complete zip archive"),
    ]
    for copy, sentence in copies:
        config = DataConfig(
            name="tiny_imagenet", source=str(copy), image_size=8, store=tmp_path / "store"
        )
        with pytest.raises(InputError, match=sentence):
            prepare_data(config)
        stores = tmp_path / "store/images"
        assert not stores.exists() or all(p.suffix == ".lock" for p in stores.iterdir())


def test_the_hubs_parquet_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    names = [f"n{number:08d}" for number in range(200)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    )

    def write(split, labels):
        rows = {"image": [{"bytes": png(i), "path": None} for i in labels], "label": labels}
        dataset = datasets.Dataset.from_dict(rows, features=features)
        dataset.to_parquet(tmp_path / f"data/{split}-00000-of-00001.parquet")

    (tmp_path / "data").mkdir()
    write("train", [5, 199, 0])
    write("valid", [7])
    source = open_tiny_imagenet(locate(str(tmp_path)))
    assert source.labels.tolist() == [5, 199, 0, 7]
    assert source.is_test.tolist() == [False, False, False, True]
    assert source.class_names == tuple(names)
