"""Who may import whom is said once, in pyproject.toml; import-linter checks it here too."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_imports_keep_the_contracts():
    code = "from importlinter.cli import lint_imports; exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_help_does_not_wait_for_torch():
    code = "import sys, pfedseq.cli; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_no_test_file_imports_from_another():
    """What tests share is in files of its own."""
    borrowed = re.compile(r"^(from|import) (tests\.)?(\w+\.)*test_\w+", re.M)
    files = (ROOT / "tests").rglob("*.py")
    assert [str(f) for f in files if borrowed.search(f.read_text(encoding="utf-8"))] == []


def test_no_two_classes_have_one_name():
    """A name says which class it is, without the path of its module."""
    places = defaultdict(list)
    for path in sorted((ROOT / "src" / "pfedseq").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
