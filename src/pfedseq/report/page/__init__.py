"""The report: one self-contained HTML page that opens from disk without a network."""

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
    """Write the page of all runs in these folders to one file.

    User data enter the page as JSON only, and the page's script inserts them as text.
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
    """JSON that is safe inside a script element: nothing in it can close the element."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
