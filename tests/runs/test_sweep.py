"""A sweep: what is finished is kept, what was cut off goes on, and worlds are shared rightly."""

import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.files import claim
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import run
from pfedseq.runs.sweep import SECONDS_BETWEEN_LOOKS, SweepEntry, methods_by_seeds, sweep
from pfedseq.runs.world import World
from tests.run_folder import lines

QUICK = {
    "run": {"rounds": 2, "name": "quick", "checkpoint_every": 1},
    "data": {
        "name": "digits",
        "partition": "dirichlet",
        "alpha": 1.0,
        "num_clients": 2,
        "max_images_per_client": 20,
    },
    "training": {"lr": 0.02, "batch_size": 8},
}


def test_finished_runs_are_not_repeated(tmp_path):
    entries = methods_by_seeds(make_config(QUICK), ["local", "fedavg"], [0, 1])
    labels = ["local/seed_0", "fedavg/seed_0", "local/seed_1", "fedavg/seed_1"]
    assert [entry.label for entry in entries] == labels
    started, finished = [], []
    first = sweep(entries, tmp_path, started.append, finished.append)
    assert started == entries
    assert [folder.path for folder in finished] == [tmp_path / label for label in labels]
    assert list(first) == labels
    more = [*entries, *methods_by_seeds(make_config(QUICK), ["fedrep"], [0])]
    again = sweep(more, tmp_path, started.append)
    assert started[4:] == more[4:]
    assert {label: again[label] for label in labels} == first


def test_each_run_is_as_if_it_were_alone(tmp_path):
    """Methods of one seed get the same partition, each seed its own: what `run` would give."""
    entries = methods_by_seeds(make_config(QUICK), ["local", "fedavg"], [0, 1])
    sweep(entries, tmp_path / "sweep")
    partitions = {}
    for entry in entries:
        alone = tmp_path / "alone" / entry.label
        run(entry.config, alone)
        swept = tmp_path / "sweep" / entry.label
        assert lines(swept) == lines(alone)
        partitions[entry.label] = (swept / "partition.json").read_text()
        assert partitions[entry.label] == (alone / "partition.json").read_text()
    assert partitions["local/seed_0"] == partitions["fedavg/seed_0"]
    assert partitions["local/seed_0"] != partitions["local/seed_1"]


def test_a_sweep_that_was_cut_off_goes_on_where_it_stopped(tmp_path):
    entries = methods_by_seeds(make_config(QUICK), ["local", "fedavg"], [0])
    sweep(entries, tmp_path / "whole")

    def crash_in_fedavg(entry):
        def listen(record):
            if record.method == "fedavg" and record.round == 1:
                raise KeyboardInterrupt

        return listen

    with pytest.raises(KeyboardInterrupt):
        sweep(entries, tmp_path / "cut", crash_in_fedavg)
    local = tmp_path / "cut" / "local" / "seed_0" / "metrics.jsonl"
    before = local.stat().st_mtime_ns
    heard = []
    sweep(entries, tmp_path / "cut", lambda entry: heard.append)
    assert [(r.method, r.round) for r in heard] == [("fedavg", 2)]
    assert local.stat().st_mtime_ns == before
    for entry in entries:
        assert lines(tmp_path / "cut" / entry.label) == lines(tmp_path / "whole" / entry.label)


def test_other_options_do_not_mix_into_one_sweep(tmp_path):
    sweep(methods_by_seeds(make_config(QUICK), ["local"], [0]), tmp_path)
    other = make_config(QUICK, ["training.lr=0.1"])
    with pytest.raises(InputError, match="other options"):
        sweep(methods_by_seeds(other, ["local"], [0]), tmp_path)


@pytest.mark.parametrize("label", ["", "../x", "/x", "a/../../x"])
def test_a_label_names_a_folder_of_the_sweep(tmp_path, label):
    with pytest.raises(InputError, match="cannot name a run"):
        sweep([SweepEntry(label, make_config(QUICK))], tmp_path)


def test_two_runs_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="two runs"):
        sweep([SweepEntry("a", make_config(QUICK))] * 2, tmp_path)


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ("run.methods=['fedavg']", True),
        ("run.rounds=9", True),
        ("run.evaluate_every=2", True),
        ("training.lr=0.5", True),
        ("training.local_epochs=2", True),
        ("methods.fedrep.head_epochs=2", True),
        ("run.seed=1", False),
        ("training.batch_size=4", False),
        ("data.alpha=0.5", False),
        ("adapter.rank=3", False),
        ("model.backbone=random:vit-tiny", False),
        ("auxiliary.num_images=3", False),
        ("engine.device=cuda", False),
    ],
)
def test_a_world_serves_what_it_would_be_built_from(override, same):
    config = make_config(QUICK)
    world = World(config, None, None, ())
    assert world.serves(make_config(QUICK, [override])) is same


def test_a_damaged_summary_is_said(tmp_path):
    folder = RunFolder(tmp_path)
    folder.summary.write_text('{"methods": {"local": {}}}')
    with pytest.raises(InputError, match="not readable"):
        folder.read_summary()


def test_two_processes_share_the_work(tmp_path):
    """A second process joins while the first is at work: none repeats what the other does."""
    work = (
        "import sys, pathlib\n"
        "from tests.runs.test_sweep import shared_entries, sweep\n"
        "out = pathlib.Path(sys.argv[1])\n"
        "sweep(shared_entries(), out, lambda entry: print(entry.label, flush=True))\n"
    )
    command = [sys.executable, "-c", work, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        theirs = [other.stdout.readline().strip()]
        ours = []
        done = sweep(shared_entries(), tmp_path, lambda entry: ours.append(entry.label))
        theirs += other.stdout.read().split()
    assert theirs[0] == "local/seed_0"
    assert sorted(ours + theirs) == ["fedavg/seed_0", "fedrep/seed_0", "local/seed_0"]
    assert ours
    assert sorted(done) == sorted(ours + theirs)


def shared_entries():
    return methods_by_seeds(
        make_config(QUICK, ["run.rounds=6"]), ["local", "fedavg", "fedrep"], [0]
    )


def test_a_killed_process_leaves_its_run_to_another(tmp_path, monkeypatch):
    monkeypatch.setattr("pfedseq.runs.sweep.SECONDS_BETWEEN_LOOKS", 0.05)
    entries = methods_by_seeds(make_config(QUICK), ["local", "fedavg"], [0])
    holds = (
        "import sys, time, pathlib\n"
        "from pfedseq.files import claim\n"
        "with claim(pathlib.Path(sys.argv[1])) as ours:\n"
        "    print(ours, flush=True)\n"
        "    time.sleep(60)\n"
    )
    place = str(entries[0].folder(tmp_path).path)
    with subprocess.Popen([sys.executable, "-c", holds, place], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        begun, told = [], []

        def tell(sentence):
            told.append(sentence)
            holder.kill()  # it dies while we wait for it

        sweep(entries, tmp_path, lambda entry: begun.append(entry.label), tell=tell)
    assert begun == ["fedavg/seed_0", "local/seed_0"]
    assert told == ["waiting for 1 of the runs, which other processes have claimed"]


def test_a_run_in_other_hands_is_waited_for(tmp_path, monkeypatch):
    """It is let go at the third look; that one waits is said once."""
    entries = methods_by_seeds(make_config(QUICK, ["run.rounds=1"]), ["local", "fedavg"], [0])
    begun, told, looks = [], [], []
    with ExitStack() as held:
        assert held.enter_context(claim(entries[0].folder(tmp_path).path))

        def sleep(seconds):
            looks.append(seconds)
            if len(looks) == 2:
                held.close()

        monkeypatch.setattr("pfedseq.runs.sweep.time", SimpleNamespace(sleep=sleep))
        sweep(entries, tmp_path, lambda entry: begun.append(entry.label), tell=told.append)
    assert begun == ["fedavg/seed_0", "local/seed_0"]
    assert told == ["waiting for 1 of the runs, which other processes have claimed"]
    assert looks == [SECONDS_BETWEEN_LOOKS] * 2


def test_a_run_that_fails_ends_the_sweep_unless_somebody_hears_of_it(tmp_path):
    config = make_config(QUICK, ["methods.fedavg.lr=1e30", "methods.fedavg.max_step=0"])
    entries = methods_by_seeds(config, ["fedavg", "local"], [0])
    with pytest.raises(InputError, match="diverged"):
        sweep(entries, tmp_path / "strict")
    problems = {}
    done = sweep(
        entries,
        tmp_path / "lenient",
        failed=lambda entry, problem: problems.update({entry.label: str(problem)}),
    )
    assert list(done) == ["local/seed_0"]
    assert "diverged" in problems["fedavg/seed_0"]
