import pytest

from pfedseq.words import count, printable, size, some


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [
        (0, "image", "no images"),
        (1, "image", "1 image"),
        (1200, "image", "1,200 images"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
    ],
)
def test_counts(number, thing, said):
    assert count(number, thing) == said


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (3.1e12, "3100.0 GB")],
)
def test_sizes(num_bytes, said):
    assert size(num_bytes) == said


def test_lists():
    assert some(["a"]) == "a"
    assert some(list("abcde")) == "a, b, c, d, e"
    assert some(list("abcdefg"), 2) == "a, b and 5 more"


def test_what_others_write_cannot_reach_the_terminal():
    assert printable("a\x1b[2J\nü") == "a [2J ü"
    assert printable("x" * 9, most=5) == "xxxx…"
