"""A site's node: it answers pfedseq's messages and nothing else, and says why where it does not."""

import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

import httpx
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from pfedseq.deployment import node
from pfedseq.deployment.certificates import make_certificates
from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.node import Link, answered, read_key, run_node
from pfedseq.errors import InputError


@pytest.fixture(autouse=True)
def run_of_flower():
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower does


def asked(content):
    message = Message(content, 7, "train", group_id="3")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def backwards(envelope):
    return Envelope(envelope.fields, envelope.payload[::-1])


def test_what_is_asked_is_answered_and_said():
    said = []
    message = asked(Envelope({"step": "train"}, b"abc").to_records())
    reply = answered(message, backwards, said.append)
    assert Envelope.of_records(reply.content).payload == b"cba"
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert said == ["round 3: asked to train", "round 3: answered train"]


@pytest.mark.parametrize("problem", [InputError("no images of cats"), KeyError("cats")])
def test_what_goes_wrong_is_told_to_the_server_and_the_node_goes_on(problem, capsys):
    def fail(envelope):
        raise problem

    reply = answered(asked(Envelope({}, b"").to_records()), fail, lambda sentence: None)
    assert reply.has_error()
    assert "cats" in reply.error.reason
    assert reply.error.code == 2
    assert ("Traceback" in capsys.readouterr().err) == isinstance(problem, KeyError)


def test_the_message_of_another_app_is_refused_unread():
    """Whatever it holds, nothing but pfedseq's own answer is ever run."""
    foreign = RecordDict({"code": ConfigRecord({"run": "import os"}), "arrays": ArrayRecord({})})
    reply = answered(asked(foreign), pytest.fail, lambda sentence: None)
    assert "does the other side run the same pfedseq?" in reply.error.reason


class Fleet:
    """The SuperLink's fleet interface, with one message to give out, then an end."""

    def __init__(self, message, over=False):
        self.message, self.over = message, over
        self.waiting = [None, (message, get_object_tree(message)), None]
        self.objects = {k: v.deflate() for k, v in get_all_nested_objects(message).items()}
        self.sent, self.pushed, self.confirmed = [], {}, []

    def receive(self):
        if not self.waiting:
            raise KeyboardInterrupt
        return self.waiting.pop(0)

    def pull(self, run, name):
        if self.over:
            raise RunNotRunningException
        return self.objects[name]

    def send(self, message, tree, seconds):
        self.sent.append(message)
        return set(get_all_nested_objects(message)), "session"

    def push(self, run, session, name, content):
        self.pushed[name] = content

    def confirm(self, run, name):
        self.confirmed.append(name)

    def __enter__(self):
        no = pytest.fail  # neither the run nor its app is ever asked for
        return 9, self.receive, self.send, no, no, self.pull, self.push, self.confirm

    def __exit__(self, *_): ...


def serve(monkeypatch, fleet):
    said = []
    monkeypatch.setattr(node.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Link, "connect", lambda self: fleet)
    with pytest.raises(KeyboardInterrupt):
        run_node(Link("link:9092", None, None), "clinic-a", backwards, said.append)
    return said


def test_a_message_is_pulled_answered_and_pushed(monkeypatch):
    fleet = Fleet(asked(Envelope({"step": "train"}, b"abc").to_records()))
    said = serve(monkeypatch, fleet)
    assert said[0] == "site clinic-a has joined the federation at link:9092 as node 9"
    (reply,) = fleet.sent
    assert Envelope.of_records(reply.content).payload == b"cba"
    assert fleet.confirmed == [fleet.message.metadata.message_id]
    assert set(fleet.pushed) == set(get_all_nested_objects(reply))


@pytest.mark.parametrize(
    "problem",
    [
        httpx.HTTPStatusError("Server error '500'\nFor more: …", request=None, response=None),
        KeyError(1),
    ],
)
def test_a_site_that_cannot_deliver_joins_again_and_answers_once_more(monkeypatch, problem, capsys):
    """As the server then sends the message anew; Flower itself would end the process with 0."""
    fleet = Fleet(asked(Envelope({"step": "train"}, b"abc").to_records()))
    fleet.waiting *= 2
    failures = [problem]

    def send(message, tree, seconds):
        if failures:
            raise failures.pop()
        return Fleet.send(fleet, message, tree, seconds)

    fleet.send = send
    said = serve(monkeypatch, fleet)
    assert sum("has joined the federation" in sentence for sentence in said) == 2
    assert sum("the connection failed (" in sentence for sentence in said) == 1
    assert not any("For more" in sentence for sentence in said)
    (reply,) = fleet.sent
    assert Envelope.of_records(reply.content).payload == b"cba"
    assert ("Traceback" in capsys.readouterr().err) == isinstance(problem, KeyError)


def test_a_run_that_has_ended_meanwhile_is_no_trouble(monkeypatch):
    fleet = Fleet(asked(Envelope({}, b"").to_records()), over=True)
    serve(monkeypatch, fleet)
    assert not fleet.sent
    assert not fleet.waiting, "it went on to the next"


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (Link("nowhere", None, None), "must be HOST:PORT"),
        (Link("here:1", None, "a.key"), "needs TLS"),
        (Link("here:1", "none.crt", None), "cannot read none.crt"),
    ],
)
def test_a_way_that_leads_nowhere_is_said(link, says, tmp_path):
    from pathlib import Path

    link = Link(link.address, *(Path(p) if p else None for p in (link.root_certificates, link.key)))
    with pytest.raises(InputError, match=says):
        link.connect()


def test_keys_are_read_and_others_refused(tmp_path):
    made = make_certificates(tmp_path, ["127.0.0.1"], ["clinic-a"])
    private, public = read_key(made.node_key("clinic-a"))
    assert private.public_key() == public
    with pytest.raises(InputError, match="not a private key"):
        read_key(made.authority)


def test_small_and_large_payloads_arrive_alike(monkeypatch):
    """A small one beside the fields, so that a message has three parts; a large one in chunks."""
    small = Envelope({"step": "train", "classes": ["a"]}, b"abc").to_records()
    monkeypatch.setattr("pfedseq.deployment.envelope.SMALL", 2)
    large = Envelope({"step": "train", "classes": ["a"]}, b"abc").to_records()
    assert len(get_all_nested_objects(asked(small))) == 3
    assert len(get_all_nested_objects(asked(large))) == 6
    for content in (small, large):
        assert Envelope.of_records(content) == Envelope({"step": "train", "classes": ["a"]}, b"abc")
