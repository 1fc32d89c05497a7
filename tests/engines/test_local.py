"""The engine in this process: threads enough for all who wait for each other."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pfedseq.engines import local
from pfedseq.engines.local import LocalClients
from pfedseq.federation import Client, MethodConfig, Reply
from tests.toys import quadratic_federation, random_centers

SITES = quadratic_federation(random_centers(4), (1, 1, 1, 1))


class Threads(Client):
    """Replies with the number of PyTorch's threads, or fails where it is told to."""

    def train(self, down):
        if "fail" in down:
            raise RuntimeError("out of paper")
        return Reply({"threads": torch.tensor(torch.get_num_threads())}, {"train_loss": 1.0})

    def personal(self, down):
        raise NotImplementedError


def make(**options):
    return LocalClients(Threads, MethodConfig(), SITES, **options)


@pytest.mark.parametrize(
    ("threads", "together", "devices", "pools"),
    [(1, 1, 1, [1, 1]), (3, 4, 1, [3, 12]), (4, 2, 2, [2, 2, 8]), (1, 3, 2, [1, 1, 6])],
)
def test_each_member_of_each_group_has_a_thread(monkeypatch, threads, together, devices, pools):
    """Those that meet in a pass wait for all: with fewer threads they would wait for ever."""
    asked = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers, **options):
            asked.append(workers)
            super().__init__(workers, **options)

    monkeypatch.setattr(local, "ThreadPoolExecutor", Pool)
    make(threads=threads, clients_per_pass=together, copies=[SITES] * (devices - 1))
    assert asked == pools


def test_pytorch_is_held_to_its_threads_and_every_reply_tells_its_seconds():
    before = torch.get_num_threads()
    try:
        for held in (2, 1):
            clients = make(threads=2, clients_per_pass=2, threads_per_client=held)
            assert torch.get_num_threads() == held
            replies = clients.call("train", 1, {3: {}, 0: {}, 1: {}})
            assert list(replies) == [3, 0, 1], "in the order in which they were addressed"
            for reply in replies.values():
                assert reply.tensors["threads"].item() == held
                assert reply.metrics["train_loss"] == 1.0
                assert reply.metrics["train_seconds"] > 0
    finally:
        torch.set_num_threads(before)


def test_all_clients_are_there_from_the_start():
    clients = make()
    for ids in (clients.ids, clients.members(1, ()), clients.participants(7)):
        assert list(ids) == [0, 1, 2, 3]


def test_a_client_that_fails_is_heard_of():
    with pytest.raises(RuntimeError, match="out of paper"):
        make().call("train", 1, {0: {}, 1: {"fail": torch.ones(1)}, 2: {}})
    assert make().call("train", 1, {}) == {}


def test_an_engine_keeps_the_memory_that_its_passes_free(monkeypatch):
    called = []
    monkeypatch.setattr(local, "keep_freed_memory", lambda: called.append("before the threads"))
    make()
    assert called == ["before the threads"]
