"""Numbers, sizes and lists as people read them, for messages and tables."""

from collections.abc import Sequence

_IRREGULAR = {"class": "classes"}


def count(number: int, thing: str) -> str:
    """'1 image', '1,200 images', 'no images'."""
    plural = _IRREGULAR.get(thing, f"{thing}s")
    return f"{number:,} {thing if number == 1 else plural}" if number else f"no {plural}"


def size(num_bytes: float) -> str:
    """'812 B', '1.5 kB', '20.0 MB', '3.1 GB'."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names: 'a, b, c and 4 more'."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def short(text: str, most: int = 60) -> str:
    """A text that somebody else wrote, cut to what a message can hold: 'abcde…'."""
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str, most: int = 500) -> str:
    """A text from another machine, without control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in short(text, most))


def as_number(text: str) -> int | None:
    """The whole number that a text of up to nine digits stands for; None for any other text."""
    return int(text) if len(text) < 10 and text.isdecimal() else None
