"""The sites of a federation: those that have said hello, latecomers, and refused ones."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pfedseq.deployment.audit import Note, no_note
from pfedseq.deployment.mailbox import Mailbox
from pfedseq.deployment.messages import Card, Request, read_reply
from pfedseq.deployment.posting import BY_ITSELF, Node, push
from pfedseq.errors import InputError
from pfedseq.federation import Hello

HELLO_SECONDS = 120.0
"""Time limit for a new node to identify itself."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Guest:
    """A site that has said hello, and its node."""

    node: Node
    card: Card
    hello: Hello


class Roll:
    """The sites that are online, by name; `members` are the sites of a run that is continued.

    Once a run has started, `admit` decides about sites that join later; it raises InputError to
    refuse one.
    """

    def __init__(
        self,
        grid: Any,
        request: Request,
        pause: float = 0.3,
        members: Mapping[str, Hello] | None = None,
        admit: Callable[[Guest], None] | None = None,
        note: Note = no_note,
        largest_reply: float = math.inf,
    ) -> None:
        self.grid, self.request, self.pause, self.note = grid, request, pause, note
        self.mailbox = Mailbox(grid, largest_reply)
        self.check: Callable[[Guest], None] = lambda guest: None
        """Decides about a member that has returned; raises InputError to refuse it."""
        self.problems: dict[str, str] = {}
        """The reason why a site was refused or could not answer, by name, until it answers."""
        self.admit = admit or _nobody
        self.guests: dict[str, Guest] = {}
        self.strangers: dict[str, Guest] = {}
        """Sites that said hello after the run started and wait for the next round."""
        self.members = None if members is None else dict(members)
        """The sites of the run, in the order of their numbers; None before it has started."""
        self._asked: dict[Node, tuple[str, float]] = {}
        self._known: set[Node] = set()
        self._refused: list[str] = []

    def gather(self, expected: int, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until `expected` sites have said hello; sites that join later are strangers.

        A run that is continued needs only one of its sites.
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
                f"seconds ({', '.join(self.names()) or 'none'}): are the others "
                "running? (flower.sites, flower.start_seconds)"
            )
        if self.members is None:
            self.members = {name: self.guests[name].hello for name in self.names()}

    def names(self) -> list[str]:
        """The names of the sites that have said hello, in order."""
        return in_name_order(self.guests)

    def look(self) -> dict[str, Node]:
        """The nodes that are online now, by site; new nodes are asked to identify themselves."""
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
        ids = push(self.grid, contents, HELLO_SECONDS)
        self._asked |= {n: (m, now) for n, m in zip(strangers, ids, strict=True) if m}
        self._listen(online)
        return {name: guest.node for name, guest in self.guests.items() if guest.node in online}

    def _listen(self, online: set[Node]) -> None:
        by_message = {message: node for node, (message, _) in self._asked.items()}
        for answer in self.mailbox.collect(by_message):
            node = by_message[answer.to]
            del self._asked[node]
            if answer.envelope is None:
                if answer.code in BY_ITSELF:
                    self._known.add(node)
                    self._refuse(f"site {node.name or node.number} failed: {answer.reason}")
                continue
            self._known.add(node)
            try:
                said, card = read_reply(answer.envelope, None)
                hello = Hello.of(said)
            except InputError as problem:
                self._refuse(f"site {node.name or node.number}: {problem}")
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
                f"site {name} has returned with different data: it is ignored until the original "
                "data are restored or a new run is started",
                name,
            )
        elif holder and holder.card.folder != guest.card.folder and holder.node in online:
            self._refuse(
                f"two sites are called {name}: give each a different --name, or a key that is "
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
        """The nodes that are online now, by site, after admitting strangers that may join."""
        online = self.look()
        for name in in_name_order(self.strangers):
            guest = self.strangers.pop(name)
            try:
                self.admit(guest)
            except InputError as problem:
                self._refuse(str(problem), name)
                continue
            assert self.members is not None  # there are no strangers before the run has started
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
    """Refuse every site that joins after the start."""
    raise InputError(f"site {guest.card.name} was not part of the run at its start: it is ignored")


def in_name_order(names: Iterable[str]) -> list[str]:
    """Sort numeric names by value, followed by the others in alphabetical order."""
    return sorted(names, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))
