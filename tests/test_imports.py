"""Imports point one way: params ← federation ← methods ← engines ← experiment ← cli."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pfedseq"
FORBIDDEN = {
    "methods": ("engines", "data", "model", "experiment", "cli", "report", "config"),
    "learners": ("engines", "data", "model", "methods", "experiment", "cli", "report"),
    "engines": ("data", "model", "methods", "experiment", "cli", "report"),
    "params.py": ("federation", "optim", "methods", "engines", "data", "model"),
    "federation.py": ("methods", "engines", "data", "model", "optim"),
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("part", FORBIDDEN)
def test_layers_do_not_import_upwards(part):
    root = SOURCE / part
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    assert files
    for file in files:
        names = imported(file)
        assert "flwr" not in {name.split(".")[0] for name in names}, file
        for layer in FORBIDDEN[part]:
            bad = [n for n in names if f"{n}.".startswith(f"pfedseq.{layer}.")]
            assert not bad, f"{file} imports {bad}"


def test_help_does_not_wait_for_torch():
    code = "import sys, pfedseq.cli; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
