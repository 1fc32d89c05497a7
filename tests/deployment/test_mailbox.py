"""The server's mailbox: what one site puts there keeps nobody else's reply from the server."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from pfedseq.deployment import mailbox
from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.mailbox import Mailbox
from pfedseq.deployment.posting import BY_ITSELF


class SuperLink:
    """What a SuperLink holds of replies: their heads, which it checks, and parts, unchecked."""

    def __init__(self):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower does
        self.listed, self.parts, self.confirmed, self.pulled = [], {}, [], []
        self.forgotten = set()

    def put(self, to, message):
        """A site's reply to the message `to`; returns the names of its parts."""
        message.metadata.__dict__["_message_id"] = message.object_id
        head = message_to_proto(message)
        head.metadata.reply_to_message_id = to
        head.metadata.message_id = message.object_id
        self.listed.append((head, get_object_tree(message)))
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        self.parts |= parts
        return list(parts)

    def PullMessages(self, request):
        assert not self.forgotten & set(request.message_ids), "it would be reported as lost"
        given, self.listed = self.listed, []
        self.forgotten |= {head.metadata.reply_to_message_id for head, _ in given}
        return SimpleNamespace(
            messages_list=[head for head, _ in given], message_object_trees=[t for _, t in given]
        )

    def PullObject(self, request):
        self.pulled.append(request.object_id)
        content = self.parts.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link():
    return SuperLink()


def opened(link, **options):
    grid = HttpGrid("127.0.0.1:1", True, token="t")
    grid._client = link
    grid.set_run(Run.create_empty(7))
    return Mailbox(grid, **options)


def reply(payload=b"abc", content=None):
    asked = Message(RecordDict(), 9, "train")
    asked.metadata.__dict__["_message_id"] = "forged"  # what the site says it answers
    if content is None:
        content = Envelope({"name": "a"}, payload).to_records()
    return Message(content, reply_to=asked)


def collected(box, *messages):
    return {answer.to: answer for answer in box.collect(messages)}


def test_a_reply_answers_what_the_superlink_says_it_answers(link):
    box = opened(link)
    assert box.collect([]) == []
    parts = link.put("m1", reply())
    answers = collected(box, "m1", "m2")
    assert list(answers) == ["m1"]
    assert answers["m1"].envelope == Envelope({"name": "a"}, b"abc")
    assert set(link.pulled) == set(parts)
    assert len(link.confirmed) == 1
    assert collected(box, "m2") == {}


def test_an_upload_that_stops_holds_up_nobody_and_may_be_completed(link):
    """As where a site loses its power between two parts; Flower would wait for up to two hours."""
    box = opened(link)
    parts = link.put("m1", reply(b"one"))
    head = link.listed[0][0].metadata.message_id  # it comes last
    link.put("m2", reply(b"two"))
    missing, link.parts[head] = link.parts[head], b""
    assert list(collected(box, "m1", "m2")) == ["m2"]
    assert collected(box, "m1") == {}
    link.parts[head] = missing
    link.pulled.clear()
    assert collected(box, "m1")["m1"].envelope.payload == b"one"
    assert len(link.pulled) < len(parts), "what was there is not fetched again"


def test_a_reply_that_the_superlink_has_lost_is_asked_for_again(link):
    box = opened(link)
    link.parts.pop(link.put("m1", reply())[0])
    answer = collected(box, "m1")["m1"]
    assert (answer.envelope, answer.code) == (None, ErrorCode.MESSAGE_UNAVAILABLE)
    assert answer.code not in BY_ITSELF, "it is sent again"


def test_a_reply_that_is_too_large_is_not_fetched_to_its_end(link, monkeypatch):
    monkeypatch.setattr("pfedseq.deployment.envelope.SMALL", 10)
    large = reply(b"x" * 5000)
    parts = link.put("m1", large)
    link.put("m2", reply(b"y" * 100))
    answers = collected(opened(link, largest=3000), "m1", "m2")
    assert answers["m2"].envelope.payload == b"y" * 100
    assert answers["m1"].envelope is None
    assert "larger than 0.003 MB (flower.max_reply_mb)" in answers["m1"].reason
    assert len(set(link.pulled) & set(parts)) < len(parts)
    assert len(link.confirmed) == 2, "the SuperLink may forget it"
    monkeypatch.setattr(mailbox, "MOST_PARTS", 2)
    link.put("m3", reply())
    assert "its reply has 3 parts" in collected(opened(link), "m3")["m3"].reason


def nonsense(link, parts):
    link.parts[parts[-1]] = b"nonsense"


def another_kind(link, parts):
    link.parts[parts[-1]] = RecordDict().deflate()


def unknown_child(link, parts):
    for child in parts[:-1]:
        link.parts[parts[-1]] = link.parts[parts[-1]].replace(child.encode(), b"0" * 64)


@pytest.mark.parametrize("spoil", [nonsense, another_kind, unknown_child])
def test_a_reply_that_cannot_be_read_is_its_senders_fault(link, spoil):
    parts = link.put("m1", reply())
    spoil(link, sorted(parts, key=lambda name: name == link.listed[0][0].metadata.message_id))
    link.put("m2", reply(b"sound"))
    answers = collected(opened(link), "m1", "m2")
    assert answers["m2"].envelope.payload == b"sound"
    assert (answers["m1"].envelope, answers["m1"].code) == (None, 2)
    assert "its reply is not" in answers["m1"].reason


def test_an_error_and_its_reason_are_told_without_control_characters(link):
    asked = Message(RecordDict(), 9, "train")
    asked.metadata.__dict__["_message_id"] = "forged"
    link.put("m1", Message(Error(2, "no \x1b[2Jimages" + "!" * 10_000), reply_to=asked))
    link.put("m2", reply(content=RecordDict()))
    answers = collected(opened(link), "m1", "m2")
    assert answers["m1"].reason.startswith("no  [2Jimages!!")
    assert len(answers["m1"].reason) == 500
    assert "does the other side run the same pfedseq?" in answers["m2"].reason
