"""Helpers for figures: fonts that cover the user's characters, and atomic files."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from matplotlib import font_manager, rc_context
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from pfedseq.files import write_atomically

_FIRST_FONT = "DejaVu Sans"
_BOXES_ONLY = "Last Resort"
"""matplotlib's fallback font, which draws a box for every character."""
_TITLE_INCH_PER_LETTER = 0.075


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure atomically, as SVG if its name says so, otherwise as PNG."""
    buffer = io.BytesIO()
    if path.suffix == ".svg":
        with rc_context({"svg.hashsalt": "pfedseq"}):  # equal figures give equal files
            figure.savefig(buffer, format="svg", metadata={"Date": None})
    else:
        figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def set_title(figure: Figure, text: str) -> None:
    """Set a title over the whole figure, wrapped to its width."""
    letters = int(figure.get_figwidth() / _TITLE_INCH_PER_LETTER)
    figure.suptitle(textwrap.fill(text, letters), fontsize=10)


@contextmanager
def fonts_for(texts: Iterable[str]) -> Iterator[None]:
    """Choose fonts that together cover all characters of the texts, if available."""
    with rc_context({"font.family": _covering_fonts("".join(texts))}):
        yield


def can_be_drawn(text: str) -> bool:
    """Whether the installed fonts cover all characters of a text."""
    available: frozenset[int] = frozenset().union(
        *(_letters(name) for name in _covering_fonts(text))
    )
    return _codes(text) <= available


def labels(names: Sequence[str]) -> list[str]:
    """The names, with `#3` in place of one that no installed font can draw."""
    return [name if can_be_drawn(name) else f"#{place}" for place, name in enumerate(names)]


def _covering_fonts(text: str) -> list[str]:
    missing = _codes(text) - _letters(_FIRST_FONT)
    chosen = [_FIRST_FONT]
    for name in _font_files() if missing else ():
        if missing & _letters(name):
            chosen.append(name)
            missing -= _letters(name)
    return chosen


def _codes(text: str) -> set[int]:
    return {ord(letter) for letter in text if not letter.isspace()}


@lru_cache(maxsize=1)
def _font_files() -> dict[str, str]:
    fonts = sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, font.fname))
    return {font.name: font.fname for font in fonts if not font.name.startswith(_BOXES_ONLY)}


@lru_cache(maxsize=64)
def _letters(name: str) -> frozenset[int]:
    """The code points that a font has."""
    try:
        return frozenset(FT2Font(_font_files()[name]).get_charmap())
    except (KeyError, OSError, RuntimeError):  # a font file that is gone or broken
        return frozenset()
