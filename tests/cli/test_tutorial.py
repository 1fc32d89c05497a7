"""docs/tutorials/your-own-data.md: every command runs, and shows the words that the page shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pfedseq import cli
from tests.cli.tiles import draw_tiles

PAGE = Path(__file__).resolve().parents[2] / "docs/tutorials/your-own-data.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def commands() -> list[tuple[str, list[str]]]:
    """Each command, and the lines that the page shows after it."""
    found = []
    for block in blocks("console"):
        first, *shown = block.splitlines()
        assert first.startswith("$ ")
        found.append((first[2:], shown))
    return found


def masked(line: str) -> str:
    """The words of a line: numbers, folders and spaces may differ."""
    line = re.sub(r"\S*/(?=photos/|images/folder-)", "", line)
    line = re.sub(r"folder-32px-[0-9a-f]+", "STORE", line)
    line = re.sub(r"[-+]?\d+(\.\d+)?(±\d+(\.\d+)?)?( (B|kB|MB)\b)?|whole \(|cracked \(", "#", line)
    return " ".join(line.split())


def test_the_page_has_ten_commands():
    assert len(commands()) == 10
    numbers = re.findall(r"^\*\*(\d+)\.\*\*", PAGE.read_text("utf-8"), re.M)
    assert numbers == [str(n) for n in range(1, 11)]


@pytest.fixture
def place(tmp_path):
    draw_tiles(tmp_path / "photos")
    (config,) = blocks("toml")
    (tmp_path / "tiles.toml").write_text(config)
    return tmp_path


def run_command(words, monkeypatch):
    """Exit code of a command, within this process where that spares importing PyTorch again."""
    monkeypatch.setattr(sys, "argv", words)
    try:
        if words[0] == "pfedseq":
            cli.main()
        else:
            print(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_every_command_shows_what_the_page_shows(place, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PFEDSEQ_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    screens = {}
    for number, (command, shown) in enumerate(commands(), start=1):
        code = run_command(shlex.split(command), monkeypatch)
        screens[number], errors = capsys.readouterr()
        assert code == (2 if number == 1 else 0), errors
        screen = [masked(line) for line in (errors + screens[number]).splitlines()]
        for line in shown:
            assert masked(line) in screen, f"{command}\nshows no line like\n{line}\nbut\n{screen}"
    own = [line.partition(": ")[2].split()[0] for line in screens[9].splitlines()]
    assert own == ["cracked", "whole"], "a site's own model knows its own photographs"
