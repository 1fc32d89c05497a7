"""Configs that ship with the package, by name: `demo`, `cifar100`, `lab/pacs` …"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from pfedseq.errors import InputError

_FOLDER = Path(__file__).parent


def preset_names() -> list[str]:
    """All presets, those at the top first."""
    names = [path.relative_to(_FOLDER).with_suffix("").as_posix() for path in _files()]
    return sorted(names, key=lambda name: (name.count("/"), name))


def find_config(name_or_path: Path | str) -> Path:
    """The file that a user means: a path to a TOML file, or else a preset's name."""
    path = Path(name_or_path)
    if path.is_file() or path.suffix == ".toml":
        return path
    name = path.as_posix()
    names = preset_names()
    if name in names:
        return _FOLDER / f"{name}.toml"
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`pfedseq presets` lists them"
    raise InputError(f"there is no config file and no preset {name!r}; {hint}")


def is_preset(path: Path) -> bool:
    """Whether a config file is one of the package's own."""
    return path.is_relative_to(_FOLDER)


def preset_summary(name: str) -> str:
    """The first sentence of a preset's own description."""
    opening: list[str] = []
    for line in find_config(name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        opening.append(line.removeprefix("#").strip())
    text = " ".join(line for line in opening if line and not line.startswith("pfedseq "))
    return text.split(". ")[0].removesuffix(".") + "."


def _files() -> list[Path]:
    return list(_FOLDER.rglob("*.toml"))
