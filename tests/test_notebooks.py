"""The notebooks: small, free of this machine's folders, ready for Colab, and they run."""

import json
import re

import pytest

from tests.notebooks import FOLDER, execute

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_fit_to_be_committed(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 250_000
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert "pip" in "".join(code[0]["source"]), "the first cell installs, for Colab"
    assert any(cell["outputs"] for cell in code), "outputs are committed"
    errors = [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
    assert not errors
    assert not re.search(r"site-packages|/home/|/root/|/tmp/", text)


def test_there_are_three():
    assert [path.stem[0] for path in NOTEBOOKS] == ["1", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    pytest.importorskip("nbclient", reason="needs the extra `notebooks`")
    execute(path)
