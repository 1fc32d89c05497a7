import json

import numpy as np
import pytest
from PIL import Image

from pfedseq.data import DataConfig, load_data
from pfedseq.data.distribution import describe_data, draw_distribution, partition_record
from pfedseq.errors import InputError


@pytest.fixture(scope="module")
def skewed():
    return load_data(DataConfig(partition="pathological", num_clients=5), seed=2)


def test_the_table_counts_every_image_once(skewed):
    rows = describe_data(skewed)
    counts = np.stack([row.class_counts for row in rows])
    assert counts.shape == (5, 10)
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(skewed.images.labels))
    assert [row.num_classes for row in rows] == [2] * 5
    for row, client in zip(rows, skewed.clients, strict=True):
        assert (row.name, row.train, row.test) == (client.name, len(client.train), len(client.test))
        assert row.class_counts.sum() == row.train + row.validation + row.test


def test_the_figure_has_a_circle_where_a_client_has_a_class(skewed, tmp_path, monkeypatch):
    drawn = {}

    def remember(path, figure):
        drawn["offsets"] = figure.axes[0].collections[0].get_offsets()
        drawn["areas"] = figure.axes[0].collections[0].get_sizes()

    monkeypatch.setattr("pfedseq.data.distribution._write", remember)
    draw_distribution(skewed, tmp_path / "figure.png")
    counts = np.stack([row.class_counts for row in describe_data(skewed)])
    places = {(int(x), int(y)) for x, y in drawn["offsets"]}
    assert places == set(zip(*map(np.ndarray.tolist, np.nonzero(counts)), strict=True))
    ratio = drawn["areas"] / counts[counts > 0]
    np.testing.assert_allclose(ratio, ratio[0])  # area, not radius, is the number of images


def test_the_figure_is_a_png_and_nothing_else_is_left(skewed, tmp_path):
    draw_distribution(skewed, tmp_path / "plots/figure.png")
    with Image.open(tmp_path / "plots/figure.png") as image:
        assert image.format == "PNG"
        assert np.asarray(image.convert("L")).std() > 5
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["figure.png"]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write .*figure\.png"):
        draw_distribution(skewed, tmp_path / "file/figure.png")


def test_the_record_names_every_image(skewed):
    record = json.loads(partition_record(skewed))
    assert record["data"] == "digits"
    for written, client in zip(record["clients"], skewed.clients, strict=True):
        assert written["train"] == client.train.tolist()
        assert written["validation"] == client.validation.tolist()
        assert written["test"] == client.test.tolist()
    assert partition_record(load_data(DataConfig(partition="pathological", num_clients=5), 2)) == (
        partition_record(skewed)
    )
