"""docs/howto/text.md: its commands run, and end in the predictions that the page shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pfedseq import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/text.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def masked(line):
    """The words of a line: figures and spaces may differ."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "#", line).split())


def test_the_pages_commands_end_in_its_predictions(tmp_path, monkeypatch, capsys):
    """The same words are urgent for one client and not for the other, as the page says."""
    monkeypatch.chdir(tmp_path)
    (script,), (config,) = blocks("python"), blocks("toml")
    (tmp_path / "make_notes.py").write_text(script)
    (tmp_path / "notes.toml").write_text(config)
    commands = [block.splitlines() for block in blocks("console")]
    assert [shlex.split(first)[2] for first, *_ in commands] == [
        *("make_notes.py", "data", "run", "predict", "predict", "evaluate")
    ]
    for first, *shown in commands:
        words = shlex.split(first.removeprefix("$ "))
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
            continue
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (None, 0)
        said = {masked(line) for line in capsys.readouterr().out.splitlines()}
        assert {masked(line) for line in shown} <= said, first
    anna, bob = (shown[0] for first, *shown in commands if "predict" in first)
    assert ("urgent" in anna, "later" in bob) == (True, True)
