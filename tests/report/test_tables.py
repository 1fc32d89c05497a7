"""Tables at the width of an ordinary terminal."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pfedseq.data.distribution import ClientRow
from pfedseq.data.preparing import Prepared
from pfedseq.experiments.results import Comparison, ComparisonRow, Lead, quantities
from pfedseq.experiments.statistics import Interval, MeanStd
from pfedseq.measures import MEASURES
from pfedseq.methods import METHODS
from pfedseq.report import tables
from pfedseq.runs.records import Cost, RunSummary
from tests.scored import scores_of, summary_of


@pytest.fixture
def screen(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(tables, "console", Console(file=out, width=80, color_system=None))
    return out


def lines(screen):
    text = screen.getvalue()
    assert "…" not in text
    found = text.splitlines()
    assert max(map(len, found)) <= 80
    return found


@pytest.mark.parametrize("num_classes", [2, 10, 12, 100])
@pytest.mark.parametrize("long", [False, True])
def test_clients_by_classes_fit_and_cut_no_word(screen, num_classes, long):
    names = [f"{'a rather long class' if long else 'c'}{n}" for n in range(num_classes)]
    counts = np.arange(num_classes) * 3
    sites = ["Berlin", "a hospital whose name alone would nearly fill the line of a terminal"]
    rows = [ClientRow(name, 100, 10, 30, counts) for name in sites]
    tables.print_clients(rows, names, Path("x.png"))
    text = "\n".join(lines(screen))
    for word in ("client", "/val/test", "classes", "Berlin", "100/10/30", "Picture: x.png"):
        assert word in text
    if num_classes == 2 and not long:
        assert "c0 c1" in text, "every class has its column where there is room"
    if num_classes == 100:
        assert "most frequent classes" in text
        assert "c99 297" in text.replace("a rather long class", "c")


def summary(methods, clients):
    cost = Cost(123_456_789, 123_456_789, 12_345.6, 1_234.5, 1.0)
    accuracy = tuple((n * 37 % 101) / 100 for n in range(len(clients)))
    one = summary_of(accuracy, rounds=80, cost=cost)
    return RunSummary(dict.fromkeys(methods, one), tuple(clients))


def test_every_client_of_a_run_is_listed_by_name(screen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("out/clients.png").touch()
    tables.print_results(summary(["pfedseq", "local"], ["Ann", "São Paulo", "北京"]), Path("out"))
    found = lines(screen)
    rows = [line.split() for line in found]
    assert ["Ann", "10", "0.00", "0.00"] in rows
    assert ["São", "Paulo", "10", "37.00", "37.00"] in rows
    assert ["北京", "10", "74.00", "74.00"] in rows
    assert any("out/clients.png" in line for line in found)
    assert not any("out/adapters" in line for line in found)  # only what is there


def test_a_site_that_was_absent_in_the_last_round_has_a_dash_and_others_their_own(screen):
    of = summary(["pfedseq"], ["Ann", "Bo"])
    row = replace(of.methods["pfedseq"], scores=scores_of((0.0, 0.37), clients=(0, 2)))
    tables.print_results(replace(of, methods={"pfedseq": row}, clients=tuple("abc")), Path("out"))
    rows = [line.split() for line in lines(screen)]
    assert [r for r in rows if len(r) == 3 and r[0] in "abc"][-3:] == [
        ["a", "10", "0.00"],
        ["b", "–", "–"],
        ["c", "10", "37.00"],
    ]
    assert "–: absent in the last round" in screen.getvalue()


def test_a_run_of_dialogues_has_adapters_without_heads(screen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out/adapters").mkdir(parents=True)
    of = summary(["pfedseq"], ["Ann", "Bo"])
    tables.print_results(of, Path("out"))
    assert "each client's PEFT adapter and head" in screen.getvalue()
    screen.truncate(0)
    columns = {"loss": (0.1, 0.2), "perplexity": (1.1, 1.2), "token_accuracy": (0.9, 0.8)}
    scores = replace(
        of.methods["pfedseq"].scores,
        headline="perplexity",
        test=columns,
        validation=dict.fromkeys(columns, (None, None)),
    )
    row = replace(of.methods["pfedseq"], scores=scores)
    tables.print_results(replace(of, methods={"pfedseq": row}), Path("out"))
    assert "each client's PEFT adapter\n" in screen.getvalue()


def test_clients_that_are_worse_off_are_named_under_the_table(screen):
    harmed = {"pfedseq": {"local": ["Ann", "Bo"], "mean_adapter": ["[Bo]"]}}
    of = summary(["pfedseq", "local"], ["Ann", "Bo"])
    tables.print_results(replace(of, harmed=harmed), Path("out"))
    text = " ".join(" ".join(lines(screen)).split())
    assert "On validation pFedSeq does worse than Local for Ann, Bo" in text
    assert "On validation pFedSeq does worse than the mean adapter alone for [Bo]" in text


def test_of_many_clients_the_worst_are_listed_and_of_many_methods_the_first(screen):
    tables.print_results(summary(list(METHODS), [f"site {n}" for n in range(60)]), Path("out"))
    found = lines(screen)
    listed = [line.split()[1] for line in found if line.startswith(" site ")]
    assert listed == [
        str(n) for n in sorted(range(60), key=lambda n: n * 37 % 101)[: tables.MOST_CLIENT_ROWS]
    ]
    caption = " ".join(" ".join(found).split())
    assert "the 25 worst of 60 clients with" in caption
    assert "the first 6 methods; all are in summary.json" in caption


def row(method):
    value = MeanStd(0.6612, 0.1234)
    ahead = Lead(Interval(0.012, 0.0035, 0.0205), 12, 18, 3)
    keys = (one.key for one in quantities(MEASURES["accuracy"]))
    values = dict.fromkeys(keys, value) | {"best_on_validation": None}
    return ComparisonRow(method, values, ahead, 10.0, 1.25, 123e6, 123e6, {})


@pytest.mark.parametrize(("seeds", "deviation"), [([0], False), ([0, 1, 2], True)])
def test_a_comparison_of_one_seed_has_no_deviation(screen, seeds, deviation):
    rows = tuple(row(name) for name in METHODS)
    of = Comparison(MEASURES["accuracy"], rows, tuple(seeds), "last", 1200, 0)
    tables.print_comparison(of, Path("out"))
    found = lines(screen)
    text = "\n".join(found)
    assert ("±" in text) == deviation
    assert ("what another seed would change" in " ".join(text.split())) != deviation
    assert text.count("+1.20 [+0.35, +2.05]") == len(METHODS) - 1  # not against itself
    assert "optimistic" in text
    assert "66.12" in text
    assert ("n = 1,200, seeds 0, 1, 2" if deviation else "n = 1,200, seed 0") in found[0]
    assert "out/curves.png" in text


def test_one_image_is_one_image(screen):
    tables.print_prepared(Prepared(Path("s"), 1, ("a",), ("b",), 3_200, ("note [x]",)))
    assert lines(screen) == ["1 image, 1 class, 1 owner, 3.2 kB in s", "Note: note [x]"]
