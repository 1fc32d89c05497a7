"""A site's worker in a thread: it answers, says what went wrong, and ends when it should."""

import os
import socket
import tempfile
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.deployment import site_app, warm
from pfedseq.deployment import worker as site_worker
from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.warm import ask_worker, socket_file
from pfedseq.errors import InputError

NOBODY = 2**30
"""No process has that number."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(site_worker, "LOOK_SECONDS", 0.01)


@pytest.fixture
def folder():
    """Of a short name, as a socket's must be."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


@pytest.fixture
def stop(folder, monkeypatch):
    """A worker is there; what is given ends it, as the end of its parent would."""
    over = threading.Event()
    monkeypatch.setattr(site_worker, "_is_there", lambda pid: pid == NOBODY and not over.is_set())
    worker = threading.Thread(target=site_worker.main, args=(folder, 60.0, NOBODY), daemon=True)
    worker.start()
    while worker.is_alive() and not listens(folder):
        pass
    monkeypatch.setattr(warm, "_start", lambda *_: pytest.fail("the worker has ended"))

    def end():
        over.set()
        worker.join(30)
        assert not worker.is_alive()

    yield end
    end()


def listens(folder):
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(socket_file(folder))) == 0


def node(folder):
    return {"name": "clinic", "data": "images", "state": str(folder)}


def ask(folder, fields, payload=b""):
    return ask_worker(Envelope(fields, payload), node(folder), folder, 60.0)


def test_one_message_after_the_other_is_answered(folder, stop, monkeypatch):
    def backwards(site, request):
        return Envelope({"name": site.name, **request.fields}, request.payload[::-1])

    monkeypatch.setattr(site_worker, "answer_here", backwards)
    for t in (1, 2):
        expected = Envelope({"name": "clinic", "round": t}, b"cba")
        assert ask(folder, {"round": t}, b"abc") == expected
    assert socket_file(folder).stat().st_mode & 0o777 == 0o600, "nobody else may ask"
    stop()
    assert not socket_file(folder).exists()


@pytest.mark.parametrize(("warm", "by"), [({}, "worker"), ({"warm": 0}, "itself")])
def test_a_site_may_do_without_a_worker(folder, stop, monkeypatch, warm, by):
    for module, name in ((site_worker, "worker"), (site_app, "itself")):
        said = partial(lambda name, site, request: Envelope({"by": name}, request.payload), name)
        monkeypatch.setattr(module, "answer_here", said)
    request = Envelope({"round": 3}, b"abc").to_records()
    answer = Envelope.of_records(site_app.answered(request, node(folder) | warm, {}))
    assert answer == Envelope({"by": by}, b"abc")


def test_what_went_wrong_is_said_and_the_next_is_answered(folder, stop, monkeypatch, capsys):
    problems = iter([InputError("out of paper"), ValueError("jammed"), None])

    def printer(site, request):
        if (problem := next(problems)) is not None:
            raise problem
        return Envelope({}, b"done")

    monkeypatch.setattr(site_worker, "answer_here", printer)
    with pytest.raises(InputError, match=r"^out of paper$"):
        ask(folder, {})
    assert "paper" not in capsys.readouterr().err
    with pytest.raises(InputError, match=r"^ValueError: jammed$"):
        ask(folder, {})
    assert "Traceback" in capsys.readouterr().err, "its log tells where"
    assert ask(folder, {}).payload == b"done"
    with pytest.raises(InputError, match="unknown key 'x'"):
        ask_worker(Envelope({}, b""), {"x": 1}, folder, 60.0)


def test_a_successors_socket_is_left_alone(folder, stop):
    successor = folder / "successor"
    successor.touch()
    successor.replace(socket_file(folder))
    stop()
    assert socket_file(folder).exists()


def test_a_worker_with_nothing_to_do_ends_and_leaves_nothing(folder):
    socket_file(folder).touch()  # of one that was killed
    site_worker.main(folder, 0.05, os.getpid())
    site_worker.main(folder, 1e9, NOBODY)
    assert list(folder.iterdir()) == []


def test_who_is_gone_or_only_waits_to_be_buried_is_not_there(monkeypatch):
    assert site_worker._is_there(os.getpid())
    assert not site_worker._is_there(NOBODY)
    monkeypatch.setattr(psutil.Process, "status", lambda self: psutil.STATUS_ZOMBIE)
    assert not site_worker._is_there(os.getpid())
