import io
import logging
import socket
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_samples import png
from huggingface_hub import constants

from pfedseq.data import DataConfig, load_data, load_images
from pfedseq.data.cifar import open_cifar
from pfedseq.data.hub import hub_table, table_of_splits
from pfedseq.data.location import Location, locate
from pfedseq.data.parquet import read_table
from pfedseq.data.preparing import prepare_data
from pfedseq.data.tabular import source_of_table
from pfedseq.errors import InputError

datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")

WRITERS = ["ann", "bob", "cid"]


def own_data(count, offset=0):
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "writer": datasets.Value("string"),
            "score": datasets.Value("float32"),
        }
    )
    rows = {
        "picture": [{"bytes": png(i + offset), "path": None} for i in range(count)],
        "label": [i % 2 for i in range(count)],
        "writer": [WRITERS[i % 3] for i in range(count)],
        "score": [0.5] * count,
    }
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture
def own_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    own_data(30).to_parquet(tmp_path / "mine/train-00000-of-00001.parquet", batch_size=7)
    own_data(6, 30).to_parquet(tmp_path / "mine/test-00000-of-00001.parquet")
    return tmp_path / "mine"


def contents(source):
    return [raw[1] for block in source.blocks for raw in block.read()]


def test_parquet_files_and_the_datasets_package_show_the_same_table(own_folder):
    splits = datasets.DatasetDict({"test": own_data(6, 30), "train": own_data(30)})
    from_hub = source_of_table("x", table_of_splits("me/mine", splits), owner_column="writer")
    from_files = source_of_table("x", read_table(own_folder), owner_column="writer")
    for source in (from_hub, from_files):
        assert source.class_names == ("no", "yes")
        assert source.owner_names == ("ann", "bob", "cid")
        assert source.labels.tolist() == [i % 2 for i in range(30)] + [i % 2 for i in range(6)]
        assert source.owners.tolist() == [0, 1, 2] * 12
        assert source.is_test.tolist() == [False] * 30 + [True] * 6
        assert contents(source) == [png(i) for i in range(36)]


def test_the_datasets_package_reads_the_real_sample_like_the_files(
    shared_data, tmp_path, monkeypatch
):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = str(shared_data / "cifar10")
    by_package = open_cifar("cifar10", Location(None, folder))
    by_files = open_cifar("cifar10", locate(folder))
    np.testing.assert_array_equal(by_package.labels, by_files.labels)
    assert contents(by_package)[1234:1240] == contents(by_files)[1234:1240]


def test_a_users_own_parquet_becomes_clients_by_column(own_folder, tmp_path):
    config = DataConfig(
        name="hub",
        source=str(own_folder),
        partition="owners",
        owner_column="writer",
        keep_test_split=True,
        image_size=8,
        store=tmp_path / "store",
    )
    data = load_data(config, seed=0)
    assert [client.name for client in data.clients] == WRITERS
    assert [(len(c.train), len(c.validation), len(c.test)) for c in data.clients] == [(8, 2, 2)] * 3
    grouped = load_images(config.model_copy(update={"group_column": "label"}))
    pairs = set(zip(grouped.groups.tolist(), grouped.owners.tolist(), strict=True))
    assert len(pairs) == len(set(grouped.groups.tolist())) == 6, "two labels at three writers"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"image_column": "photo"}, "no image column 'photo': its columns are picture, label, wr"),
        ({"image_column": "label"}, "no image column 'label'"),
        ({"label_column": "digit"}, "no label column 'digit'"),
        ({"owner_column": "hand"}, "no owner column 'hand'"),
    ],
)
def test_a_wrong_column_is_named_with_the_right_ones(own_folder, tmp_path, wrong, sentence):
    config = DataConfig(
        name="hub", source=str(own_folder), image_size=8, store=tmp_path / "store", **wrong
    )
    with pytest.raises(InputError, match=sentence):
        prepare_data(config)


def test_strange_tables_are_one_sentence(tmp_path):
    def refusal(columns, sentence, second=None):
        pq.write_table(pa.table(columns), tmp_path / "train-0.parquet")
        if second:
            pq.write_table(pa.table(second), tmp_path / "train-1.parquet")
        with pytest.raises(InputError, match=sentence):
            contents(source_of_table("x", read_table(tmp_path)))

    picture = {"bytes": png(), "path": None}
    refusal({"label": [1]}, "has no column that looks like the image: name one of label as")
    refusal({"image": [picture], "digit": [1]}, "no column that looks like the label")
    refusal({"a": [picture], "b": [picture], "label": [0]}, r"several image columns \(a, b\)")
    refusal({"image": [picture], "label": [-1]}, "row 0 of .* has the label -1, which is not")
    refusal({"image": [picture, picture], "label": [1, None]}, "column label .* is empty in 1 rows")
    refusal(
        {"image": [picture], "label": [0]},
        "has the columns image, other, but .*train-0.parquet has image, label",
        second={"image": [picture], "other": [0]},
    )
    for part in tmp_path.glob("*.parquet"):
        part.unlink()
    empty = {"image": [{"bytes": None, "path": "x"}, picture], "label": [0, 0]}
    pq.write_table(pa.table(empty), tmp_path / "train-0.parquet")
    missing, there = contents(source_of_table("x", read_table(tmp_path)))
    assert "image 0 of row group 0" in str(missing)
    assert "contains no image bytes" in str(missing)
    assert there == png()
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="contains no parquet files"):
        read_table(tmp_path / "none")


def test_text_labels_are_numbered_by_name(tmp_path):
    picture = {"bytes": png(), "path": None}
    table = {"image": [picture] * 3, "label": ["pear", "apple", "pear"]}
    pq.write_table(pa.table(table), tmp_path / "train-0.parquet")
    source = source_of_table("fruit", read_table(tmp_path))
    assert source.class_names == ("apple", "pear")
    assert source.labels.tolist() == [1, 0, 1]


def test_without_the_package_or_the_network_the_way_out_is_named(monkeypatch):
    def no_network(name, configuration):
        assert (name, configuration) == ("me/mine", "small")
        raise ConnectionError("Couldn't reach the hub\nwith many details")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    with pytest.raises(
        InputError, match=r"cannot fetch me/mine:small .*Couldn't reach the hub\): ch"
    ):
        hub_table("me/mine:small")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"needs the package datasets: run `pip install 'pfedseq"):
        hub_table("me/mine")


def test_an_unreachable_hub_is_spoken_of_once(monkeypatch, capsys):
    library, written = logging.getLogger("huggingface_hub"), io.StringIO()
    monkeypatch.setattr(library, "handlers", [logging.StreamHandler(written)])

    def retrying(name, configuration):
        logger = logging.getLogger("huggingface_hub.utils._http")
        for attempt in range(1, 6):
            logger.warning("'[Errno 111]' thrown while requesting HEAD https://hub/x")
            logger.warning(f"Retrying in {attempt}s [Retry {attempt}/5].")
        logger.warning("something else is worth knowing")
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", retrying)
    with pytest.raises(InputError, match="cannot fetch me/mine"):
        hub_table("me/mine")
    assert capsys.readouterr().err.count("the hub does not answer; retrying") == 1
    assert written.getvalue() == "something else is worth knowing\n"


def test_a_hub_that_cannot_be_reached_is_not_waited_for_and_the_remedy_is_named(monkeypatch):
    seen = []

    def look(name, configuration):
        seen.append(constants.HF_HUB_OFFLINE)
        raise ConnectionError("no route")

    for proxy in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(datasets, "load_dataset", look)
    with pytest.raises(
        InputError,
        match=r"`hf download ID --repo-type dataset .*data\.source to that folder.*HF_ENDPOINT",
    ):
        hub_table("me/mine")
    assert seen == [True]
    assert constants.HF_HUB_OFFLINE is False
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(InputError, match="cannot fetch"):
            hub_table("me/mine")
    assert seen == [True, False]
