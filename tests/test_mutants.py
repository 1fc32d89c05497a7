"""The changes of `make mutants` are made, each in its function alone."""

from pathlib import Path

import pytest
import torch

from pfedseq import params
from pfedseq.params import Params, weighted_mean

pytest.importorskip("mutmut", reason="the extra `mutants` is not installed")

from tests import mutants


def changed(function, line):
    """The change of params.py that turns a line of a function into this one."""
    found = [m for m in mutants.mutants_of("params.py") if m.function == function]
    return next(m for m in found if m.change.endswith(f"\n+{line}"))


@pytest.fixture
def restored(monkeypatch):
    """Functions that have their own code again when the test is over."""
    for function in (Params.__sub__, weighted_mean):
        monkeypatch.setattr(function, "__code__", function.__code__)


@pytest.mark.usefixtures("restored")
def test_a_method_gets_its_changed_code():
    one = Params(torch.tensor([[1.0]]), torch.tensor([2.0]))
    changed(
        "Params.__sub__",
        "        return Params(self.adapter - other.adapter, self.head + other.head)",
    ).apply()
    assert (one - one).adapter.item() == 0
    assert (one - one).head.item() == 4


@pytest.mark.usefixtures("restored")
def test_a_function_is_changed_for_all_who_imported_it():
    changed(
        "weighted_mean", "    mean: Tensor = torch.tensordot(w * w.sum(), stacked, dims=1)"
    ).apply()
    assert params.weighted_mean is weighted_mean
    assert weighted_mean(torch.tensor([1.0, 1.0]), [1, 3]).item() == 16


def test_words_of_errors_and_annotations_are_left_alone():
    changes = [mutant.change for mutant in mutants.mutants_of("params.py")]
    assert len(changes) > 50
    assert not any("raise ValueError" in change for change in changes)


def test_the_guard_of_a_zip_is_left_alone():
    """Its other arguments are not."""
    changes = [m.change for m in mutants.mutants_of("learners/lstm.py") if "zip(" in m.change]
    assert any("zip(None, self.projections, strict=True)" in change for change in changes)
    assert all(change.count("strict=True") == change.count("zip(") for change in changes)


def test_every_file_with_changes_has_tests():
    files = mutants.every_file()
    assert {"params.py", "methods/fedavg.py", "runs/world.py", "data/partition.py"} <= set(files)
    assert all(mutants.tests_of(file) for file in files)


def test_the_named_test_files_exist():
    named = {name for names in mutants.TESTS.values() for name in names.split()}
    plain = sorted(name for name in named if "{" not in name)
    assert [name for name in plain if not Path(f"tests/{name}.py").exists()] == []
