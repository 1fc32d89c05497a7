"""The page on the architecture tells the truth: its picture is the contract, its names exist."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "pfedseq"


def test_the_picture_is_import_linters_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in contracts["contracts"] if c["id"] == "layers")
    (picture,) = re.findall(r"```\n(cli\n.*?)```", PAGE, flags=re.S)
    drawn = [set(line.split(" · ")) for line in picture.splitlines()]
    assert drawn == [set(re.split(r" \| ", layer)) for layer in layers]


def test_what_is_named_exists():
    named = re.findall(r"`((?:\w+/)*\w+\.py)(?::(\w+)(?:\.(\w+))?)?`", PAGE)
    assert len(named) > 20
    for file, *names in named:
        path = SOURCE / file if (SOURCE / file).exists() else ROOT / file
        assert path.is_file(), f"architecture.md names {file}, which is not there"
        for name in filter(None, names):
            defined = re.search(rf"^\s*(class|def) {name}\b", path.read_text(), flags=re.M)
            assert defined, f"architecture.md names {name} in {file}, which is not there"
    for folder in re.findall(r"^\| `(\w+)/`", PAGE, flags=re.M):
        assert (SOURCE / folder).is_dir(), folder
