"""Collects the sites' replies from the SuperLink, whatever a site has put there.

Flower's own `Grid.pull_messages` reads replies of any size, waits up to two hours for one whose
upload has stopped, asks the reply itself which message it answers, and fails for every site if it
cannot read one of them. Here each of these is the fault of one site, and the round goes on.

It uses parts of flwr that are not public, so pyproject.toml pins flwr's minor version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.posting import failure
from pfedseq.errors import InputError
from pfedseq.words import printable

MOST_PARTS = 10_000
"""Maximum parts of a reply; Flower divides 64 MB into ten."""


@dataclass(frozen=True)
class Returned:
    """What came back for a message: an envelope, or the reason why there is none."""

    to: str
    """The id of the message, which the SuperLink has checked."""
    envelope: Envelope | None
    code: int = 0
    """Flower's error code, if there is no envelope."""
    reason: str = ""


@dataclass
class _Incoming:
    """A reply that the SuperLink has announced, and its parts that have been fetched."""

    name: str
    parts: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)

    def size(self) -> int:
        return sum(map(len, self.contents.values()))


class Mailbox:
    """The replies to a server's messages; those larger than `largest` bytes are refused."""

    def __init__(self, grid: Any, largest: float = math.inf) -> None:
        self.grid, self.largest = grid, largest
        self._incoming: dict[str, _Incoming] = {}
        """By the message that is answered: replies whose upload has not ended."""

    def collect(self, messages: Iterable[str]) -> list[Returned]:
        """The answers to any of these messages that have arrived completely."""
        wanted = list(messages)
        if not wanted:
            return []
        if not isinstance(self.grid, HttpGrid):  # Flower's simulation, and tests
            found = {m.metadata.reply_to_message_id: m for m in self.grid.pull_messages(wanted)}
            return [
                self._opened(to, partial(found.__getitem__, to)) for to in wanted if to in found
            ]
        # What has been listed once is forgotten, and asked for again would be reported as lost.
        unlisted = [to for to in wanted if to not in self._incoming]
        if unlisted:
            self._list(unlisted)
        answers = [self._fetched(to, self._incoming[to]) for to in wanted if to in self._incoming]
        return [answer for answer in answers if answer is not None]

    def _list(self, wanted: list[str]) -> None:
        """Note which replies to these messages the SuperLink has, complete or not."""
        client = self.grid._runtime_client
        listed = client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
        for head, tree in zip(listed.messages_list, listed.message_object_trees, strict=True):
            parts = [part.object_id for part in iterate_object_tree(tree)]
            to, name = head.metadata.reply_to_message_id, head.metadata.message_id
            self._incoming[to] = _Incoming(name, parts)

    def _fetched(self, to: str, incoming: _Incoming) -> Returned | None:
        """The answer, or None as long as parts of it are missing at the SuperLink."""
        client, node, run = self.grid._runtime_client, self.grid.node, self.grid.run.run_id
        pull = make_pull_object_fn_protobuf(client.PullObject, node, run)
        answer = None
        if len(incoming.parts) > MOST_PARTS:
            answer = _refused(to, f"its reply has {len(incoming.parts):,} parts")
        for part in incoming.parts if answer is None else ():
            if part in incoming.contents:
                continue
            try:
                incoming.contents[part] = pull(part)
            except ObjectUnavailableError:
                return None
            except ObjectPullError as problem:
                answer = Returned(to, None, ErrorCode.MESSAGE_UNAVAILABLE, str(problem))
                break
            if incoming.size() > self.largest:
                answer = self._too_large(to, incoming.size())
                break
        del self._incoming[to]
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=incoming.name)
        )
        if answer is not None:
            return answer
        inflate = partial(inflate_object_from_contents, incoming.name, incoming.contents)
        return self._opened(to, inflate)

    def _opened(self, to: str, inflate: Callable[[], Any]) -> Returned:
        """The content of a reply; a site may have written anything into it."""
        try:
            message = inflate()
            if not isinstance(message, Message):
                return _refused(to, f"its reply is not a message but a {type(message).__name__}")
            if message.has_error():
                return Returned(to, None, int(message.error.code), failure(message))
            envelope = Envelope.of_records(message.content)
        except InputError as problem:
            return _refused(to, str(problem))
        except Exception as problem:
            said = printable(f"{type(problem).__name__}: {problem}")
            return _refused(to, f"its reply is not readable ({said})")
        size = len(envelope.payload)
        return self._too_large(to, size) if size > self.largest else Returned(to, envelope)

    def _too_large(self, to: str, size: int) -> Returned:
        most = f"{self.largest / 1e6:g} MB (flower.max_reply_mb)"
        return _refused(to, f"its reply is larger than {most}: {size / 1e6:.1f} MB or more")


def _refused(to: str, reason: str) -> Returned:
    return Returned(to, None, int(ErrorCode.CLIENT_APP_RAISED_EXCEPTION), reason)
