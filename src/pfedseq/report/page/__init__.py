"""One HTML page about runs: opens from disk, needs no network, holds all it shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pfedseq.files import write_atomically
from pfedseq.report.page.content import page_content

_HERE = Path(__file__).parent


def write_page(folders: Sequence[Path], out: Path, title: str | None = None) -> None:
    """The page of all runs in these folders, as one file.

    What comes from a user's data reaches the page as JSON alone, and the page's script puts it
    there as text.
    """
    content = page_content(folders)
    heading = title or " · ".join(board["name"] for board in content["boards"])
    parts = {
        "TITLE": escape(heading),
        "STYLE": _read("page.css"),
        "LIBRARY": _read("echarts.min.js"),
        "SCRIPT": _read("clients.js") + _read("page.js"),
        "CONTENT": as_script(content),
    }
    page = _read("page.html")
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text, 1)
    write_atomically(out, page)


def as_script(content: Any) -> str:
    """JSON that may stand within a script element: nothing in it can end the element."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
