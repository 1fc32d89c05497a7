"""A site's worker, from the side of the process that asks it; here it is a thread."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.deployment import warm
from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.warm import ask_worker, log_file, socket_file
from pfedseq.errors import InputError

ASKED = Envelope({"step": "train", "round": 3, "classes": ["a", "ü"]}, bytes(range(256)))
ANSWER = Envelope({"name": "clinic"}, b"")
NODE = {"name": "clinic", "warm": 2.5}


@pytest.fixture(autouse=True)
def no_process(monkeypatch):
    monkeypatch.setattr(warm.subprocess, "Popen", lambda *_, **__: pytest.fail("one is started"))


@pytest.fixture
def folder():
    """Of a short name, as a socket's must be."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place) / "site"


def raw(envelope):
    """What passes over a socket."""
    here, there = socket.socketpair()
    with here, there:
        envelope.send(here)
        return there.recv(2**16)


@pytest.mark.parametrize("envelope", [ASKED, ANSWER], ids=["bytes", "no bytes"])
def test_an_envelope_passes_over_a_socket(envelope):
    here, there = socket.socketpair()
    with here, there:
        envelope.send(here)
        assert Envelope.receive(there) == envelope


@pytest.mark.parametrize("length", [0, 5, 12, len(raw(ASKED)) - 1])
def test_what_is_cut_off_is_no_envelope(length):
    here, there = socket.socketpair()
    with there:
        with here:
            here.sendall(raw(ASKED)[:length])
        with pytest.raises(EOFError, match="has gone"):
            Envelope.receive(there)


def work(folder, *answers):
    """A worker that gives these answers, and dies over a message where one is None."""
    folder.mkdir(exist_ok=True)
    listening, heard = socket.socket(socket.AF_UNIX), []
    listening.bind(str(socket_file(folder)))
    listening.listen()

    def serve():
        with listening:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    heard.append(Envelope.receive(connection))
                    if answer is not None:
                        answer.send(connection)

    threading.Thread(target=serve, daemon=True).start()
    return heard


def test_the_worker_is_told_the_node_config_and_the_request(folder):
    heard = work(folder, ANSWER)
    assert ask_worker(ASKED, NODE, folder, 2.5) == ANSWER
    assert heard == [Envelope({"node": NODE, "request": ASKED.fields}, ASKED.payload)]


def test_a_worker_that_dies_over_a_message_is_asked_once_more(folder):
    heard = work(folder, None, ANSWER)
    assert ask_worker(ASKED, NODE, folder, 2.5) == ANSWER
    assert len(heard) == 2
    assert heard[0] == heard[1]


def test_one_that_dies_twice_is_not(folder):
    heard = work(folder, None, None, ANSWER)
    with pytest.raises(InputError, match=r"died twice over a message; see .*worker\.log"):
        ask_worker(ASKED, NODE, folder, 2.5)
    assert len(heard) == 2


def test_a_problem_is_said_once(folder):
    heard = work(folder, Envelope({"problem": "out of paper"}, b""), ANSWER)
    with pytest.raises(InputError, match=r"^out of paper$"):
        ask_worker(ASKED, NODE, folder, 2.5)
    assert len(heard) == 1


class Process:
    """What `Popen` gives: its worker is there at its third look, or is dead at once."""

    def __init__(self, folder, dead=False):
        self.folder, self.dead, self.looks = folder, dead, 0

    def poll(self):
        self.looks += 1
        if self.looks == 3:
            work(self.folder, ANSWER)
        return 1 if self.dead else None


def start(monkeypatch, process):
    """Replaces the start of a process; gives what it was started with."""
    started = []

    def popen(command, **options):
        options["stdout"].write(b"started\n")
        started.append((command, options))
        return process

    monkeypatch.setattr(warm.subprocess, "Popen", popen)
    return started


def test_where_no_worker_listens_one_is_started(folder, monkeypatch):
    started = start(monkeypatch, Process(folder))
    assert ask_worker(ASKED, NODE, folder, 2.5) == ANSWER
    ((command, options),) = started
    assert command[:3] == [sys.executable, "-m", "pfedseq.deployment.worker"]
    assert command[3:] == [str(folder), "2.5", str(os.getppid())]
    assert options["stdin"] == subprocess.DEVNULL
    assert options["start_new_session"], "it outlives this process"
    assert options["stdout"] is options["stderr"]
    assert log_file(folder).read_text() == "started\n"
    assert folder.stat().st_mode & 0o777 == 0o700, "only the owner may look in"


def test_a_worker_that_does_not_start_is_one_sentence(folder, monkeypatch):
    started = start(monkeypatch, Process(folder, dead=True))
    with pytest.raises(InputError, match=r"does not start; see .*worker\.log"):
        ask_worker(ASKED, NODE, folder, 2.5)
    monkeypatch.setattr(warm, "START_SECONDS", -1.0)
    start(monkeypatch, Process(folder))
    with pytest.raises(InputError, match=r"does not start; see .*worker\.log"):
        ask_worker(ASKED, NODE, folder, 2.5)
    assert len(started) == 1
    assert log_file(folder).read_text() == "started\n" * 2, "what was said before stays"


def test_a_socket_lies_in_the_sites_folder_or_where_its_name_is_short(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    assert socket_file(folder) == folder / "worker.sock"
    fits = folder / ("x" * (warm.LONGEST_SOCKET_NAME - len(str(folder / "x" / "worker.sock")) + 1))
    assert socket_file(fits) == fits / "worker.sock"
    assert len(str(socket_file(fits))) == warm.LONGEST_SOCKET_NAME
    long, other = folder / ("x" * 100), folder / ("y" * 100)
    private = socket_file(long).parent
    assert private.parent == folder.parent
    assert private.stat().st_mode & 0o777 == 0o700
    assert socket_file(long) == private / "worker.sock", "the same every time"
    assert socket_file(other).parent != private
    private.chmod(0o750)
    with pytest.raises(InputError, match="belongs to someone else"):
        socket_file(long)
