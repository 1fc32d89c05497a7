"""docs/howto/language-models.md: its commands run, and end in the answers that the page shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pfedseq import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/language-models.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_pages_commands_end_in_its_answers(tmp_path, monkeypatch, capsys):
    """The same prompt is answered in each client's own notation, and exports load by PEFT."""
    monkeypatch.chdir(tmp_path)
    (script,), (config,), (loading,) = (blocks(kind) for kind in ("python", "toml", "py"))
    (tmp_path / "make_notes.py").write_text(script)
    (tmp_path / "prices.toml").write_text(config)
    commands = [block.splitlines() for block in blocks("console")]
    assert [shlex.split(first)[2] for first, *_ in commands] == [
        *("make_notes.py", "run", "predict", "predict", "evaluate", "export")
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
        said = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert {line.strip() for line in shown} <= {*said}, (first, said)
    exec(compile(loading, "language-models.md", "exec"), {})
