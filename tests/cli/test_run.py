"""The command line as a user meets it."""

import json
import sys

import pytest
import torch
from safetensors import safe_open

from pfedseq import __version__, cli
from pfedseq.model.encoders import FAMILIES
from pfedseq.report.console import console
from tests.run_folder import lines

QUICK = """
[run]
methods = ["pfedseq", "local"]
rounds = 4
checkpoint_every = 2
[data]
name = "digits"
num_clients = 3
max_images_per_client = 24
[model]
backbone = "demo"
[training]
lr = 0.05
batch_size = 8
[methods.pfedseq]
warmup_rounds = 1
max_sequence_length = 2
"""


@pytest.fixture
def quick(tmp_path):
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfedseq", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_run_leaves_everything_that_is_promised(command, quick, tmp_path):
    out = tmp_path / "out"
    code, text, _ = command("run", quick, "--out", out)
    assert code == 0
    for word in ("pFedSeq", "Local", "worst", "weighted", "summary.json", "curves.png"):
        assert word in text
    records = lines(out)
    assert [(r["method"], r["round"]) for r in records] == [
        (m, t) for m in ("pfedseq", "local") for t in range(1, 5)
    ]
    assert len(records[0]["test"]["accuracy"]) == 3
    summary = json.loads((out / "summary.json").read_text())
    last = records[3]
    assert summary["methods"]["pfedseq"]["client_mean"] == last["client_mean"]
    assert last["client_mean"] == pytest.approx(sum(last["test"]["accuracy"]) / 3)
    assert last["worst_client"] == min(last["test"]["accuracy"])
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    with safe_open(out / "adapters/pfedseq/client_02/adapter_model.safetensors", "pt") as file:
        assert any("lora_A" in name for name in file.keys())  # noqa: SIM118
    assert not list(out.rglob("*.tmp"))


def test_same_seed_same_bytes_whatever_the_threads_and_the_engine(command, quick, tmp_path):
    command("run", quick, "--out", tmp_path / "a", "--set", "engine.threads=1")
    command("run", quick, "--out", tmp_path / "b", "--set", "engine.threads=3")
    command("run", quick, "--out", tmp_path / "w", "--set", "engine.kind=wire")
    command("run", quick, "--out", tmp_path / "c", "--seed", "1")
    assert lines(tmp_path / "a") == lines(tmp_path / "b") == lines(tmp_path / "w")
    assert lines(tmp_path / "a") != lines(tmp_path / "c")


def test_rounds_may_go_without_an_evaluation_but_the_last(command, quick, tmp_path):
    command("run", quick, "--out", tmp_path / "each")
    code, _, _ = command("run", quick, "--out", tmp_path / "some", "--set", "run.evaluate_every=3")
    assert code == 0
    each, some = lines(tmp_path / "each"), lines(tmp_path / "some")
    assert [(r["round"], "client_mean" in r) for r in some[:4]] == [
        (1, False),
        (2, False),
        (3, True),
        (4, True),
    ]
    assert some[2:4] == each[2:4], "what is not looked at is not changed"
    summaries = [
        json.loads((tmp_path / name / "summary.json").read_text())["methods"]["pfedseq"]
        for name in ("each", "some")
    ]
    for key in ("rounds", "client_mean", "test", "bytes_up"):
        assert summaries[0][key] == summaries[1][key]
    assert (tmp_path / "some" / "curves.png").stat().st_size > 0


def test_a_run_that_was_cut_off_is_resumed_to_the_same_results(
    command, quick, tmp_path, monkeypatch
):
    from pfedseq.runs.folder import RunFolder

    command("run", quick, "--out", tmp_path / "whole")
    append = RunFolder.append

    def crash(self, record):
        append(self, record)
        if record.method == "local" and record.round == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", crash)
        code, _, err = command("run", quick, "--out", tmp_path / "cut")
    assert code == 130
    assert "pfedseq resume" in err
    assert len(lines(tmp_path / "cut")) == 7
    code, _, _ = command("resume", tmp_path / "cut")
    assert code == 0
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    for name in ("pfedseq", "local"):
        path = f"adapters/{name}/client_00/adapter_model.safetensors"
        assert (tmp_path / "cut" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()


def test_options_select_what_runs(command, quick, tmp_path):
    code, _, _ = command(
        "run",
        quick,
        "--out",
        tmp_path / "o",
        "--method",
        "fedrep",
        "--rounds",
        1,
        "--device",
        "cpu",
    )
    assert code == 0
    assert [(r["method"], r["round"]) for r in lines(tmp_path / "o")] == [("fedrep", 1)]
    assert 'device = "cpu"' in (tmp_path / "o" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "run.rouds=3"], "did you mean 'rounds'"),
        (["--set", "data.num_clients=5000"], "5000"),
        (["--method", "fedag"], "did you mean 'fedavg'"),
        (["--set", "model.backbone=./no/such/folder"], "no/such/folder"),
        (["--set", "methods.pfedseq.max_sequence_length=0"], "max_sequence_length"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(command, quick, tmp_path, arguments, says):
    out = tmp_path / "never"
    code, text, err = command("run", quick, "--out", out, *arguments)
    assert code == 2
    assert says in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert text == ""
    assert not out.exists()


def test_a_missing_device_is_said(command, quick, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    code, _, err = command("run", quick, "--out", tmp_path / "o", "--device", "cuda")
    assert code == 2
    assert "'cuda' is not available" in err


def test_an_unwritable_output_is_said(command, quick, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, _, err = command("run", quick, "--out", tmp_path / "file" / "out")
    assert code == 2
    assert "cannot write" in err
    assert len(err.strip().splitlines()) == 1


def test_earlier_results_are_left_alone(command, quick, tmp_path):
    out = tmp_path / "out"
    command("run", quick, "--out", out, "--rounds", 1)
    before = (out / "metrics.jsonl").read_bytes()
    code, printed, err = command("run", quick, "--out", out)
    assert code == 2
    assert "already holds a run" in err
    assert "finished earlier" not in printed, "these rounds are another run's"
    assert (out / "metrics.jsonl").read_bytes() == before


def test_a_warm_up_as_long_as_the_run_is_warned_of(command, quick, tmp_path):
    code, _, err = command(
        "run", quick, "--out", tmp_path / "o", "--method", "pfedseq", "--rounds", 1
    )
    assert code == 0
    assert "warmup_rounds = 1" in err


def test_a_diverging_run_says_what_to_do(command, quick, tmp_path):
    out = tmp_path / "o"
    unbounded = ("--set", "training.lr=1e30", "--set", "training.max_step=0")
    code, _, err = command("run", quick, "--out", out, *unbounded)
    assert code == 2
    assert "diverged" in err


def test_lists_and_version(command):
    assert command("--version")[1].strip() == f"pfedseq {__version__}"
    code, out, _ = command("methods", "--verbose")
    assert code == 0
    assert "warmup_rounds = None " in out
    code, out, _ = command("datasets")
    assert "digits" in out
    code, out, _ = command("presets")
    assert "lab/pacs" in out


def test_every_backbone_is_listed(command, monkeypatch):
    monkeypatch.setattr(console, "width", 250)  # no cell is folded
    code, out, _ = command("backbones")
    assert code == 0
    listed = "".join(out.split())
    for family in FAMILIES.values():
        assert family.example.count("/") == 1
        cells = (family.title, *family.model_types, *family.fast_paths)
        assert all("".join(cell.split()) in listed for cell in cells), family.title
    assert "random:vit-tiny" in listed
    assert "demo" in listed


def test_help_has_examples(command):
    code, out, _ = command("run", "--help")
    assert code == 0
    assert "pfedseq run demo" in out


def test_compare_tabulates_and_is_not_repeated(command, quick, tmp_path):
    out = tmp_path / "out"
    arguments = ("compare", quick, "--methods", "local,fedavg", "--seeds", "0,1", "--rounds", 1)
    code, text, _ = command(*arguments, "--out", out)
    assert code == 0
    assert "FedAvg" in text
    saved = json.loads((out / "comparison.json").read_text())
    assert saved["seeds"] == [0, 1]
    assert set(saved["methods"]) == {"local", "fedavg"}
    assert (out / "local" / "seed_1" / "curves.png").exists()
    before = (out / "local" / "seed_1" / "metrics.jsonl").stat().st_mtime_ns
    assert command(*arguments, "--out", out)[0] == 0
    assert (out / "local" / "seed_1" / "metrics.jsonl").stat().st_mtime_ns == before
    code, _, err = command("compare", quick, "--seeds", "0,x", "--out", out)
    assert code == 2
    assert "whole numbers" in err
