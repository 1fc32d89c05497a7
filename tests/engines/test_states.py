"""Clients' memories: the same in memory and on disk; reading steps leave them alone."""

import os

import pytest
import torch

from pfedseq.engines.local import LocalClients
from pfedseq.engines.states import DiskStates, MemoryStates, TrackedStates
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply
from tests.toys import quadratic_federation, random_centers

CPU = torch.device("cpu")


@pytest.fixture(params=["memory", "disk"])
def states(request, tmp_path):
    return MemoryStates() if request.param == "memory" else DiskStates(tmp_path / "states", CPU)


def test_a_client_that_was_never_put_remembers_nothing(states):
    assert states.get(3) == {}


def test_what_is_put_is_what_one_gets(states):
    states.put(3, {"head": torch.arange(3.0), "seen": torch.tensor(True)})
    states.put(4, {"head": torch.zeros(1)})
    assert states.get(3)["head"].tolist() == [0, 1, 2]
    assert states.get(3)["seen"].dtype == torch.bool
    states.put(3, {"other": torch.ones(2)})
    assert list(states.get(3)) == ["other"], "replaced, not merged"
    assert states.get(4)["head"].tolist() == [0]


def test_what_is_changed_counts_only_once_it_is_put(states):
    states.put(0, {"a": torch.zeros(1)})
    mine = states.get(0)
    mine["b"] = torch.ones(1)
    assert list(states.get(0)) == ["a"]
    states.put(0, mine)
    mine["c"] = torch.ones(1)
    assert list(states.get(0)) == ["a", "b"]


def test_tracking_names_those_that_were_put():
    tracked = TrackedStates(MemoryStates())
    tracked.put(5, {"a": torch.ones(1)})
    tracked.get(4)
    assert tracked.changed == {5}
    assert tracked.get(5)["a"].item() == 1


def test_on_disk_a_tensor_shared_by_two_names_is_kept_for_both(tmp_path):
    states, shared = DiskStates(tmp_path, CPU), torch.arange(4.0)
    states.put(0, {"a": shared, "b": shared, "view": shared[1:3]})
    back = states.get(0)
    assert back["a"].tolist() == back["b"].tolist() == [0, 1, 2, 3]
    assert back["view"].tolist() == [1, 2]


def test_files_of_an_earlier_process_are_not_believed(tmp_path):
    DiskStates(tmp_path, CPU).put(0, {"a": torch.ones(1)})
    assert DiskStates(tmp_path, CPU).get(0) == {}


def test_a_damaged_file_is_named(tmp_path):
    states = DiskStates(tmp_path, CPU)
    states.put(7, {"a": torch.ones(1)})
    (tmp_path / "7.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"client 7.*resume"):
        states.get(7)


def test_discarding_leaves_nothing_behind(tmp_path):
    states = DiskStates(tmp_path / "states", CPU)
    for i in range(3):
        states.put(i, {"a": torch.ones(1)})
    states.discard()
    assert os.listdir(tmp_path) == []
    assert states.get(0) == {}


class Writes(Client):
    """Counts its calls in its memory, whatever the step."""

    def train(self, down):
        self.state["calls"] = self.state.get("calls", torch.tensor(0)) + 1
        return Reply({"calls": self.state["calls"]})

    evaluate = evaluate_mean = export = hello = train

    def personal(self, down):
        raise NotImplementedError


@pytest.mark.parametrize("engine", [LocalClients, WireClients])
@pytest.mark.parametrize("step", ["evaluate", "evaluate_mean", "export", "hello"])
def test_a_reading_step_leaves_the_memory_as_it_is(engine, step, states):
    clients = engine(
        Writes, MethodConfig(), quadratic_federation(random_centers(1), (1,)), states=states
    )
    for _ in range(2):
        clients.call("train", 1, {0: {}})
    clients.call(step, 1, {0: {}})
    assert clients.call("train", 2, {0: {}})[0].tensors["calls"].item() == 3
    assert states.get(0)["calls"].item() == 3, "the memory that the engine was given"


def test_discarding_leaves_what_belongs_to_others(tmp_path):
    states = DiskStates(tmp_path, CPU)
    states.put(0, {"a": torch.ones(1)})
    (tmp_path / "notes.txt").write_text("mine")
    states.discard()
    assert os.listdir(tmp_path) == ["notes.txt"]
