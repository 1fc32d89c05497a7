"""Checkpoints: two whole ones at any time, and nothing foreign or damaged is ever used."""

import json
import os

import pytest
import torch
from torch import nn

from pfedseq.engines.states import MemoryStates
from pfedseq.errors import InputError
from pfedseq.federation import Server, Setup
from pfedseq.params import Params
from pfedseq.runs.checkpoint import LARGE_BYTES, Checkpoints, Slot, newest_server

LARGE = LARGE_BYTES // 4


class Counter(Server):
    """A server with everything that can be remembered: a tensor, a network, its optimizer."""

    persistent = ("large", "network", "optimizer")

    def __init__(self):
        super().__init__(None, Setup(Params(torch.zeros(1, 1), torch.zeros(1)), (1, 1), 9, 0))
        self.large = torch.zeros(LARGE)
        self.network = nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.network.parameters())

    def payload(self, i):
        return {}

    def update(self, t, replies):
        self.large = self.large + t
        self.optimizer.zero_grad()
        self.network(torch.ones(2)).sum().backward()
        self.optimizer.step()


class Asked(MemoryStates):
    """Notes whose memory was asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get(self, i):
        self.asked.append(i)
        return super().get(i)


class Run:
    """Three clients of which only the first changes, with a checkpoint after every round."""

    def __init__(self, folder, **made_with):
        self.kept = Asked()
        self.checkpoints = Checkpoints(folder, self.kept, made_with)
        self.states = self.checkpoints.states
        self.server = Counter()
        self.asked = self.kept.asked

    def play(self, rounds):
        for t in rounds:
            self.server.update(t, {})
            own = {"own": torch.full((3,), 10.0 * t), "wide": torch.ones(LARGE) * t}
            self.states.put(0, own)
            if t == 1:
                for i in (1, 2):
                    self.states.put(i, {"own": torch.full((3,), float(i))})
            self.checkpoints.save(t, self.server)

    def load(self):
        told = []
        return self.checkpoints.load(self.server, torch.device("cpu"), told.append), told


def memory(run):
    state = run.server.optimizer.state_dict()["state"]
    return [
        run.server.large,
        *run.server.network.parameters(),
        *(value for i in sorted(state) for _, value in sorted(state[i].items())),
        *(tensor for i in range(3) for _, tensor in sorted(run.states.get(i).items())),
    ]


def assert_equal_memories(a, b):
    assert len(memory(a)) == len(memory(b)) == 3 + 2 * 3 + 4
    for x, y in zip(memory(a), memory(b), strict=True):
        assert torch.equal(x, y)


@pytest.fixture
def after(tmp_path):
    """What a run remembers after t rounds."""
    torch.manual_seed(0)
    start = Counter().network.state_dict()

    def play(t, folder="other", **made_with):
        run = Run(tmp_path / folder, **made_with)
        run.server.network.load_state_dict(start)
        run.play(range(1, t + 1))
        return run

    return play


def slots(folder):
    """The manifests' folders, the newest checkpoint first."""
    by_round = {
        json.loads(path.read_text())["round"]: path.parent
        for path in folder.glob("*/manifest.json")
    }
    return [by_round[t] for t in sorted(by_round, reverse=True)]


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_all_that_is_remembered_comes_back(after, tmp_path, rounds):
    whole = after(rounds, "c")
    fresh = Run(tmp_path / "c")
    assert fresh.load() == (rounds, [])
    assert_equal_memories(whole, fresh)


def test_without_a_checkpoint_one_starts_at_the_beginning(tmp_path):
    assert Run(tmp_path / "none").load() == (0, [])


def test_going_on_changes_nothing(after, tmp_path):
    after(3, "c")
    resumed = Run(tmp_path / "c")
    resumed.load()
    resumed.play(range(4, 7))
    assert_equal_memories(resumed, after(6))
    again = Run(tmp_path / "c")
    assert again.load() == (6, [])
    assert_equal_memories(again, resumed)


def test_only_what_changed_is_asked_for_and_written(after, tmp_path):
    run = after(2, "c")
    assert run.asked == [0, 1, 2, 0, 1, 2], "each slot gets everybody once"
    run.asked.clear()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*.safetensors")}
    run.play([3])
    assert run.asked == [0]
    after_files = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*.safetensors")
    }
    new = {path for path in after_files if before.get(path) != after_files[path]}
    assert len(new) == 4, "the server's large tensor and its rest, client 0's two"
    assert len(after_files) == 2 * 6, "what no checkpoint needs is gone"


def test_a_client_that_changed_between_a_slots_turns_is_in_both(after, tmp_path):
    """A slot is written every other time, and must not miss what changed in the round between."""
    run = after(2, "c")
    run.states.put(2, {"own": torch.tensor([7.0])})
    run.checkpoints.save(3, run.server)
    run.checkpoints.save(4, run.server)
    fresh = Run(tmp_path / "c")
    assert fresh.load()[0] == 4
    assert fresh.states.get(2)["own"].tolist() == [7.0]


def parts(folder):
    return sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda slot: flip(slot / "manifest.json"),
        lambda slot: (slot / "manifest.json").write_bytes(b""),
        lambda slot: (slot / "manifest.json").write_bytes(b"\xff\x00"),
        lambda slot: (slot / "manifest.json").write_text("[1]"),
        lambda slot: flip(parts(slot)[0]),
        lambda slot: flip(parts(slot)[-1]),
        lambda slot: parts(slot)[-1].write_bytes(parts(slot)[-1].read_bytes()[:-1]),
        lambda slot: parts(slot)[0].unlink(),
    ],
    ids=["flip", "empty", "binary", "list", "small part", "large part", "cut", "gone"],
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(after, tmp_path, damage):
    after(5, "c")
    newest, older = slots(tmp_path / "c")
    damage(newest)
    fresh = Run(tmp_path / "c")
    t, told = fresh.load()
    assert t == 4
    assert len(told) == 1
    assert "damaged" in told[0]
    assert "round 4" in told[0]
    assert_equal_memories(fresh, after(4))
    fresh.play([5])
    again = Run(tmp_path / "c")
    assert again.load() == (5, []), "what was damaged is written anew"
    damage(older)
    assert Run(tmp_path / "c").load()[0] == 5


def test_damage_in_the_older_slot_does_not_survive_its_next_turn(after, tmp_path):
    """The next checkpoint there names the damaged file again: it must be written anew."""
    after(5, "c")
    _, older = slots(tmp_path / "c")
    for path in parts(older):
        flip(path)
    run = Run(tmp_path / "c")
    assert run.load() == (5, [])
    run.play([6])
    assert Run(tmp_path / "c").load() == (6, [])


def test_where_both_are_damaged_nothing_is_guessed(after, tmp_path):
    after(5, "c")
    for slot in slots(tmp_path / "c"):
        flip(parts(slot)[0])
    with pytest.raises(InputError, match=r"no checkpoint in .* is readable"):
        Run(tmp_path / "c").load()


@pytest.mark.parametrize("rounds", [4, 5])
def test_the_newest_whole_checkpoint_can_be_looked_at(after, tmp_path, rounds):
    """In either slot; a round's number is added to the large tensor."""
    assert newest_server(tmp_path / "c") is None
    after(rounds, "c", version="1")
    newest, older = slots(tmp_path / "c")
    checkpoint, tensors = newest_server(tmp_path / "c")
    assert (checkpoint.round, checkpoint.made_with) == (rounds, {"version": "1"})
    assert tensors["large"].unique().tolist() == [sum(range(rounds + 1))]
    assert tensors["seats/clients"].tolist() == [0, 1]
    for _, there in Slot(newest).load(checkpoint, torch.device("meta")):
        assert {tensor.device.type for tensor in there.values()} == {"meta"}
    before = sorted(newest.iterdir())
    flip(parts(newest)[-1])
    assert newest_server(tmp_path / "c")[0].round == rounds - 1
    assert sorted(newest.iterdir()) == before, "it is only looked at"
    flip(older / "manifest.json")
    with pytest.raises(InputError, match=r"no checkpoint in .* is readable"):
        newest_server(tmp_path / "c")


def test_a_checkpoint_of_something_else_is_refused_by_name(after, tmp_path):
    after(2, "c", version="1", kernel="avx2")
    with pytest.raises(InputError, match=r"kernel was avx2, is avx512"):
        Run(tmp_path / "c", version="1", kernel="avx512").load()
    with pytest.raises(InputError, match="version was 1, is not set"):
        Run(tmp_path / "c", kernel="avx2").load()
    assert Run(tmp_path / "c", version="1", kernel="avx2").load()[0] == 2


def test_a_checkpoint_with_other_tensors_is_refused(after, tmp_path):
    after(2, "c")
    run = Run(tmp_path / "c")
    run.server.large = torch.zeros(LARGE + 1)
    with pytest.raises(InputError, match="other tensors"):
        run.load()


class Crash(BaseException):
    """The process dies."""


@pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
def test_a_crash_at_any_moment_leaves_a_whole_checkpoint(after, tmp_path, monkeypatch, call):
    """Round 4's checkpoint is cut off at every one of its calls to the disk in turn."""
    real, number = getattr(os, call), 0
    while True:
        number += 1
        run, calls = after(3, f"c{number}"), 0

        def crash(*arguments, number=number, **more):
            nonlocal calls
            calls += 1
            if calls == number:
                raise Crash
            return real(*arguments, **more)

        monkeypatch.setattr(os, call, crash)
        try:
            run.play([4])
        except Crash:
            pass
        else:
            break
        finally:
            monkeypatch.setattr(os, call, real)
        fresh = Run(tmp_path / f"c{number}")
        t, told = fresh.load()
        assert t in (3, 4)
        assert told == []
        assert_equal_memories(fresh, after(t))
        fresh.play(range(t + 1, 6))
        assert_equal_memories(fresh, after(5))
        assert not list((tmp_path / f"c{number}").rglob(".*.tmp"))
    assert number > 4
