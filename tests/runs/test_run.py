"""A run may be stopped by anything at any time; what goes on is the same run."""

import errno
import os
import signal
from dataclasses import replace

import pytest

from pfedseq.config import dump_config, make_config
from pfedseq.engines.privacy import PrivacyConfig
from pfedseq.errors import InputError, WriteError
from pfedseq.files import refusing_company
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.interrupt import StopAtOnce, finishing_the_round
from pfedseq.runs.run import resume, run, run_methods, tell_nobody
from pfedseq.runs.world import World
from tests.faults.kills import halve
from tests.run_folder import lines

ROUNDS = 3
TINY = {
    "run": {"methods": ["fedavg"], "rounds": ROUNDS},
    "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 8, "image_size": 32},
    "model": {"backbone": "random:vit-tiny"},
    "training": {"lr": 0.02, "batch_size": 8},
    "engine": {"device": "cpu", "threads": 1},
}


def unbroken(record):
    """A listener that does nothing."""


@pytest.fixture(scope="module")
def world():
    return World.build(make_config(TINY))


@pytest.fixture
def play(world, tmp_path):
    """Run in a folder of that name, or go on there; sentences go to the list."""

    def run_here(name, listener=unbroken, told=None, **section):
        updated = world.config.run.model_copy(update=section)
        config = world.config.model_copy(update={"run": updated})
        folder = RunFolder(tmp_path / name)
        if not folder.config.exists():
            RunFolder.create(folder.path, dump_config(config))
        here = World(config, world.data, world.workload, world.sites)
        tell = tell_nobody if told is None else told.append
        run_methods(here, folder, listener, tell)
        return folder

    return run_here


def adapters(folder):
    return {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in (folder.path / "adapters").rglob("*.safetensors")
    }


def assert_same_results(a, b):
    assert lines(a.path) == lines(b.path)
    assert adapters(a) == adapters(b)
    assert adapters(a)


def press_ctrl_c(record):
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_finishes_the_round_and_says_so(play):
    before = signal.getsignal(signal.SIGINT)
    told, heard = [], []

    def listen(record):
        heard.append(record.round)
        if record.round == 2:
            press_ctrl_c(record)

    with pytest.raises(KeyboardInterrupt) as stop:
        play("cut", listen, told, checkpoint_every=3)
    assert not isinstance(stop.value, StopAtOnce)
    assert heard == [1, 2]
    assert told == ["stopping after this round; Ctrl-C again stops at once"]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_a_round_saves_that_round_whatever_checkpoint_every_says(play, monkeypatch):
    from pfedseq.methods.fedavg import FedAvgServer

    update, again = FedAvgServer.update, []

    def interrupted(self, t, replies):
        if t == 2:
            press_ctrl_c(None)
        update(self, t, replies)

    monkeypatch.setattr(FedAvgServer, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        play("cut", checkpoint_every=3)
    monkeypatch.undo()
    cut = play("cut", again.append, checkpoint_every=3)
    assert [record.round for record in again] == [3]
    assert_same_results(cut, play("whole"))


def test_a_second_ctrl_c_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with finishing_the_round(tell_nobody) as interruption:
        press_ctrl_c(None)
        assert interruption.wanted
        with pytest.raises(StopAtOnce):
            press_ctrl_c(None)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_full_disk_stops_cleanly_wherever_it_strikes(play, monkeypatch):
    """Write 1 finds no room, then write 2 of the next attempt, and so on until none does."""
    whole, fsync, calls, faults = play("whole"), os.fsync, 0, []

    def full(handle):
        nonlocal calls
        calls += 1
        if calls == 1 + len(faults):
            halve(handle)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    cut = None
    while cut is None:
        calls = 0
        try:
            cut = play("cut")
        except WriteError as problem:
            faults.append(str(problem))
    assert len(faults) > 5
    for sentence in faults:
        assert "No space left on device" in sentence
    assert all("pfedseq resume" in sentence for sentence in faults[1:])
    assert_same_results(cut, whole)
    assert not list(cut.path.rglob(".*.tmp"))


@pytest.mark.parametrize("payload", ["float32", "int8"])
def test_the_same_config_goes_on_in_its_folder_and_another_does_not(payload, tmp_path):
    """With int8, what the clients still owe the server goes on, too."""
    chosen = f"federation.payload={payload}"
    config, told = make_config(TINY, [chosen]), []

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", stop)
    with pytest.raises(InputError, match=r"fedavg\.lr was 0\.02, is 0\.5"):
        run(make_config(TINY, [chosen, "training.lr=0.5"]), tmp_path / "cut")
    heard = []
    run(config, tmp_path / "cut", heard.append, told.append)
    assert [record.round for record in heard] == [2, 3]
    assert any("unfinished run" in sentence for sentence in told)
    run(config, tmp_path / "whole")
    assert_same_results(RunFolder(tmp_path / "cut"), RunFolder(tmp_path / "whole"))


def test_a_run_killed_before_it_wrote_anything_is_no_obstacle(tmp_path):
    (tmp_path / ".config.toml.123.tmp").write_text("half a conf")
    RunFolder.check_vacant(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_edited_config_does_not_go_on_from_the_old_checkpoint(play):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play("cut", stop)
    with pytest.raises(InputError, match=r"run\.rounds was 3, is 9"):
        play("cut", rounds=9)


def test_a_missing_line_of_the_metrics_is_noticed(play):
    folder = play("cut")
    kept = folder.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(kept[1:]))
    with pytest.raises(InputError, match="lacks round 1 of fedavg"):
        play("cut")


def test_two_processes_do_not_work_on_one_folder(play, tmp_path):
    folder = play("cut")
    with refusing_company(folder.path), pytest.raises(InputError, match="another process"):
        play("cut")


def test_resuming_needs_a_run(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        resume(tmp_path)


def test_what_the_user_should_know_is_told_first(world, tmp_path, monkeypatch):
    noted, told = replace(world, notes=("one thing", "another")), []
    monkeypatch.setattr(World, "build", lambda config, *_: noted)

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(world.config, tmp_path / "out", stop, told.append)
    assert told == ["one thing", "another"]


def test_resuming_tells_of_the_rounds_that_were_left(tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_config(TINY), tmp_path, stop)
    heard = []
    summary = resume(tmp_path, heard.append)
    assert [record.round for record in heard] == [2, 3]
    assert summary == RunFolder(tmp_path).read_summary()
    assert summary.methods["fedavg"].rounds == ROUNDS


def test_what_private_updates_guarantee_is_in_the_summary(play, monkeypatch):
    """That of all the rounds of a method, and of all methods."""
    monkeypatch.setattr(PrivacyConfig, "spent", lambda self, rounds, methods: {"x": rounds / 4})
    assert play("private").read_summary().epsilon == {"x": ROUNDS / 4}


def test_a_run_with_memories_on_disk_is_the_same_run(tmp_path):
    folders = {kind: RunFolder(tmp_path / kind) for kind in ("memory", "disk")}
    for kind, folder in folders.items():
        states = [f"engine.states={kind}", "run.methods=['ditto']"]
        run(make_config(TINY, states), folder.path)
    assert_same_results(*folders.values())
    left = {path.name for path in (tmp_path / "disk" / "checkpoints").iterdir()}
    assert left == {"ditto"}, "nothing else stays behind"
