"""The page on how far a change reaches: each row's example exists and a test runs it."""

import re
from pathlib import Path

import pytest

from pfedseq import load_plugin, plugins
from pfedseq.measures import MEASURES, score
from pfedseq.runs.records import RunSummary
from pfedseq.training.augmentations import AUGMENTATIONS
from pfedseq.training.rules import RULES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")


def rows():
    """The cells of each row of the table."""
    found = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("|")]
    return {row[0]: row for row in found[2:]}


def target(cell):
    (link,) = re.findall(r"\]\(([^)]+)\)", cell)
    return PAGE if link.startswith("#") else (PAGE.parent / link).resolve()


def test_every_kind_of_change_has_an_example_that_a_test_names():
    assert set(rows()) == {
        *("method", "data set", "encoder family", "measure"),
        *("local optimiser", "augmentation", "modality"),
    }
    for kind, (_, _, _, example, run_by) in rows().items():
        place, test = target(example), target(run_by)
        assert place.is_file(), kind
        words = {place.stem, place.parent.name} if place != PAGE else {"extending.md"}
        assert any(word in test.read_text(encoding="utf-8") for word in words), kind


def test_what_is_named_exists():
    named = re.findall(r"`((?:\w+/)+\w+\.py)(?::(\w+))?`", TEXT)
    assert len(named) > 8
    for file, name in named:
        places = [p for p in (ROOT / file, ROOT / "src/pfedseq" / file) if p.is_file()]
        assert places, file
        assert re.search(rf"^(class|def) {name}", places[0].read_text(), flags=re.M), name


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    """A rule and an augmentation of a few lines each, used by two rounds of the demo."""
    rules, augmentations = set(RULES), set(AUGMENTATIONS)
    monkeypatch.chdir(tmp_path)
    names = {}
    try:
        for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.S):
            exec(compile(block, "extending.md", "exec"), names)
        assert {"sign_sgd"} == set(RULES) - rules
        assert {"darken"} == set(AUGMENTATIONS) - augmentations
    finally:
        for known, before in ((RULES, rules), (AUGMENTATIONS, augmentations)):
            for name in set(known) - before:
                del known[name]
    summary = names["summary"]
    assert isinstance(summary, RunSummary)
    assert summary.methods["fedavg"].client_mean > 0.15  # ten classes: it has learnt something
    assert 'optimizer = "sign_sgd"' in (tmp_path / "runs/extended/config.toml").read_text()


def test_the_example_of_a_measure_is_one():
    """top_two.py: the second likeliest class counts too; with two classes it is undefined."""
    import torch

    load_plugin(ROOT / "examples/plugin/pfedseq_example/top_two.py")
    try:
        logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
        found = score(logits, torch.tensor([1, 2, 2]), measures=("top_two",))
        assert found.values["top_two"] == pytest.approx(2 / 3)
        undefined = score(logits[:, :2], torch.tensor([1, 0, 1]), measures=("top_two",))
        assert "top_two" not in undefined.values
    finally:
        del MEASURES["top_two"]
        del plugins._files[(ROOT / "examples/plugin/pfedseq_example/top_two.py").resolve()]
