"""Runs that are killed again and again end as if nothing had happened."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pfedseq.methods import METHODS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


def campaign(tmp_path, kills, methods):
    """In a process of its own: this one has threads, which do not go well with forks."""
    report = tmp_path / "tally.json"
    command = [sys.executable, "-m", "tests.faults.kills", "--kills", str(kills)]
    done = subprocess.run(
        [*command, "--methods", ",".join(methods), "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text())


def test_some_kills_lose_nothing(tmp_path):
    tally = campaign(tmp_path, 6, ["pfedseq"])
    assert tally["kills"] >= 6
    assert tally["kills_in_a_write"] > 0
    assert tally["runs_compared"] > 0
    assert tally["losses"] == 0


@pytest.mark.slow
def test_many_kills_of_every_method_lose_nothing(tmp_path):
    assert campaign(tmp_path, 100, list(METHODS))["losses"] == 0
