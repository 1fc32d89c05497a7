"""Checkpoints: only what changed is written, and no moment of a kill mixes two rounds."""

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.engines.states import MemoryStates
from pfedseq.errors import InputError
from pfedseq.federation import Server
from pfedseq.runs import checkpoint as module
from pfedseq.runs.checkpoint import Checkpoint
from pfedseq.runs.run import run
from tests.run_folder import lines
from tests.toys import make_setup, random_centers

CPU = torch.device("cpu")


class Counting(Server):
    persistent = ("count",)

    def __init__(self):
        super().__init__(None, make_setup(random_centers(2), (1, 1)))
        self.count = torch.tensor(0)

    def payload(self, i):
        return {}

    def update(self, t, replies):
        self.count = self.count + 1


def remember(checkpoint, *clients, value):
    for i in clients:
        checkpoint.states.put(i, {"x": torch.tensor(value)})


def restored(path):
    """Round, server and clients as a fresh process finds them."""
    checkpoint, server = Checkpoint(path, MemoryStates()), Counting()
    t = checkpoint.load(server, CPU)
    states = [checkpoint.states.get(i) for i in range(3)]
    return t, int(server.count), [int(s["x"]) if s else None for s in states]


def files(path):
    return sorted(file.name for file in path.with_suffix("").iterdir())


def test_only_what_changed_is_written(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint, server = Checkpoint(path, MemoryStates()), Counting()
    remember(checkpoint, 0, 1, value=10)
    checkpoint.save(1, server)
    assert files(path) == ["0.1.safetensors", "1.1.safetensors"]
    remember(checkpoint, 1, 2, value=20)
    server.update(2, {})
    checkpoint.save(2, server)
    assert files(path) == ["0.1.safetensors", "1.2.safetensors", "2.2.safetensors"]
    assert restored(path) == (2, 1, [10, 20, 20])


def test_after_loading_only_what_changes_then_is_written(tmp_path):
    path = tmp_path / "c.safetensors"
    first = Checkpoint(path, MemoryStates())
    remember(first, 0, 1, value=10)
    first.save(1, Counting())
    second, server = Checkpoint(path, MemoryStates()), Counting()
    second.load(server, CPU)
    remember(second, 1, value=30)
    second.save(3, server)
    assert files(path) == ["0.1.safetensors", "1.3.safetensors"]
    assert restored(path) == (3, 0, [10, 30, None])


class Killed(BaseException):
    """Nobody catches it."""


@pytest.mark.parametrize("survives", range(5))
def test_killed_between_any_two_files_it_is_one_round_or_the_other(tmp_path, monkeypatch, survives):
    """Three clients' files and the server's: the new checkpoint counts once the fourth is there."""
    path = tmp_path / "c.safetensors"
    checkpoint, server = Checkpoint(path, MemoryStates()), Counting()
    remember(checkpoint, 0, 1, 2, value=10)
    checkpoint.save(1, server)
    remember(checkpoint, 0, 1, 2, value=20)
    server.update(2, {})
    write, written = module.write_atomically, []

    def dies(file, content):
        if len(written) == survives:
            raise Killed
        written.append(file)
        write(file, content)

    monkeypatch.setattr(module, "write_atomically", dies)
    if survives < 4:
        with pytest.raises(Killed):
            checkpoint.save(2, server)
        assert restored(path) == (1, 0, [10, 10, 10])
    else:
        checkpoint.save(2, server)
        assert restored(path) == (2, 1, [20, 20, 20])


def test_a_missing_or_damaged_file_is_named(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint = Checkpoint(path, MemoryStates())
    remember(checkpoint, 0, value=1)
    checkpoint.save(1, Counting())
    file = tmp_path / "c" / "0.1.safetensors"
    for spoil in (lambda: file.write_bytes(b"x"), file.unlink):
        spoil()
        with pytest.raises(InputError, match=r"0\.1\.safetensors.*delete .*c\.safetensors"):
            restored(path)
    path.write_bytes(b"x")
    with pytest.raises(InputError, match=r"c\.safetensors is not readable"):
        restored(path)


def test_a_run_with_memories_on_disk_is_the_same_run(tmp_path):
    values = {
        "run": {"methods": ["ditto"], "rounds": 2},
        "data": {"num_clients": 2, "max_images_per_client": 12},
        "model": {"backbone": "random:demo"},
        "engine": {"device": "cpu"},
    }
    for kind in ("memory", "disk"):
        run(make_config(values, [f"engine.states={kind}"]), tmp_path / kind)
    assert lines(tmp_path / "disk") == lines(tmp_path / "memory")
    kept = sorted((tmp_path / "disk" / "adapters" / "ditto").iterdir())
    assert len(kept) == 2
    for folder in kept:
        same = tmp_path / "memory" / "adapters" / "ditto" / folder.name
        for file in folder.iterdir():
            assert file.read_bytes() == (same / file.name).read_bytes()
    assert {p.name for p in (tmp_path / "disk" / "checkpoints").iterdir()} == {
        "ditto",
        "ditto.safetensors",
    }, "nothing else stays behind"
