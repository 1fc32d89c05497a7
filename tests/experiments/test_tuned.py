"""Tables of tuned methods: what is chosen reaches the runs, and one small file keeps everything."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.config import load_config, make_config
from pfedseq.errors import InputError
from pfedseq.experiments.catalogue import Choice
from pfedseq.experiments.reproduce import Reproduction
from pfedseq.experiments.results_file import KeptRun, KeptTrial, ResultsFile
from pfedseq.experiments.tune import Trial
from pfedseq.experiments.tuned import Chosen, Tuning
from pfedseq.runs.folder import RunFolder

SMALL = [
    *("--preset", "demo", "--rounds", "2", "--set", "data.num_clients=2"),
    *("--set", "data.max_images_per_client=20", "--set", "methods.pfedseq.warmup_rounds=1"),
]
TUNED = ("--trials", "2", "--trial-seeds", "7", "--trial-rounds", "1", "--record", "kept.jsonl")


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        return CliRunner().invoke(app, ["reproduce", *arguments, *SMALL])

    return invoke


def test_one_command_tunes_runs_records_and_can_be_repeated(call, tmp_path):
    wanted = ("table1", "--methods", "local,fedavg,pfedseq,yardsticks", "--seeds", "0,1")
    done = call(*wanted, *TUNED)
    assert done.exit_code == 0, done.output
    out = tmp_path / "runs" / "reproduce-demo-tuned"
    for method in ("local", "fedavg", "pfedseq"):
        trials = json.loads((out / "tune" / "digits" / f"{method}.json").read_text())
        assert len(trials) == 2
        assert trials[0]["score"] >= trials[1]["score"], "the best first"
        for seed in (0, 1):
            run = load_config(out / "runs" / "digits" / method / f"seed_{seed}" / "config.toml")
            assert run.method_config(method).lr == trials[0]["values"]["lr"]
            assert run.run.rounds == 2
    tried = [RunFolder(p.parent) for p in (out / "tune").rglob("summary.json")]
    assert len(tried) == 6
    assert {load_config(one.config).run.rounds for one in tried} == {1}
    assert {load_config(one.config).run.seed for one in tried} == {7}
    frozen = load_config(out / "runs/digits/pfedseq-frozen/seed_0/config.toml")
    chosen = json.loads((out / "tune/digits/pfedseq.json").read_text())[0]["values"]["lr"]
    assert frozen.method_config("pfedseq").ablation == "frozen"
    assert frozen.method_config("pfedseq").lr == chosen, "the ablation has the method's options"

    file = ResultsFile.read(tmp_path / "kept.jsonl")
    assert len(file.lines) == 8 * 2 + 3 * 2
    summary = file.runs("digits", "fedavg")[1]
    made = RunFolder(out / "runs/digits/fedavg/seed_1").read_summary().methods["fedavg"]
    assert summary.client_mean == pytest.approx(made.client_mean, abs=1e-5)
    assert summary.cost.bytes_up == made.cost.bytes_up
    markdown = (out / "table1.md").read_text()
    assert "pFedSeq's lead" in markdown
    assert "lr=" in markdown

    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    again = call(*wanted, *TUNED)
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == before
    shutil.rmtree(out)
    shown = call(*wanted, "--from", "kept.jsonl", "--out", "elsewhere")
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "elsewhere" / "table1.md").read_text() == markdown


def test_a_lines_own_options_prevail_over_what_was_chosen(tmp_path):
    """A search may choose L; a figure that varies L keeps its own values of it."""
    chosen = Chosen(tmp_path)
    chosen._write("pfedseq", [Trial("pfedseq", {"max_sequence_length": 30, "lr": 0.5}, 0.8, 1.0)])
    config = chosen.applied(make_config({}), "pfedseq", ("methods.pfedseq.max_sequence_length=3",))
    assert config.method_config("pfedseq").max_sequence_length == 3
    assert config.method_config("pfedseq").lr == 0.5
    assert chosen.applied(make_config({}), "local") == make_config({}), "never searched"
    (tmp_path / "local.json").write_text('[{"values": {}}]')
    with pytest.raises(InputError, match="is not readable"):
        chosen.best("local")


def test_a_search_of_which_every_trial_failed_leaves_the_config_as_it_is(tmp_path):
    chosen = Chosen(tmp_path)
    chosen._write("local", [Trial("local", {"lr": 1e30})])
    assert chosen.trials("local") == [Trial("local", {"lr": 1e30})]
    assert chosen.applied(make_config({}), "local") == make_config({})


def test_seeds_of_the_table_do_not_choose_its_options(call):
    done = call("table1", "--seeds", "0,7", *TUNED)
    assert isinstance(done.exception, InputError)
    assert "seed 7 is in --seeds and in --trial-seeds" in str(done.exception)
    with pytest.raises(InputError, match="at least one seed"):
        Tuning(8, ()).check([0])


def test_a_line_replaces_what_the_file_had_of_it_and_others_stay(tmp_path):
    old, new = Trial("local", {"lr": 0.5}, 0.1, 2.0), Trial("local", {"lr": 0.5}, 0.2, 1.0)
    other = Trial("local", {"lr": 0.25})
    file = ResultsFile()
    file.add([KeptTrial("pacs", old), KeptTrial("pacs", other), KeptTrial("digits", old)])
    file.add([KeptTrial("pacs", new)])
    file.write(tmp_path / "kept.jsonl")
    again = ResultsFile.read(tmp_path / "kept.jsonl")
    assert sorted(again.trials("pacs", "local"), key=str) == sorted([new, other], key=str)
    assert again.trials("digits", "local") == [old]
    assert not any(isinstance(line, KeptRun) for line in again.lines.values())
    (tmp_path / "kept.jsonl").write_text('{"data_set": "pacs"}\n')
    with pytest.raises(InputError, match=r"line 1, is no result"):
        ResultsFile.read(tmp_path / "kept.jsonl")
    with pytest.raises(InputError, match="cannot read results"):
        ResultsFile.read(tmp_path / "nothing.jsonl")


def test_the_lab_has_scenarios_of_its_own():
    """Their configs load, have what they are named for, and nothing of the paper beside them."""
    names = ["cifar100_much", "digits_groups", "cifar100_partial"]
    wanted = Reproduction.of(
        "table1", "lab", names, [0], out=None, choice=Choice(("pfedseq",), yardsticks=True)
    )
    much, groups, partial = (wanted.configs[name] for name in names)
    assert much.data.max_images_per_client == 3000
    assert (groups.data.num_clients, groups.data.num_scanners) == (12, 4)
    assert partial.federation.participation == 0.3
    assert partial.data == load_config("lab/cifar100").data
    assert len(wanted.arms) == 6
    assert wanted.num_runs == 18
    options = {
        arm.key: load_config("lab/cifar100", arm.overrides).method_config("pfedseq")
        for arm in wanted.arms
    }
    assert {
        key: (made.ablation, made.group_cosine, made.server_momentum)
        for key, made in options.items()
    } == {
        "pfedseq": ("none", 0.3, 0),
        "pfedseq-mean": ("frozen", 0, 0),
        "pfedseq-mean-momentum": ("frozen", 0, 0.8),
        "pfedseq-frozen": ("frozen", 0.3, 0),
        "pfedseq-no-groups": ("none", 0, 0),
        "pfedseq-momentum": ("none", 0.3, 0.5),
    }


def test_what_helps_pfedseq_is_offered_to_fedrep():
    (arm,) = [
        arm
        for arm in Reproduction.of(
            "table1", "lab", ["pacs"], [0], None, choice=Choice(("fedrep",), yardsticks=True)
        ).arms
        if arm.key == "fedrep-groups"
    ]
    assert load_config("lab/pacs", arm.overrides).method_config("fedrep").group_cosine == 0.3
