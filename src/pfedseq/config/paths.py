"""Paths in a config: relative to the config's folder, and saved as absolute paths."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATH_KEYS = (
    ("data", "source"),
    ("data", "store"),
    ("auxiliary", "source"),
    ("auxiliary", "store"),
    ("model", "backbone"),
    ("adapter", "start"),
)
_MAY_BE_AN_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(:[\w.-]+)?")
"""`owner/name` of the hub, `demo`, `random:vit-tiny`."""
_NEVER_A_PATH = re.compile(r"demo|demo-llm|random:.*")


def write_out_paths(values: dict[str, Any], folders: Sequence[Path]) -> None:
    """Make the relative paths of a config absolute, in place.

    A path is looked up in `folders` in turn. If none has it, it is relative to the first, unless it
    may be a name on the hub.
    """
    for section, key in PATH_KEYS:
        table = values.get(section)
        given = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(given, str | Path) and str(given):
            table[key] = _written_out(str(given), folders, may_be_an_id=key != "store")
    plugins = values.get("plugins")
    if not isinstance(plugins, list):
        return
    for place, given in enumerate(plugins):
        table = given if isinstance(given, dict) else {"file": given}
        if isinstance(table.get("file"), str) and table["file"]:
            file = _written_out(table["file"], folders, may_be_an_id=False)
            plugins[place] = {**table, "file": file}


def _written_out(given: str, folders: Sequence[Path], *, may_be_an_id: bool) -> str:
    if may_be_an_id and _NEVER_A_PATH.fullmatch(given):
        return given
    if given.startswith("~"):
        return str(Path(given).expanduser())
    for folder in folders:
        if (folder / given).exists():
            return str((folder / given).resolve())
    if may_be_an_id and _MAY_BE_AN_ID.fullmatch(given) and not Path(given).is_absolute():
        return given
    return str((folders[0] / given).absolute())
