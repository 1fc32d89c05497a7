import zipfile

import numpy as np
import pytest
from data_samples import write_images

from pfedseq.data import DataConfig, load_data
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
        assert source.is_test.tolist() == [True, False, False, True]


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
    assert all((data.images.owners[c.test] == n).all() for n, c in enumerate(data.clients))
    skewed = load_data(
        config.model_copy(
            update={"partition": "pathological", "num_clients": 4, "classes_per_client": 1}
        ),
        seed=0,
    )
    assert [len(np.unique(data.images.labels[c.train])) for c in skewed.clients] == [1] * 4


def test_files_at_another_depth_and_empty_folders_are_refused(tmp_path):
    folder = write_images(tmp_path / "in", ["a/1.png", "b/2.png", "stray.png"])
    with pytest.raises(InputError, match=r"stray\.png .* lies in 0 folders, but data\.layout"):
        open_folder(locate(str(folder)), "class")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no images in it"):
        open_folder(locate(str(tmp_path / "empty")), "class")
