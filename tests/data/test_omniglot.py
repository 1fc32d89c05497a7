import zipfile

import numpy as np
import pytest
from data_samples import copy_zip, truncated

from pfedseq.data import DataConfig, load_data
from pfedseq.data.decode import decode
from pfedseq.data.location import locate
from pfedseq.data.omniglot import open_omniglot
from pfedseq.errors import InputError


def test_the_whole_data_set_is_read_by_drawer(shared_data):
    source = open_omniglot(locate(str(shared_data / "omniglot")))
    assert len(source.labels) == 32_460
    assert source.notes == ()
    assert len(source.class_names) == 50
    assert (np.bincount(source.owners) == 1_623).all()
    # Latin has 26 letters, each by 20 drawers; Ojibwe has 14.
    sizes = dict(zip(source.class_names, np.bincount(source.labels).tolist(), strict=True))
    assert (sizes["Latin"], sizes["Ojibwe_(Canadian_Aboriginal_Syllabics)"]) == (520, 280)
    names = [name for name, _ in source.blocks[40].read()]
    for offset, name in enumerate(names):
        drawer = int(name.split(" in ")[0].removesuffix(".png")[-2:])
        assert source.owner_names[source.owners[40 * 256 + offset]] == f"drawer {drawer:02d}"
    raw = next(iter(source.blocks[0].read()))
    assert set(np.unique(decode(raw, 105).pixels)) == {0, 255}


def few(shared_data, tmp_path):
    """Both archives with three characters each."""
    for part in ("background", "evaluation"):
        copy_zip(
            shared_data / f"omniglot/images_{part}.zip",
            tmp_path / f"images_{part}.zip",
            keep=lambda name: any(f"character0{n}/" in name for n in (1, 2)),
        )
    return tmp_path


def test_a_part_becomes_twenty_clients(shared_data, tmp_path):
    few(shared_data, tmp_path)
    config = DataConfig(
        name="omniglot", source=str(tmp_path), image_size=12, store=tmp_path / "store"
    )
    data = load_data(config, seed=3)
    assert [client.name for client in data.clients[:2]] == ["drawer 01", "drawer 02"]
    assert len(data.clients) == 20
    for number, client in enumerate(data.clients):
        assert len(client.train) + len(client.validation) + len(client.test) == 100
        assert (data.examples.owners[client.train] == number).all()
    fewer = load_data(config.model_copy(update={"num_clients": 6, "split_owners": 2}), seed=3)
    assert [client.name for client in fewer.clients] == [
        f"drawer 0{n}-{piece}" for n in (1, 2, 3) for piece in (0, 1)
    ]


def test_unpacked_folders_are_the_same_and_both_together_are_not_double(shared_data, tmp_path):
    (tmp_path / "zips").mkdir()
    packed = open_omniglot(locate(str(few(shared_data, tmp_path / "zips"))))
    for part in ("background", "evaluation"):
        with zipfile.ZipFile(tmp_path / f"zips/images_{part}.zip") as archive:
            archive.extractall(tmp_path / "unpacked/python")
            archive.extractall(tmp_path / "zips")
    for folder in ("unpacked", "zips"):
        other = open_omniglot(locate(str(tmp_path / folder)))
        np.testing.assert_array_equal(packed.owners, other.owners)
        assert packed.class_names == other.class_names
        for one, two in zip(packed.blocks[5].read(), other.blocks[5].read(), strict=True):
            assert one[1] == two[1]


def test_broken_copies_are_one_sentence(shared_data, tmp_path):
    few(shared_data, tmp_path)
    evaluation = tmp_path / "images_evaluation.zip"
    whole = evaluation.read_bytes()
    evaluation.unlink()
    with pytest.raises(InputError, match="does not contain images_evaluation: Omniglot needs"):
        open_omniglot(locate(str(tmp_path)))
    evaluation.write_bytes(whole)
    truncated(evaluation, evaluation)
    with pytest.raises(InputError, match=r"images_evaluation\.zip is not a complete zip archive"):
        open_omniglot(locate(str(tmp_path)))
    evaluation.write_bytes(whole)
    original = shared_data / "omniglot/images_evaluation.zip"
    stray = {"images_evaluation/Angelic/character01/0965_21.png": b"x"}
    copy_zip(original, evaluation, change=stray, keep=lambda name: "Angelic" in name)
    with pytest.raises(InputError, match=r"0965_21\.png in .* drawer's number"):
        open_omniglot(locate(str(tmp_path)))
