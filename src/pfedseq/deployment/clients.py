"""The server's side of the Flower engine: finds the sites, asks them, and waits as long as it may.

A site is known by its name, never by its node's number, which changes when it restarts. Messages
are sent again where a node has come back since; replies are found by the message they answer, in
whatever order they come. A site that has not answered in time is absent from that exchange.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from flwr.app import Message

from pfedseq.deployment.audit import Note, no_note
from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.ledger import Ledger
from pfedseq.deployment.messages import Card, Request, read_reply
from pfedseq.errors import InputError
from pfedseq.federation import Client, Hello, Reply, Tensors

HELLO_SECONDS = 120.0
"""How long a node that just appeared may take to say who it is."""
LONGEST_PAUSE = 0.5
"""Seconds between two looks for answers; the first come sooner."""
LOOK_SECONDS = 3.0
"""How often it is looked who is there while answers are awaited."""
CRASHES = 3
"""How often a message is sent again to a site whose client was killed over it."""
_RAISED, _NOT_LOADED = 2, 1
"""Flower's error codes for a client that failed by itself: sending again would not help."""
_CRASHED = 8
_FLOWER_WRAPPING = re.compile(r"^<class '[\w.]+'>:<'(.*)'>$", re.DOTALL)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """One start of a site's node; a restarted one is another, even under the same number."""

    number: int
    activated: str
    name: str
    """As registered; empty where nodes need not be."""


@dataclass(frozen=True)
class Guest:
    """A site that has said hello, and the node it is at."""

    node: Node
    card: Card
    hello: Hello


@dataclass
class _Asked:
    """An exchange under way: who still owes an answer, and to which message."""

    down: Mapping[int, Tensors]
    waiting: set[int]
    sent_to: dict[int, Node] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    latest: dict[int, str] = field(default_factory=dict)
    crashes: dict[int, int] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


class Roll:
    """The sites that are there, by name; `members` are those of a run that has begun before.

    Once a run has begun, `admit` is asked about sites that come later; it raises InputError where
    one is not let in.
    """

    def __init__(
        self,
        grid: Any,
        request: Request,
        pause: float = 0.3,
        members: Mapping[str, Hello] | None = None,
        admit: Callable[[Guest], None] | None = None,
        note: Note = no_note,
    ) -> None:
        self.grid, self.request, self.pause, self.note = grid, request, pause, note
        self.check: Callable[[Guest], None] = lambda guest: None
        """Asked about a member that has come back; raises InputError where it is not taken back."""
        self.problems: dict[str, str] = {}
        """Why a site was not let in or could not answer, by its name, until it does."""
        self.admit = admit or _nobody
        self.guests: dict[str, Guest] = {}
        self.strangers: dict[str, Guest] = {}
        """Sites that have said hello after the run began, and wait for the next round."""
        self.members = None if members is None else dict(members)
        """The sites of the run; the order is that of their numbers. None before it has begun."""
        self._asked: dict[Node, tuple[str, float]] = {}
        self._known: set[Node] = set()
        self._refused: list[str] = []

    def gather(self, expected: int, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until `expected` sites have said hello; those that come later are strangers.

        Of a run that has begun before, any of its sites will do to go on.
        """
        deadline, told = time.monotonic() + seconds, -1
        while len(self.guests) < expected and (in_time := time.monotonic() < deadline):
            self.look()
            if self._refused and self.members is None:
                raise InputError(self._refused[0])
            if len(self.guests) != told:
                told = len(self.guests)
                there = f": {', '.join(self.names())}" if told else ""
                tell(f"{told} of {expected} sites have said hello{there}")
            if len(self.guests) < expected:
                time.sleep(self.pause)
        if not in_time and (self.members is None or not self.guests):
            raise InputError(
                f"only {len(self.guests)} of {expected} sites said hello within {seconds:g} "
                f"seconds ({', '.join(self.names()) or 'none'}): are the others' SuperNodes "
                "running? (flower.sites, flower.start_seconds)"
            )
        if self.members is None:
            self.members = {name: self.guests[name].hello for name in self.names()}

    def names(self) -> list[str]:
        """Those that have said hello, in order."""
        return in_order(self.guests)

    def look(self) -> dict[str, Node]:
        """The nodes that are online now, by site; who is new is asked for its name."""
        online = {
            Node(info.node_id, info.last_activated_at, info.name)
            for info in self.grid.get_nodes()
            if info.status in ("", "online")
        }
        now = time.monotonic()
        strangers = [
            node
            for node in sorted(online - self._known, key=lambda node: node.number)
            if node not in self._asked or now - self._asked[node][1] > HELLO_SECONDS
        ]
        contents = [(node, self.request.envelope({})) for node in strangers]
        ids = push(self.grid, self.request, contents, HELLO_SECONDS)
        self._asked |= {n: (m, now) for n, m in zip(strangers, ids, strict=True) if m}
        self._listen(online)
        return {name: guest.node for name, guest in self.guests.items() if guest.node in online}

    def _listen(self, online: set[Node]) -> None:
        by_message = {message: node for node, (message, _) in self._asked.items()}
        for reply in pull(self.grid, by_message):
            node = by_message[reply.metadata.reply_to_message_id]
            del self._asked[node]
            if reply.has_error():
                if reply.error.code in (_RAISED, _NOT_LOADED):
                    self._known.add(node)
                    self._refuse(f"site {node.name or node.number} failed: {reason(reply)}")
                continue
            self._known.add(node)
            try:
                said, card = read_reply(Envelope.of_records(reply.content), None)
                hello = Hello.of(said)
            except InputError as problem:
                self._refuse(f"site {node.name or node.number} cannot be understood: {problem}")
                continue
            if node.name:
                card = replace(card, name=node.name)
            self._welcome(Guest(node, card, hello), online)

    def _welcome(self, guest: Guest, online: set[Node]) -> None:
        name = guest.card.name
        holder = self.guests.get(name)
        if self.members is not None and name not in self.members:
            self.strangers[name] = guest
        elif self.members is not None and guest.hello != self.members[name]:
            self._refuse(
                f"site {name} has come back with other data than it had: it is not asked until "
                "it brings back the former, or a new run is begun",
                name,
            )
        elif holder and holder.card.folder != guest.card.folder and holder.node in online:
            self._refuse(
                f"two sites are called {name}: give each a --name of its own, or a key that is "
                "registered under another name",
                name,
            )
        elif holder is None or guest.node.activated >= holder.node.activated:
            try:
                self.check(guest)
            except InputError as problem:
                self.guests.pop(name, None)
                self._refuse(str(problem), name)
                return
            self.guests[name] = guest
            self.problems.pop(name, None)
            card = guest.card
            about = {"node": guest.node.number, "folder": card.folder, "version": card.version}
            counts = guest.hello.train_examples, guest.hello.test_examples
            self.note("joined", name, **about, backbone=card.backbone, examples=counts)

    def let_in(self) -> dict[str, Node]:
        """The nodes that are online now, by site, strangers that may come in among them."""
        online = self.look()
        for name in in_order(self.strangers):
            guest = self.strangers.pop(name)
            try:
                self.admit(guest)
            except InputError as problem:
                self._refuse(str(problem), name)
                continue
            assert self.members is not None  # nobody is a stranger before
            self.members[name] = guest.hello
            self.guests[name] = guest
            self.note("joined", name, node=guest.node.number, version=guest.card.version)
            online[name] = guest.node
        return online

    def _refuse(self, sentence: str, name: str = "") -> None:
        self._refused.append(sentence)
        if name:
            self.problems[name] = sentence
        self.note("refused", name, reason=sentence)
        log.warning("%s", sentence)


def _nobody(guest: Guest) -> None:
    """The run is closed to all that come later."""
    raise InputError(f"site {guest.card.name} was not there when the run began: it is not asked")


class FlowerClients:
    """Clients on other machines; `request` is what every message says but for the exchange."""

    def __init__(
        self,
        roll: Roll,
        request: Request,
        seconds: float,
        device: torch.device | None = None,
        ledger: Ledger | None = None,
        max_reply_bytes: float = math.inf,
    ) -> None:
        self.roll, self.request, self.ledger = roll, request, ledger
        self.max_reply_bytes = max_reply_bytes
        self.seconds, self.device = seconds, device
        self.kept_at: Callable[[int], int] = lambda t: 0
        """The round to whose end the server may come back in round t: sites keep that memory."""
        self._exchange = (0, -1)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites by number; one that is let in later gets the next."""
        return tuple(self.roll.members or ())

    @property
    def ids(self) -> Sequence[int]:
        """All sites that have been let in."""
        return range(len(self.names))

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """Who has a place keeps it; one is there for every other site that can be reached now."""
        online = self.roll.let_in()
        return [i for i, name in enumerate(self.names) if i in before or name in online]

    def participants(self, t: int) -> Sequence[int]:
        """All of them are asked; who is not there is absent."""
        return self.ids

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Ask the sites and wait for them; who does not answer in time is missing.

        A site says hello when it comes: nobody is asked for that again.
        """
        if step == "hello":
            hellos = list((self.roll.members or {}).values())
            return {i: hellos[i].reply() for i in down}
        self._exchange = (t, self._exchange[1] + 1 if self._exchange[0] == t else 0)
        asked = _Asked(down, set(down))
        replies: dict[int, Reply] = {}
        deadline = time.monotonic() + self.seconds
        next_look, pause = 0.0, self.roll.pause
        while asked.waiting:
            if next_look <= time.monotonic() < deadline:
                self._send(step, asked, deadline - time.monotonic())
                next_look = time.monotonic() + LOOK_SECONDS
            came = pull(self.roll.grid, asked.messages)
            for message in came:
                answered = message.metadata.reply_to_message_id
                i = asked.messages.pop(answered)
                if i not in asked.waiting:
                    continue
                if message.has_error():
                    if asked.latest[i] == answered:  # not one that was sent anew since
                        self._failed(i, message, asked)
                    continue
                asked.waiting.discard(i)
                try:
                    replies[i] = self._read(step, t, i, Envelope.of_records(message.content))
                except InputError as problem:
                    asked.failed[i] = f"site {self.names[i]} cannot be understood: {problem}"
            if not came and time.monotonic() > deadline:  # what is there by then is taken
                break
            if asked.waiting:
                time.sleep(pause)
                pause = min(1.2 * pause, LONGEST_PAUSE)
        for i in sorted(asked.waiting):
            log.warning("round %d, %s: site %s did not answer", t, step, self.names[i])
        for i in sorted(asked.waiting):
            self.roll.note("silent", self.names[i], round=t, step=step)
        for i, sentence in asked.failed.items():
            log.warning("round %d, %s: %s", t, step, sentence)
            self.roll.problems[self.names[i]] = sentence
            self.roll.note("refused", self.names[i], round=t, step=step, reason=sentence)
        if self.ledger is not None:
            self.ledger.save()
        if asked.failed and not replies:
            raise InputError(f"no site could {step}: {asked.failed[min(asked.failed)]}")
        return {i: replies[i] for i in down if i in replies}

    def _read(self, step: str, t: int, i: int, envelope: Envelope) -> Reply:
        """What a site replied; its new memory goes into the ledger."""
        name, size = self.names[i], len(envelope.payload)
        if size > self.max_reply_bytes:
            raise InputError(
                f"its reply has {size / 1e6:.0f} MB, more than flower.max_reply_mb allows"
            )
        reply, card = read_reply(envelope, self.device)
        if card.memory and self.ledger is not None:
            self.ledger.note(self.request.method, name, card.memory, self.kept_at(t))
        self.roll.problems.pop(name, None)
        digest = hashlib.sha256(envelope.payload).hexdigest()
        self.roll.note("answered", name, round=t, step=step, bytes=size, sha256=digest)
        return reply

    def _send(self, step: str, asked: _Asked, seconds: float) -> None:
        """To everyone who has not been sent it, or has been restarted since."""
        online = self.roll.look()
        t, exchange = self._exchange
        targets: list[tuple[int, Node]] = []
        for i in sorted(asked.waiting):
            node = online.get(self.names[i])
            if node is not None and asked.sent_to.get(i) != node:
                targets.append((i, node))
        request = replace(self.request, step=step, round=t, exchange=exchange, kept=self.kept_at(t))
        reading = step in Client.reading_steps
        version = (t, math.inf if reading else exchange)
        contents = []
        for i, node in targets:
            known = ""
            if self.ledger is not None:
                known = self.ledger.expected(request.method, self.names[i], version)
            whole = replace(request, client=i, remembered=known)
            contents.append((node, whole.envelope(asked.down[i])))
        ids = push(self.roll.grid, request, contents, seconds)
        for (i, node), message in zip(targets, ids, strict=True):
            if message:
                asked.sent_to[i] = node
                asked.messages[message] = i
                asked.latest[i] = message

    def _failed(self, i: int, message: Message, asked: _Asked) -> None:
        """Leave out a client that failed by itself; ask again one that was cut off."""
        code = message.error.code
        if code == _CRASHED:
            asked.crashes[i] = asked.crashes.get(i, 0) + 1
        if code in (_RAISED, _NOT_LOADED) or asked.crashes.get(i, 0) >= CRASHES:
            asked.failed[i] = f"site {self.names[i]} failed: {reason(message)}"
            asked.waiting.discard(i)
        else:
            asked.sent_to.pop(i, None)


def push(
    grid: Any, request: Request, contents: Sequence[tuple[Node, Envelope]], seconds: float
) -> list[str | None]:
    """Send them, valid for `seconds`; the messages' ids in order, None where one was refused."""
    if not contents:
        return []
    evaluations = dict.fromkeys(("evaluate", "evaluate_mean", "assess"), "evaluate")
    kind = {**evaluations, "hello": "query", "export": "query"}.get(request.step, "train")
    messages = [  # a list: Flower goes over it twice
        Message(
            content.to_records(),
            node.number,
            kind,
            ttl=max(1.0, seconds),
            group_id=str(request.round),
        )
        for node, content in contents
    ]
    ids = list(grid.push_messages(messages))
    return ids if len(ids) == len(messages) else [None] * len(messages)


def pull(grid: Any, messages: Iterable[str]) -> list[Message]:
    """The replies that have come to any of the messages."""
    ids = list(messages)
    return list(grid.pull_messages(ids)) if ids else []


def reason(message: Message) -> str:
    """What a failed client said, without Flower's wrapping."""
    said = str(message.error.reason or f"error {message.error.code}")
    unwrapped = _FLOWER_WRAPPING.match(said)
    return unwrapped[1] if unwrapped else said


def in_order(names: Iterable[str]) -> list[str]:
    """Numbers by their value, before names by the alphabet."""
    return sorted(names, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))
