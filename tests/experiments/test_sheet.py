"""Sheets, CSV and LaTeX from summaries made by hand."""

import csv

import pytest

from pfedseq.experiments.catalogue import EXPERIMENTS, Arm, Choice
from pfedseq.experiments.paper import Published
from pfedseq.experiments.settings import Scenario, differences, find_scenarios
from pfedseq.experiments.sheet import fill_sheet
from pfedseq.experiments.statistics import MeanStd
from pfedseq.experiments.writing import latex_text, write_csv, write_latex
from pfedseq.runs.records import Cost
from tests.scored import summary_of

PACS = Scenario("pacs", "lab/pacs", "domainnet")
ROUNDS = {"pacs": 40}


def summary(mean, *, seconds=10.0, rounds=5, up=0, down=0, clients=4):
    cost = Cost(up, down, client_seconds=seconds, server_seconds=0.0, evaluate_seconds=99.0)
    return summary_of((mean,) * clients, rounds=rounds, cost=cost, best=mean)


def sheet_of(name, runs, seeds=(0,)):
    experiment = EXPERIMENTS[name]
    arms = experiment.arms(PACS.load(), Choice())
    by_arm = {("pacs", arm): dict(enumerate(found)) for arm, found in runs.items()}
    return fill_sheet(experiment, arms, [PACS], seeds, by_arm, {"PACS": ["rank: 2"]}, ROUNDS)


def line(sheet, key, measure="client_mean"):
    place = [arm.key for arm in sheet.arms].index(key)
    return sheet.column(PACS, measure).cells[place]


def test_ours_stand_beside_the_papers():
    sheet = sheet_of("table1", {"fedavg": [summary(0.5), summary(0.6)], "pfedseq": [summary(0.7)]})
    cell = line(sheet, "fedavg")
    assert cell.ours == MeanStd(pytest.approx(55), pytest.approx(50**0.5))
    assert (cell.num_seeds, cell.paper) == (2, Published(78.19, 0.19))
    assert line(sheet, "local").ours is None
    assert len(sheet.arms) == 13


def test_the_lead_of_pfedseq_is_paired_over_common_seeds():
    """Seed 1 is missing for Local: only seed 0 counts, 70 − 50 on each of its clients."""
    sheet = sheet_of("table1", {"local": [summary(0.5)], "pfedseq": [summary(0.7), summary(0.1)]})
    lead = line(sheet, "local").behind
    assert (lead.mean, lead.low, lead.high) == pytest.approx((20, 20, 20))
    assert line(sheet, "pfedseq").behind is None
    assert line(sheet, "local", "worst_client").behind is None


def test_best_and_second_go_by_the_printed_numbers_and_equals_share():
    runs = {"local": 0.70001, "fedavg": 0.7, "fedrep": 0.65, "ditto": 0.6}
    sheet = sheet_of("table1", {name: [summary(mean)] for name, mean in runs.items()})
    standing = sheet.column(PACS, "client_mean").standing()
    named = {sheet.arms[number].key: place for number, place in standing.items()}
    assert named == {"local": "best", "fedavg": "best", "fedrep": "second"}


def test_agreement_is_that_of_the_orders():
    """The paper on DomainNet: FedAvg < Local < pFedHN < pFedSeq."""
    order = ["fedavg", "local", "pfedhn", "pfedseq"]
    same = {name: [summary(0.1 * place)] for place, name in enumerate(order)}
    reverse = {name: [summary(-0.1 * place)] for place, name in enumerate(order)}
    swapped = dict(zip(["local", "fedavg", "pfedhn", "pfedseq"], same.values(), strict=True))
    for runs, tau in ((same, 1), (reverse, -1), (swapped, 4 / 6)):
        found = sheet_of("table1", runs).column(PACS, "client_mean").agreement()
        assert found == pytest.approx(tau)


def test_time_is_a_rounds_and_relative_to_local():
    sheet = sheet_of("time", {"local": [summary(0.5)], "pfedme": [summary(0.5, seconds=45.0)]})
    assert line(sheet, "pfedme", "seconds_per_round").ours.mean == pytest.approx(9)
    cell = line(sheet, "pfedme", "relative_to_local")
    assert cell.ours.mean == pytest.approx(4.5)
    assert cell.paper.mean == pytest.approx(989.8 / 197.7)
    assert line(sheet, "local", "relative_to_local").paper.mean == 1


def test_traffic_is_counted_per_client_and_for_all_rounds():
    """73,728 parameters of 4 bytes up and as many down, 4 clients, 1 round."""
    one_way = 73_728 * 4 * 4
    sheet = sheet_of(
        "communication", {"pfedseq-one-round": [summary(0.5, rounds=1, up=one_way, down=one_way)]}
    )
    for measure, expected in (
        ("parameters_up", 73_728),
        ("parameters_down", 73_728),
        ("bytes_per_round", 2 * one_way),
        ("bytes_in_all", 40 * 2 * one_way),
    ):
        assert line(sheet, "pfedseq-one-round", measure).ours.mean == expected


def test_csv_has_every_measure_and_keeps_all_digits(tmp_path):
    sheet = sheet_of("table2", {"pfedseq": [summary(1 / 3)]})
    write_csv(sheet, tmp_path / "t.csv")
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert len(rows) == len(sheet.arms) * 7
    row = next(r for r in rows if (r["row"], r["measure"]) == ("pfedseq", "client_mean"))
    assert float(row["mean"]) == 100 * (1 / 3)
    assert (row["std_over_seeds"], row["paper_mean"], row["paper_std"]) == ("", "84.63", "0.24")
    assert row["in_place_of"] == "domainnet"


def test_latex_marks_best_and_second_and_escapes_names(tmp_path):
    runs = {"local": [0.6, 0.62], "fedavg": [0.5, 0.5], "ditto": [0.55, 0.55]}
    sheet = sheet_of("table1", {n: [summary(m) for m in v] for n, v in runs.items()}, seeds=(0, 1))
    write_latex(sheet, tmp_path / "t.tex")
    text = (tmp_path / "t.tex").read_text()
    assert r"Local & \textbf{61.00}{\tiny$\pm$1.41} & 78.67{\tiny$\pm$0.15} \\" in text
    assert r"Ditto & \underline{55.00}{\tiny$\pm$0.00} & 80.74{\tiny$\pm$0.90} \\" in text
    assert r"FedALA & -- & 81.17{\tiny$\pm$0.76} \\" in text
    assert r"\multicolumn{3}{l}{\textit{Hypernetwork-based}} \\" in text
    assert latex_text("a_b & 50 % \\ {x}") == r"a\_b \& 50 \% \textbackslash{} \{x\}"
    assert text.count("{") == text.count("}")
    for row in text.splitlines():
        if row.startswith(("Local", "FedAvg", "pFedSeq")):
            assert row.count("&") == 2


def test_what_differs_from_the_paper_is_stated():
    config = PACS.load(["run.rounds=7", "training.lr=0.005"])
    lines = differences(config, PACS)
    assert "data set: pacs (paper: domainnet)" in lines
    assert "rounds: 7 (paper: 80)" in lines
    assert any(text.startswith("backbone: ") for text in lines)
    assert not any(text.startswith("learning rate:") for text in lines)
    assert "learning rate of the heads: 0.004 (paper: 0.005)" in lines
    assert "examples a client trains on in a round: 64 (paper: all)" in lines
    assert differences(Scenario("cifar100", "cifar100", "cifar100").load(), PACS) != []
    own = Scenario("cifar100", "cifar100", "cifar100")
    assert differences(own.load(), own) == []


def test_a_data_set_is_found_by_its_name_or_the_one_it_stands_for():
    found = [find_scenarios("lab", [name], ()) for name in ("pacs", "domainnet")]
    assert found == [[PACS], [PACS]]
    assert [s.name for s in find_scenarios("lab", [], ("cifar100", "domainnet"))] == [
        "cifar100",
        "pacs",
    ]


def test_an_arm_is_the_same_runs_in_every_experiment():
    """A folder's key must say all that an arm changes: no two arms of one key may differ."""
    config = PACS.load()
    by_key = {}
    for experiment in EXPERIMENTS.values():
        for arm in experiment.arms(config, Choice()):
            known: Arm = by_key.setdefault(arm.key, arm)
            assert (known.method, known.overrides) == (arm.method, arm.overrides)
            config_of_arm = PACS.load(arm.overrides)  # every option is one that pFedSeq knows
            assert config_of_arm.method_config(arm.method)
