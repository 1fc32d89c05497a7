import zipfile

import numpy as np
import pytest
from data_samples import write_images
from PIL import Image

from pfedseq.data import DataConfig, load_data, load_images
from pfedseq.data.folder import open_folder
from pfedseq.data.location import locate
from pfedseq.errors import InputError


def test_classes_alone(tmp_path):
    folder = write_images(
        tmp_path / "pets", ["dog/1.png", "cat/b.jpg", "cat/a.png", "cat/note.txt"]
    )
    source = open_folder(locate(str(folder)), "class")
    assert source.name == "pets"
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 1]
    assert source.owners is None
    assert source.is_test is None


def test_owners_and_splits_by_folder_level_in_a_zip(tmp_path):
    names = ["train/ann/x/1.png", "train/bob/y/2.png", "test/ann/y/3.png", "val/bob/x/4.png"]
    folder = write_images(tmp_path / "in", names)
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for name in names:
            archive.write(folder / name, name)
    for path in (folder, tmp_path / "in.zip"):
        source = open_folder(locate(str(path)), "split/owner/class")
        assert source.owner_names == ("ann", "bob")
        # in the order of names: test/ann/y, train/ann/x, train/bob/y, val/bob/x
        assert source.owners.tolist() == [0, 0, 1, 1]
        assert source.labels.tolist() == [1, 0, 1, 0]
        assert source.is_test.tolist() == [True, False, False, False]
        assert source.is_validation.tolist() == [False, False, False, True]


def test_a_users_own_images_become_clients(tmp_path):
    names = [f"x/{owner}/{label}/{n}.png" for owner in "pq" for label in "ab" for n in range(10)]
    config = DataConfig(
        name="folder",
        source=str(write_images(tmp_path / "in", names)),
        layout="*/owner/class",
        partition="owners",
        image_size=8,
        store=tmp_path / "store",
    )
    data = load_data(config, seed=0)
    assert [client.name for client in data.clients] == ["p", "q"]
    assert all((data.examples.owners[c.test] == n).all() for n, c in enumerate(data.clients))
    skewed = load_data(
        config.model_copy(
            update={"partition": "pathological", "num_clients": 4, "classes_per_client": 1}
        ),
        seed=0,
    )
    assert [len(np.unique(data.examples.labels[c.train])) for c in skewed.clients] == [1] * 4


def test_files_at_another_depth_and_empty_folders_are_refused(tmp_path):
    folder = write_images(tmp_path / "in", ["a/1.png", "b/2.png", "stray.png"])
    with pytest.raises(InputError, match=r"stray\.png .* is in no folder, but data\.layout"):
        open_folder(locate(str(folder)), "class")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="contains no images"):
        open_folder(locate(str(tmp_path / "empty")), "class")


def test_a_layout_that_names_owners_means_owners(tmp_path):
    names = [f"{owner}/{label}/{n}.png" for owner in "pqr" for label in "ab" for n in range(6)]
    given = {
        "name": "folder",
        "source": str(write_images(tmp_path / "in", names)),
        "layout": "owner/class",
        "image_size": 8,
        "store": tmp_path / "store",
    }
    config = DataConfig.model_validate(given)
    assert (config.partition, config.num_clients) == ("owners", None)
    assert [client.name for client in load_data(config, seed=0).clients] == ["p", "q", "r"]
    other = DataConfig.model_validate({**given, "partition": "iid"})
    assert (other.partition, other.num_clients) == ("iid", 10), "what is said is done"
    assert DataConfig.model_validate({**given, "layout": "*/class"}).partition == "dirichlet"
    hub = {"name": "hub", "source": "me/mine"}
    assert DataConfig.model_validate({**hub, "owner_column": "site"}).partition == "owners"
    assert DataConfig.model_validate(hub).partition == "dirichlet"


def test_what_is_passed_over_is_counted_and_named(tmp_path, monkeypatch):
    names = ["ann/mug/1.png", "ann/mug/2.xyz", "ann/cup/3.xyz", "ann/cup/4.txt", "bob/mug/5.png"]
    folder = write_images(tmp_path / "in", [*names, "ann/mug/.hidden.xyz", "cid/mug/README"])
    (folder / "dan/mug").mkdir(parents=True)
    source = open_folder(locate(str(folder)), "owner/class")
    assert source.notes == (
        "skipped 4 files: .xyz (2), .txt (1), no suffix (1)",
        "no images in the class cup: left out",
        "no images in the owners cid, dan: left out",
    )
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.mkdir("dan/mug")
        for name in [*names, "cid/mug/README"]:
            archive.write(folder / name, name)
    assert open_folder(locate(str(tmp_path / "in.zip")), "owner/class").notes == source.notes
    write_images(tmp_path / "phones", ["mug/1.heic"])
    for module in ("file_tree", "folder"):
        monkeypatch.setattr(f"pfedseq.data.{module}.IMAGE_SUFFIXES", frozenset({".png"}))
    with pytest.raises(
        InputError,
        match=r"contains no images \(skipped 1 file: \.heic \(1\); `pip install 'pfedseq\[heic",
    ):
        open_folder(locate(str(tmp_path / "phones")), "class")


@pytest.mark.parametrize("second", ["mug", "Mug ", "MUG", "mu\uff47"])
def test_names_that_look_alike_get_a_hint(tmp_path, second):
    folder = write_images(tmp_path / "in", ["Mug/1.png", f"{second}/2.png", "cup/3.png"])
    source = open_folder(locate(str(folder)), "class")
    assert len(source.class_names) == 3
    (note,) = source.notes
    assert "'Mug'" in note
    assert repr(second) in note
    assert "are treated as different: rename the folders" in note


def test_scans_of_16_bits_reach_the_store_with_contrast_and_a_window_is_another_store(tmp_path):
    rng = np.random.default_rng(0)
    for label in "ab":
        for number in range(4):
            values = rng.integers(900, 1400, (8, 8), dtype=np.uint16)
            (tmp_path / "in" / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(tmp_path / "in" / label / f"{number}.png")
    given = {"name": "folder", "source": str(tmp_path / "in"), "image_size": 8, "num_clients": 1}
    plain = load_images(DataConfig.model_validate({**given, "store": tmp_path / "store"}))
    assert all(image.min() == 0 and image.max() == 255 for image in plain.images)
    assert "rescaled 8 grey images" in plain.notes[0]
    windowed = load_images(
        DataConfig.model_validate({**given, "store": tmp_path / "store", "window": (0, 2000)})
    )
    assert 100 < windowed.images.mean() < 180
    for wrong, sentence in (
        ({**given, "window": (5, 5)}, "with low < high"),
        ({"name": "pacs", "window": (0, 9)}, "window is for folder, hub and table"),
    ):
        with pytest.raises(ValueError, match=sentence):
            DataConfig.model_validate(wrong)


def test_a_group_level_keeps_patients_whole_through_the_store(tmp_path):
    """Patient 1 of ward p is not patient 1 of ward q."""
    names = [
        f"{ward}/{patient}/{label}/{n}.png"
        for ward in "pq"
        for patient in "12345"
        for label in "ab"
        for n in range(3)
    ]
    config = DataConfig(
        name="folder",
        source=str(write_images(tmp_path / "in", names)),
        layout="owner/group/class",
        image_size=8,
        store=tmp_path / "store",
    )
    data = load_data(config, seed=0)
    groups = data.examples.groups
    assert groups.tolist() == np.repeat(np.arange(10), 6).tolist()
    for client in data.clients:
        parts = [
            set(groups[part].tolist()) for part in (client.train, client.validation, client.test)
        ]
        assert sorted(map(len, parts)) == [1, 1, 3]
        assert len(set.union(*parts)) == 5


def test_copies_in_a_folder_are_noted_and_never_torn_apart(tmp_path):
    names = [f"{label}/{n:02d}.png" for label in "ab" for n in range(12)]
    folder = write_images(tmp_path / "in", names)
    for copy in ("a/90.png", "a/91.png", "b/92.png"):
        (folder / copy).write_bytes((folder / "a/03.png").read_bytes())
    config = DataConfig(
        name="folder",
        source=str(folder),
        partition="iid",
        num_clients=1,
        image_size=8,
        store=tmp_path / "store",
    )
    same = [3, 12, 13, 26]  # in the order of names
    for seed in range(4):
        data = load_data(config, seed=seed)
        (client,) = data.clients
        sides = [
            len({*same} & {*p.tolist()}) for p in (client.train, client.validation, client.test)
        ]
        assert sorted(sides) == [0, 0, 4]
        assert "3 images are copies of another one of the same client" in data.notes[0]
    (hashes,) = (tmp_path / "store/images").glob("*/hashes.npy")
    assert np.load(hashes).shape == (27, 2)
