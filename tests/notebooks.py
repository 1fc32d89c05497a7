"""Execute the notebooks of docs/notebooks; `python -m tests.notebooks` keeps their outputs."""

import os
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def execute(path: Path):
    """The notebook with fresh outputs, run in an empty folder; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(FOLDER.parents[1] / "src")  # this checkout, not another
    try:
        with tempfile.TemporaryDirectory() as place:
            resources = {"metadata": {"path": place}}
            NotebookClient(notebook, timeout=1800, resources=resources).execute()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        if "outputs" in cell:  # what goes to stderr names folders of this machine
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    """Execute some notebooks, or all, and write them back."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            print(path.name, flush=True)
            nbformat.write(execute(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
