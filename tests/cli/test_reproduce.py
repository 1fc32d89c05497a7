"""`pfedseq reproduce` as a user calls it, on a few of the demo's digits."""

import csv

import pytest
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.errors import InputError

SMALL = [
    *("--preset", "demo", "--rounds", "2", "--set", "data.num_clients=2"),
    *("--set", "data.max_images_per_client=20", "--set", "methods.pfedseq.warmup_rounds=1"),
]


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        return CliRunner().invoke(app, ["reproduce", *arguments, *SMALL])

    return invoke


def test_a_table_is_made_and_its_runs_serve_other_tables(call, tmp_path):
    done = call("table1", "--methods", "local,pfedseq", "--seeds", "0,1")
    assert done.exit_code == 0, done.output
    out = tmp_path / "runs" / "reproduce-demo"
    for name in ("table1.csv", "table1.tex", "table1.png", "table1.svg", "table1-curves.png"):
        assert (out / name).stat().st_size > 0
    assert "Local" in done.output
    assert "there is nothing to compare with" in done.output
    made = sorted(p.parent.relative_to(out / "runs") for p in out.rglob("summary.json"))
    expected = [f"digits/{m}/seed_{s}" for m in ("local", "pfedseq") for s in (0, 1)]
    assert list(map(str, made)) == expected
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    timed = call("time", "--methods", "local,pfedseq", "--seeds", "0,1")
    assert timed.exit_code == 0, timed.output
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == before
    with (out / "time.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["measure"] == "relative_to_local"]
    assert float(rows[0]["mean"]) == pytest.approx(1)
    curves = call("curves", "--finished", "--methods", "local", "--seeds", "0")
    assert curves.exit_code == 0, curves.output
    assert (out / "curves.svg").exists()
    assert not (out / "curves.csv").exists()


def test_a_run_that_diverges_leaves_a_gap_and_says_so(call, tmp_path):
    done = call(
        *("table1", "--methods", "local,fedavg", "--seeds", "0"),
        *("--set", "methods.fedavg.lr=1e30", "--set", "methods.fedavg.max_step=0"),
    )
    assert done.exit_code == 3
    assert "missing digits/fedavg/seed_0" in done.output
    with (tmp_path / "runs" / "reproduce-demo" / "table1.csv").open() as file:
        rows = {r["row"]: r for r in csv.DictReader(file) if r["measure"] == "client_mean"}
    assert rows["fedavg"]["num_seeds"] == "0"
    assert rows["local"]["num_seeds"] == "1"


def test_partitions_need_no_run(call, tmp_path):
    done = call("partitions", "--seeds", "0")
    assert done.exit_code == 0, done.output
    out = tmp_path / "runs" / "reproduce-demo"
    with (out / "partitions-digits.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [sum(int(r[str(c)]) for c in range(10)) for r in rows] == [20, 20]
    assert not (out / "runs").exists()


def test_warmups_beyond_the_run_are_left_out(call):
    done = call("warmup", "--values", "1,2,3", "--seeds", "0")
    assert done.exit_code == 0, done.output
    assert "W = 1" in done.output
    assert "W = 2" not in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("table9",), "there is no experiment 'table9'"),
        (("table2", "--methods", "local"), "--methods does not apply"),
        (("table1", "--values", "3"), "--values is for length and warmup"),
        (("table1", "--dataset", "pacs"), "it has digits"),
        (("table1", "--finished"), "holds no finished run"),
        (("table1", "--seeds", "a"), "must be whole numbers"),
        (("warmup", "--values", "9"), "none of the values is below run.rounds = 2"),
    ],
)
def test_bad_wishes_get_one_sentence(call, arguments, says):
    done = call(*arguments)
    assert isinstance(done.exception, InputError)
    assert says in str(done.exception)


def test_without_a_name_all_are_listed(call):
    done = call()
    assert done.exit_code == 0, done.output
    assert all(name in done.output for name in ("table1", "communication", "partitions"))
    assert "left: from Local, measured just now" in done.output
