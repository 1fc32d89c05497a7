import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_samples import png, write_images

from pfedseq.data import DataConfig, load_data, preparing
from pfedseq.data.location import locate
from pfedseq.data.preparing import prepare_data, prepared_images
from pfedseq.data.registry import DATA_SETS
from pfedseq.errors import InputError


@pytest.fixture
def config(tmp_path):
    names = [f"{label}/{n}.png" for label in "ab" for n in range(30)]
    folder = write_images(tmp_path / "in", names)
    return DataConfig(
        name="folder", source=str(folder), image_size=8, store=tmp_path / "store", num_clients=2
    )


def counting(monkeypatch):
    """How often images are really decoded."""
    calls = []
    original = preparing.write_store
    monkeypatch.setattr(
        preparing,
        "write_store",
        lambda *args, **options: (calls.append(1), original(*args, **options))[1],
    )
    return calls


def test_a_run_prepares_once_and_then_only_opens(config, monkeypatch):
    calls = counting(monkeypatch)
    seen = []
    first = load_data(config, 0, lambda *progress: seen.append(progress))
    assert ("reading images", 60, 60) in seen
    seen.clear()
    second = load_data(config, 0, lambda *progress: seen.append(progress))
    assert (len(calls), seen) == (1, [])
    np.testing.assert_array_equal(first.examples.images, second.examples.images)
    assert isinstance(second.examples.images, np.memmap)


def test_a_changed_source_is_read_again_and_a_deleted_one_is_remembered(config, monkeypatch):
    calls = counting(monkeypatch)
    prepared_images(config)
    os.remove(f"{config.source}/a/7.png")
    assert len(prepared_images(config).labels) == 59
    assert len(calls) == 2
    shutil.rmtree(config.source)
    assert len(prepared_images(config).labels) == 59
    with pytest.raises(InputError, match=r"there is no file or folder .*/in: check data\.source"):
        prepared_images(config.model_copy(update={"image_size": 16}))


def test_an_image_that_was_edited_in_place_is_read_again(config):
    before = prepared_images(config)
    (Path(config.source) / "a/7.png").write_bytes(png(999))
    after = prepared_images(config)
    assert after.fingerprint != before.fingerprint
    assert (after.images != before.images).any(axis=(1, 2, 3)).sum() == 1


def test_prepare_reports_what_it_made_and_verifies_what_is_there(config, monkeypatch):
    calls = counting(monkeypatch)
    made = prepare_data(config)
    assert (made.num_images, made.class_names) == (60, ("a", "b"))
    assert made.num_bytes == 60 * 3 * 8 * 8 + 128
    assert made.folder.parent == config.store / "images"
    seen = []
    assert prepare_data(config, lambda *progress: seen.append(progress)) == made
    assert (len(calls), seen[-1]) == (1, ("verifying the checksum", 1, 1))
    pixels = np.lib.format.open_memmap(made.folder / "images.npy", "r+")
    pixels[0, 0, 0, 0] ^= 255
    pixels.flush()
    with pytest.raises(InputError, match="does not match its checksum"):
        prepare_data(config)


def test_large_sources_are_asked_for_explicitly(config, monkeypatch):
    monkeypatch.setattr(preparing, "AUTOMATIC_BYTES", 1000)
    with pytest.raises(
        InputError,
        match=r"not prepared at 8 px in .*: run `pfedseq data prepare folder --from .*in",
    ):
        prepared_images(config)
    prepare_data(config)
    assert len(prepared_images(config).labels) == 60


def test_a_prepared_data_set_needs_no_source(shared_data, tmp_path):
    bare = DataConfig(name="cifar10", image_size=8, store=tmp_path)
    with pytest.raises(
        InputError, match=r"cifar10 is not prepared at 8 px .*data prepare cifar10 --"
    ):
        load_data(bare, 0)
    made = prepare_data(bare.model_copy(update={"source": str(shared_data / "cifar10")}))
    assert made.notes == ("only part of cifar10: 2,000 of 60,000 images",)
    assert len(load_data(bare, 0).examples.labels) == 2_000
    shutil.copytree(shared_data / "cifar10", tmp_path / "copy")
    prepare_data(bare.model_copy(update={"source": str(tmp_path / "copy")}))
    with pytest.raises(
        InputError, match=r"from several places \(.*copy.*\): name one as data.source"
    ):
        load_data(bare, 0)


def test_the_store_follows_the_environment(monkeypatch, tmp_path, config):
    monkeypatch.setenv("PFEDSEQ_CACHE", str(tmp_path / "elsewhere"))
    made = prepare_data(config.model_copy(update={"store": None}))
    assert made.folder.is_relative_to(tmp_path / "elsewhere")


def test_what_cannot_be_prepared_says_why(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="digits need no preparation"):
        prepare_data(DataConfig())
    with pytest.raises(InputError, match="omniglot cannot be downloaded: give its location"):
        prepare_data(DataConfig(name="omniglot"))
    with pytest.raises(InputError, match=r"there is no file or folder \./no/such"):
        locate("./no/such")
    assert locate("uoft-cs/cifar100").hub_id == "uoft-cs/cifar100"
    on_the_hub = DataConfig(name="hub", source="someone/something", store=tmp_path)
    with pytest.raises(
        InputError, match="no file or folder someone/something; if it is a hub data"
    ):
        prepared_images(on_the_hub)
    with pytest.raises(
        InputError, match=r"there is no file or folder a/b: expected the folder of i"
    ):
        prepare_data(DataConfig(name="omniglot", source="a/b", store=tmp_path))


def test_a_source_without_images_is_refused(tmp_path):
    (tmp_path / "val").mkdir()
    (tmp_path / "train").mkdir()
    (tmp_path / "train/readme.txt").write_text("none here")
    (tmp_path / "val/val_annotations.txt").write_text("")
    (tmp_path / "wnids.txt").write_text("\n".join(f"n{number}" for number in range(200)))
    empty = DataConfig(name="tiny_imagenet", source=str(tmp_path), store=tmp_path / "store")
    with pytest.raises(InputError, match="contains no images of tiny_imagenet"):
        prepare_data(empty)


def test_a_misspelt_data_set_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="no data set 'pcas'; did you mean 'pacs'"):
        DataConfig(name="pcas")


def test_every_data_set_has_a_division_of_its_own():
    assert {DATA_SETS[name].defaults["partition"] for name in DATA_SETS} <= {
        "iid",
        "dirichlet",
        "owners",
    }
