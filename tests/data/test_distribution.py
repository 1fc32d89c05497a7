import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from pfedseq import drawing
from pfedseq.data import ClientData, DataConfig, FederatedData, ImageSet, load_data
from pfedseq.data.distribution import describe_data, draw_distribution, undrawable
from pfedseq.errors import InputError


@pytest.fixture(scope="module")
def skewed():
    return load_data(DataConfig(partition="pathological", num_clients=5), seed=2)


def test_the_table_counts_every_image_once(skewed):
    rows = describe_data(skewed)
    counts = np.stack([row.class_counts for row in rows])
    assert counts.shape == (5, 10)
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(skewed.examples.labels))
    assert [row.num_classes for row in rows] == [2] * 5
    for row, client in zip(rows, skewed.clients, strict=True):
        assert (row.name, row.train, row.test) == (client.name, len(client.train), len(client.test))
        assert row.class_counts.sum() == row.train + row.validation + row.test


def test_the_figure_has_a_circle_where_a_client_has_a_class(skewed, tmp_path, monkeypatch):
    drawn = {}

    def remember(figure, path):
        drawn["offsets"] = figure.axes[0].collections[0].get_offsets()
        drawn["areas"] = figure.axes[0].collections[0].get_sizes()

    monkeypatch.setattr("pfedseq.data.distribution.save_picture", remember)
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


@pytest.mark.parametrize("num_clients", [1, 2, 30])
def test_nothing_is_drawn_beyond_the_picture(tmp_path, num_clients):
    """The title of a data set with a long name, few clients and wide labels stays whole."""
    labels = np.arange(60) % 3
    images = ImageSet(
        "photographs of the reading room of the municipal library, second campaign, 2024",
        np.zeros((60, 3, 8, 8), np.uint8),
        labels,
        ("a class with quite a long name of its own", "b", "c"),
    )
    parts = np.array_split(np.arange(60), num_clients)
    clients = tuple(
        ClientData(f"site number {n}", part[2:], part[1:2], part[:1])
        for n, part in enumerate(parts)
    )
    seen = {}

    def measure(figure, path):
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.canvas.draw()
        texts = [figure._suptitle, *figure.axes[0].get_xticklabels()]
        texts += figure.axes[0].get_yticklabels()
        seen["boxes"] = [text.get_window_extent(renderer) for text in texts]
        seen["size"] = figure.get_size_inches() * figure.dpi

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfedseq.data.distribution.save_picture", measure)
        draw_distribution(FederatedData(images, clients), tmp_path / "x.png")
    width, height = seen["size"]
    for box in seen["boxes"]:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height


def test_letters_that_the_first_font_lacks_are_taken_from_another_or_numbered(tmp_path, recwarn):
    images = ImageSet(
        "x", np.zeros((8, 3, 8, 8), np.uint8), np.arange(8) % 2, ("𝒜𝒞", "\U0010fffd字")
    )
    indices = np.arange(8)
    clients = (ClientData("Köln", indices[:4], indices[4:6], indices[6:]),)
    data = FederatedData(images, clients)
    assert drawing.labels(["𝒜𝒞", "Köln", "\U0010fffd"]) == ["𝒜𝒞", "Köln", "#2"]
    draw_distribution(data, tmp_path / "x.png")
    assert not [w for w in recwarn if "missing from" in str(w.message)]
    (note,) = undrawable(data)
    assert "no installed font can draw \U0010fffd字" in note
