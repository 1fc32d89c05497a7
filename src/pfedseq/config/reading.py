"""Reads config files with overrides and plug-ins, and writes resolved ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from pfedseq.config.config import Config
from pfedseq.config.paths import write_out_paths
from pfedseq.config.sections import PluginConfig
from pfedseq.config.validation import validated
from pfedseq.errors import InputError
from pfedseq.plugins import load_file
from pfedseq.presets import find_config, is_preset


def load_config(
    path: Path | str, overrides: Sequence[str] = (), plugins: Sequence[Path | str] = ()
) -> Config:
    """Read a TOML file or a preset, apply `section.key=value` overrides, check everything.

    Relative paths in the file are relative to its folder (or, if nothing exists there, to the
    current one); those of overrides and presets to the current folder. The plug-in files that the
    config and `plugins` name are executed.
    """
    values = _read(path)
    given = [*values.pop("plugins", []), *map(str, plugins)]
    values["plugins"] = list({p["file"]: p for p in map(_loaded_plugin, given)}.values())
    return make_config(values, overrides)


def read_config(path: Path | str) -> Config:
    """Read the config of a run for inspection; no plug-in is executed.

    Its methods may come from a plug-in that is not installed here.
    """
    return validated(Config, _read(path), "", only_look=True)


def load_plugin(file: Path | str) -> None:
    """Execute a Python file and register what it defines in this process."""
    load_file(file)


def _loaded_plugin(given: Any) -> dict[str, str]:
    """Execute a plug-in file of a config; return its path and checksum."""
    plugin = validated(PluginConfig, given, "plugins.")
    origin = load_file(plugin.file, plugin.sha256)
    return {"file": origin.place, "sha256": origin.sha256}


def _read(path: Path | str) -> dict[str, Any]:
    path = find_config(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no config file {path}") from None
    except OSError as problem:
        raise InputError(f"cannot read config {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InputError(f"{path} is not valid TOML: {problem}") from None
    values.setdefault("run", {}).setdefault("name", path.stem)
    if not is_preset(path):
        write_out_paths(values, [path.parent, Path()])
    return values


def make_config(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Make a config from nested dicts as read from TOML; plug-ins are not executed."""
    merged = _deep_copy(values)
    for override in overrides:
        _apply(merged, override)
    write_out_paths(merged, [Path()])
    return validated(Config, merged, "").resolved()


def dump_config(config: Config) -> str:
    """The resolved config as TOML; a comment names the options of a section that are not set."""
    values = config.model_dump(mode="json")
    lines = []
    for line in tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)).splitlines():
        lines.append(line)
        section = values.get(line.strip("[]")) if line.startswith("[") else None
        if isinstance(section, dict) and (unset := [k for k, v in section.items() if v is None]):
            lines.append(f"# not set: {', '.join(unset)}")
    return "\n".join(lines) + "\n"


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _deep_copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}


def _apply(values: dict[str, Any], override: str) -> None:
    """Set `a.b.c=value` in nested dicts; the value is read as TOML, or else as a string."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise InputError(f"--set {override!r} must look like SECTION.KEY=VALUE, e.g. run.rounds=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = values
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {override!r}: {name!r} is not a section")
    if path == ["training", "lr"]:
        _apply_rate(table, value)
    else:
        table[path[-1]] = value


def _apply_rate(training: dict[str, Any], value: Any) -> None:
    """Set `training.lr`; with `auto` the test starts at the rate that was given, if any.

    The heads' rate keeps its ratio to that one.
    """
    training.pop("rate_test", None)
    if value == "auto":
        training["rate_test"] = "wanted"
    else:
        training["lr"] = value
