"""Sites that die, dawdle, return, or are not who they seem: on an in-process grid."""

import logging
import time

import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from flwr.app import Error, Message

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.site_folder import SiteFolder, SiteMemory
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply
from pfedseq.methods import METHODS
from tests.deployment.grid import CPU, InProcessGrid, connect, federation
from tests.toys import make_setup, quadratic_federation, random_centers

CENTERS, SIZES = random_centers(3), (4, 2, 3)


class Counting(Client):
    """Counts how often it was trained, in its memory and in its reply."""

    def train(self, down):
        self.state["count"] = self.state.get("count", torch.zeros(())) + 1
        if "fail" in down:
            raise InputError("out of paper")
        return Reply({"count": self.state["count"]})

    def personal(self, down):
        return self.task.initial


class CountingMethod:
    client = Counting


@pytest.fixture
def sites(tmp_path):
    toys = quadratic_federation(CENTERS, SIZES)
    return federation(tmp_path, CountingMethod, MethodConfig(), toys)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("pfedseq.deployment.clients.LOOK_SECONDS", 0.0)


def counts(replies):
    return {i: int(reply.tensors["count"]) for i, reply in replies.items()}


def train(clients, t, **down):
    return counts(clients.call("train", t, {i: dict(down) for i in clients.ids}))


def test_who_does_not_answer_in_time_is_absent_and_goes_on_with_its_memory(sites, caplog):
    clients = connect(InProcessGrid(sites), 3, seconds=0.3)
    assert train(clients, 1) == {0: 1, 1: 1, 2: 1}
    sites[1].online = False
    assert train(clients, 2) == {0: 2, 2: 2}
    assert "site b did not answer" in caplog.text
    sites[1].restart(number=555)
    assert train(clients, 3) == {0: 3, 1: 2, 2: 3}


def test_answers_are_put_where_the_server_computes(sites):
    clients = connect(InProcessGrid(sites), 3)
    clients.device = torch.device("meta")
    replies = clients.call("train", 1, {i: {} for i in clients.ids})
    assert [reply.tensors["count"].device for reply in replies.values()] == [clients.device] * 3


def test_a_late_answer_is_not_taken_for_the_next_rounds(sites):
    clients = connect(InProcessGrid(sites), 3, seconds=0.3)
    sites[1].faults = ["late"]
    assert train(clients, 1) == {0: 1, 2: 1}
    assert train(clients, 2) == {0: 2, 1: 2, 2: 2}


def test_what_is_there_in_time_is_taken_however_it_is_fetched(sites):
    """The time is over once all have been asked, and the answers come one at each look."""

    class OneByOne(InProcessGrid):
        def pull_messages(self, message_ids):
            return super().pull_messages([n for n in message_ids if n in self.replies][:1])

    clients = connect(OneByOne(sites), 3)
    clients.seconds, honest = 0.2, sites[0].reply
    sites[0].reply = lambda content: time.sleep(0.3) or honest(content)
    assert train(clients, 1) == {0: 1, 1: 1, 2: 1}


def test_messages_that_the_superlink_refuses_are_sent_again(sites):
    """It takes all of a call's messages, or none."""

    class Full(InProcessGrid):
        refusals = 0

        def push_messages(self, messages):
            self.refusals -= 1
            return super().push_messages(messages) if self.refusals < 0 else []

    grid = Full(sites)
    grid.refusals = 1
    clients = connect(grid, 3)
    grid.refusals = 2
    assert train(clients, 1) == {0: 1, 1: 1, 2: 1}
    assert [len(site.heard) for site in sites] == [2, 2, 2]


def test_a_server_that_goes_back_finds_the_memory_of_then(sites):
    """Rounds 1 to 3, the last checkpoint after round 1: round 2 is run again and counts 2."""
    grid = InProcessGrid(sites)
    clients = connect(grid, 3)
    for t in (1, 2, 3):
        assert set(train(clients, t).values()) == {t}
        clients.kept_at = lambda t: 1
    members = clients.roll.members
    again = connect(grid, 3, members=members)
    again.kept_at = lambda t: 1
    assert set(train(again, 2).values()) == {2}
    assert set(train(again, 3).values()) == {3}


def test_memory_is_kept_as_far_back_as_the_server_may_go(tmp_path):
    memory = SiteMemory(tmp_path / "memory")
    for t in range(1, 6):
        for k in range(2):
            memory.put((t, k), {"at": torch.tensor([t, k])}, kept=max(0, t - 2))
    stems = sorted(file.stem for file in (tmp_path / "memory").glob("*.safetensors"))
    assert stems == ["000003-001", "000004-000", "000004-001", "000005-000", "000005-001"]
    assert memory.before((4, 0), CPU)["at"].tolist() == [3, 1]
    assert memory.before((5, 1), CPU)["at"].tolist() == [5, 0]
    assert memory.before((9, 0), CPU)["at"].tolist() == [5, 1]
    memory.put((4, 1), {"at": torch.tensor([4, 1])}, kept=2)
    assert memory.before((9, 0), CPU)["at"].tolist() == [4, 1], "what came after did not happen"


def test_damaged_memory_is_one_sentence(tmp_path):
    memory = SiteMemory(tmp_path / "memory")
    memory.put((1, 0), {"x": torch.ones(3)}, kept=0)
    (tmp_path / "memory" / "000001-000.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="not readable"):
        memory.before((2, 0), CPU)


def test_a_failing_client_is_absent_and_its_reason_is_logged(sites, caplog):
    clients = connect(InProcessGrid(sites), 3)
    down = {0: {}, 1: {"fail": torch.ones(1)}, 2: {}}
    assert counts(clients.call("train", 1, down)) == {0: 1, 2: 1}
    assert "site b failed: out of paper" in caplog.text
    assert len(sites[1].heard) == 2, "a hello and one message: sending again would not help"
    with pytest.raises(InputError, match="no site could train: site a failed: out of paper"):
        train(clients, 2, fail=torch.ones(1))


CARD = {"name": "b", "folder": "f", "backbone": "weights", "version": "1", "memory": ""}


@pytest.mark.parametrize(
    "content",
    [
        Envelope({"name": "b"}, b""),
        Envelope({}, b"no tensors"),
        Envelope({"x": 1}, b""),
        Envelope(CARD | {"memory": 5}, b""),
        Envelope(CARD | {"memory": "9" * 5000 + "-1:a"}, b""),
        Envelope(CARD | {"name": "b\x1b[2J"}, b""),
    ],
    ids=["card", "bytes", "fields", "types", "digits", "escape"],
)
def test_a_site_that_answers_nonsense_is_left_out_and_the_round_goes_on(sites, caplog, content):
    clients = connect(InProcessGrid(sites), 3)
    honest = sites[1].reply
    sites[1].reply = lambda asked: garbled(honest(asked), content)
    assert train(clients, 1) == {0: 1, 2: 1}
    assert "site b: " in caplog.text
    assert len(sites[1].heard) == 2, "asking again would not help"
    sites[1].restart()
    assert train(clients, 2) == {0: 2, 2: 2}, "nor is its hello after a restart"
    sites[1].reply = honest
    sites[1].restart()
    assert train(clients, 3) == {0: 3, 1: 2, 2: 3}


def garbled(records, content):
    """The site's reply with other fields, or else other bytes."""
    true = Envelope.of_records(records)
    return Envelope(content.fields or true.fields, content.payload or true.payload).to_records()


def test_a_reply_that_is_too_large_is_left_out(sites, caplog):
    clients = connect(InProcessGrid(sites), 3)
    sizes = []
    clients.roll.note = lambda event, site, **more: sizes.append(more.get("bytes"))
    assert train(clients, 1) == {0: 1, 1: 1, 2: 1}
    clients.roll.mailbox.largest = min(sizes) / 2
    with pytest.raises(InputError, match=r"its reply is larger than .* MB \(flower\.max_reply_mb"):
        train(clients, 2)
    clients.roll.mailbox.largest = 2 * max(sizes[:3])
    assert train(clients, 3) == {0: 3, 1: 3, 2: 3}


def test_nonsense_before_the_run_is_refused_with_one_sentence(sites):
    honest = sites[1].reply
    sites[1].reply = lambda asked: garbled(honest(asked), Envelope({}, b"no tensors"))
    with pytest.raises(InputError, match=r"site 101: a message of 10 bytes"):
        connect(InProcessGrid(sites), 3)


def test_a_client_that_is_killed_again_and_again_is_left_out(sites):
    clients = connect(InProcessGrid(sites), 3, seconds=30.0)
    sites[0].faults = ["crash"] * 3
    assert train(clients, 1) == {1: 1, 2: 1}
    sites[0].faults = ["crash"] * 2
    assert train(clients, 2) == {0: 1, 1: 2, 2: 2}


def test_an_old_messages_failure_does_not_make_a_third(sites):
    """Site a dies with its message and comes back; the SuperLink then gives up the first one."""
    grid = InProcessGrid(sites)
    clients = connect(grid, 3, seconds=30.0)
    sites[0].faults = ["lost", None, "late"]  # round 1, the hello of the restarted, round 1 again
    look = clients.roll.look

    def returning():
        online = look()
        if not sites[0].online:
            sites[0].restart()
        elif len(sites[0].heard) == 4:
            first, second = sites[0].heard[1], sites[0].heard[3]
            grid.replies.setdefault(
                first.metadata.message_id, Message(Error(5, "gone"), reply_to=first)
            )
            if first.metadata.message_id in seen:
                grid.replies[second.metadata.message_id] = grid._reply(sites[0], second)
            seen.add(first.metadata.message_id)
        return online

    seen = set()
    clients.roll.look = returning
    assert train(clients, 1) == {0: 1, 1: 1, 2: 1}
    assert len(sites[0].heard) == 4, "two hellos, the message and the message again"


def test_sites_are_numbered_by_name_and_registered_names_win(tmp_path):
    toys = quadratic_federation(CENTERS, SIZES)
    named = federation(tmp_path, CountingMethod, MethodConfig(), toys, ("10", "9", "clinic"))
    assert connect(InProcessGrid(named), 3).names == ("9", "10", "clinic")
    named[0].registered = "hospital"
    assert connect(InProcessGrid(named), 3).names == ("9", "clinic", "hospital")


def test_two_sites_of_one_name_are_refused(tmp_path):
    toys = quadratic_federation(CENTERS, SIZES)
    sites = federation(tmp_path, CountingMethod, MethodConfig(), toys)
    sites[2].name = "a"
    with pytest.raises(InputError, match="two sites are called a"):
        connect(InProcessGrid(sites), 3)


def test_sites_that_never_come_are_counted(sites):
    sites[1].online = False
    with pytest.raises(InputError, match=r"only 2 of 3 sites said hello within 0.2 seconds \(a, c"):
        connect(InProcessGrid(sites), 3, seconds=0.2)


def test_a_run_goes_on_with_those_of_its_sites_that_are_there(sites, caplog):
    grid = InProcessGrid(sites)
    members = connect(grid, 3).roll.members
    sites[1].online = False
    clients = connect(grid, 3, seconds=0.2, members=members)
    assert clients.names == ("a", "b", "c")
    assert train(clients, 1) == {0: 1, 2: 1}
    sites[1].restart()
    assert train(clients, 2) == {0: 2, 1: 1, 2: 2}


def test_strangers_and_changed_data_are_not_asked(sites, tmp_path, caplog):
    grid = InProcessGrid(sites[:2])
    clients = connect(grid, 2, seconds=0.2)
    grid.sites = sites
    assert train(clients, 1) == {0: 1, 1: 1}
    while not clients.roll.strangers:
        clients.roll.look()
    assert clients.members(2, (0, 1)) == [0, 1]
    assert "site c was not part of the run at its start" in caplog.text
    assert clients.members(3, (0, 1)) == [0, 1]
    assert len(sites[2].heard) == 1, "it is told once"
    other = federation(
        tmp_path, CountingMethod, MethodConfig(), quadratic_federation(CENTERS[:1], (9,))
    )
    sites[0].equip = other[0].equip
    sites[0].restart()
    assert train(clients, 2) == {1: 2}
    assert "site a has returned with different data" in caplog.text


def test_names_in_a_message_lead_nowhere_else(tmp_path):
    folder = SiteFolder(tmp_path / "site")
    for run, method in (("../x", "m"), ("r", "../../m"), ("", "m"), ("a/b", "m"), ("r", "")):
        with pytest.raises(InputError, match="refused"):
            folder.run(run, method)
    assert (tmp_path / "site").stat().st_mode & 0o077 == 0, "nobody else may read it"


def test_the_head_stays_at_the_site(tmp_path, caplog):
    """pFedSeq's replies carry Δ only; ω lies in the site's folder."""
    caplog.set_level(logging.DEBUG)
    method = METHODS["pfedseq"]
    config = method.config(lr=0.1)
    sites = federation(tmp_path, method, config, quadratic_federation(CENTERS, SIZES))
    clients = connect(InProcessGrid(sites), 3)
    server = method.server(config, make_setup(CENTERS, SIZES))
    replies = clients.call("train", 1, {i: server.payload(i) for i in clients.ids})
    assert all(set(reply.tensors) == {"delta"} for reply in replies.values())
    kept = SiteFolder(tmp_path / "a").memory("r", "toy").before((2, 0), CPU)
    assert kept["head"].shape == CENTERS[0].head.shape
