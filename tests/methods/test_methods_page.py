"""docs/explanation/methods.md has a row for every method, and what it names exists."""

import re
from itertools import product
from pathlib import Path

import pytest

from pfedseq.experiments import advice
from pfedseq.experiments.advice import Situation, advise
from pfedseq.methods import METHODS, NEWER, PAPER

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "explanation" / "methods.md").read_text(encoding="utf-8")


def rows(section):
    """The cells of the first table below a heading, without the table's head."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


CHECKS = {row[0]: row[1:] for row in rows("Against what each method was checked")}


def test_every_method_has_one_row_in_the_order_of_the_list():
    assert list(CHECKS) == [METHODS[name].title for name in (*PAPER, *NEWER)]


@pytest.mark.parametrize("name", [*PAPER, *NEWER])
def test_what_a_row_names_exists_and_is_about_the_method(name):
    derived, by_hand, authors, left_out = CHECKS[METHODS[name].title]
    named = [re.findall(r"`(test_\w+\.py)`", cell) for cell in (derived, by_hand)]
    assert named[0], "no rounds derived again"
    assert named[1] or by_hand == "–"
    tested = rf"\b(test_)?{name}\b|\"{name}\"|def test_{name}"
    for file in {file for files in named for file in files}:
        assert re.search(tested, (HERE / file).read_text(encoding="utf-8")), file
    assert authors in ("equal", "not compared", "none is public")
    assert left_out


def test_derivations_import_no_method():
    """Only the harness may know our methods; `METHODS` runs ours, to compare with."""
    for file in HERE.glob("test_rederived*.py"):
        imports = re.findall(r"^(?:from|import) (pfedseq\S*)", file.read_text(), flags=re.M)
        assert set(imports) <= {"pfedseq.methods"}, file.name


def test_the_advice_on_the_page_is_that_of_the_command():
    values = ((3, 10, 200), (30.0, 200.0, 5000.0), (0.2, 0.5, 0.9), (0.3, 1.0))
    given = {
        (tuple(METHODS[name].title for name in one.methods), one.backed)
        for situation in product(*values)
        for one in advise(Situation(*situation))
    }
    shown = [
        (tuple(methods.split(", ")), backed == "yes")
        for _, methods, backed in rows("Which method for which situation")
    ]
    assert set(shown) == given
    assert len(shown) == len(given)
    page = PAGE.split("\n## Which method for which situation\n")[1].split("\n## ")[0]
    for limit in (advice.ALIKE, advice.APART):
        assert f"{100 * limit:.0f} %" in page
    for limit in (advice.FEW_IMAGES, advice.MANY_IMAGES, advice.FEW_CLIENTS, advice.MANY_CLIENTS):
        assert f" {limit:,} " in page
