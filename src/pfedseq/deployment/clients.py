"""The server's side of the Flower engine: sends requests to the sites and collects the replies.

A site is identified by its name, never by its node's number, which changes when it restarts.
Messages are sent again to a node that has restarted; replies are matched to the message they
answer, in any order. A site that does not answer in time is absent from that exchange.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.ledger import Ledger
from pfedseq.deployment.mailbox import Returned
from pfedseq.deployment.messages import Request, parted, read_reply
from pfedseq.deployment.posting import BY_ITSELF, CRASHED, Node, push
from pfedseq.deployment.roll import Roll
from pfedseq.engines.wire import encode
from pfedseq.errors import InputError
from pfedseq.federation import Client, Reply, Tensors

LONGEST_PAUSE = 0.5
"""Maximum seconds between two polls for replies; the first polls are closer together."""
LOOK_SECONDS = 3.0
"""Seconds between two checks of which sites are online while waiting for replies."""
CRASHES = 3
"""How often a message is sent again to a site whose client process was killed by it."""

log = logging.getLogger(__name__)


@dataclass
class _Asked:
    """An exchange in progress: the sites that have not answered yet, and their messages."""

    down: Mapping[int, Tensors]
    waiting: set[int]
    ahead: Mapping[int, Tensors] = field(default_factory=dict)
    """The messages of the sites that also train for the next round in this exchange."""
    sent_to: dict[int, Node] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    latest: dict[int, str] = field(default_factory=dict)
    crashes: dict[int, int] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


class FlowerClients:
    """Clients on other machines; `request` has the fields that all exchanges have in common."""

    def __init__(
        self,
        roll: Roll,
        request: Request,
        seconds: float,
        device: torch.device | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.roll, self.request, self.ledger = roll, request, ledger
        self.seconds, self.device = seconds, device
        self.kept_at: Callable[[int], int] = lambda t: 0
        """The round to whose end the server may return in round t; sites keep that memory."""
        self._exchange = (0, -1)
        self._announced: tuple[int, Mapping[int, Tensors]] = (0, {})
        self._trained: tuple[int, dict[int, tuple[Tensors, Reply | None]]] = (0, {})
        """A round, and by site what was sent ahead of it and the reply; None: none in time."""

    @property
    def names(self) -> tuple[str, ...]:
        """The sites by number; a site admitted later gets the next number."""
        return tuple(self.roll.members or ())

    @property
    def ids(self) -> Sequence[int]:
        """The numbers of all admitted sites."""
        return range(len(self.names))

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """The members `before`, and every other site that is reachable now."""
        online = self.roll.let_in()
        return [i for i, name in enumerate(self.names) if i in before or name in online]

    def participants(self, t: int) -> Sequence[int]:
        """All sites: every one is asked, and those offline are absent."""
        return self.ids

    def announce_training(self, t: int, down: Mapping[int, Tensors]) -> None:
        """Send these messages with the next evaluation, so that sites train for round t at once.

        A server that is interrupted before round t sends them again and gets the same answers,
        because the sites still have the memory from before.
        """
        self._announced = (t, down)

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Send a request to the sites and wait; the result lacks sites that do not answer in time.

        A site says hello when it comes and is not asked for it again. An exchange in which sites
        evaluate and train has the time of both.
        """
        if step == "hello":
            hellos = list((self.roll.members or {}).values())
            return {i: hellos[i].reply() for i in down}
        self._exchange = (t, self._exchange[1] + 1 if self._exchange[0] == t else 0)
        known = self._answered_ahead(step, t, down)
        replies = {i: reply for i, reply in known.items() if reply is not None}
        asked = _Asked(down, set(down) - set(known), self._to_send_ahead(step, t, down))
        deadline = time.monotonic() + self.seconds * (2 if asked.ahead else 1)
        next_look, pause = 0.0, self.roll.pause
        while asked.waiting:
            if next_look <= time.monotonic() < deadline:
                self._send(step, asked, deadline - time.monotonic())
                next_look = time.monotonic() + LOOK_SECONDS
            came = self.roll.mailbox.collect(asked.messages)
            for answer in came:
                i = asked.messages.pop(answer.to)
                if i not in asked.waiting:
                    continue
                if answer.envelope is None:
                    if asked.latest[i] == answer.to:  # not to a message that has been resent since
                        self._failed(i, answer, asked)
                    continue
                asked.waiting.discard(i)
                try:
                    replies[i] = self._read(step, t, i, answer.envelope, asked.ahead.get(i))
                except InputError as problem:
                    asked.failed[i] = f"site {self.names[i]}: {problem}"
            if not came and time.monotonic() > deadline:  # what arrived before it is used
                break
            if asked.waiting:
                time.sleep(pause)
                pause = min(1.2 * pause, LONGEST_PAUSE)
        for i in sorted(asked.waiting):
            log.warning("round %d, %s: site %s did not answer", t, step, self.names[i])
            self.roll.note("silent", self.names[i], round=t, step=step)
            if i in asked.ahead:
                self._trained[1][i] = (asked.ahead[i], None)
                self.roll.note("silent", self.names[i], round=t + 1, step="train")
        self.note_refusals(step, t, asked.failed)
        if self.ledger is not None:
            self.ledger.save()
        if asked.failed and not replies:
            raise InputError(f"no site could {step}: {asked.failed[min(asked.failed)]}")
        return {i: replies[i] for i in down if i in replies}

    def note_refusals(self, step: str, t: int, reasons: Mapping[int, str]) -> None:
        """Record why these sites' replies are not used."""
        for i, reason in reasons.items():
            log.warning("round %d, %s: %s", t, step, reason)
            self.roll.problems[self.names[i]] = reason
            self.roll.note("refused", self.names[i], round=t, step=step, reason=reason)

    def _to_send_ahead(
        self, step: str, t: int, down: Mapping[int, Tensors]
    ) -> Mapping[int, Tensors]:
        """What was announced for the round after this evaluation."""
        if step != "evaluate":
            return {}
        (following, messages), self._announced = self._announced, (0, {})
        if following != t + 1:
            return {}
        self._trained = (following, {})
        return {i: messages[i] for i in down if i in messages}

    def _answered_ahead(
        self, step: str, t: int, down: Mapping[int, Tensors]
    ) -> dict[int, Reply | None]:
        """The replies of sites that were sent the same tensors ahead of round t."""
        if step in Client.reading_steps:
            return {}
        (following, trained), self._trained = self._trained, (0, {})
        if (step, t) != ("train", following):
            return {}
        same = (i for i in down if i in trained and encode(down[i]) == encode(trained[i][0]))
        return {i: trained[i][1] for i in same}

    def _read(
        self, step: str, t: int, i: int, envelope: Envelope, ahead: Tensors | None = None
    ) -> Reply:
        """What a site replied; its new memory goes into the ledger.

        The reply to what was sent `ahead` waits for the call that asks for it.
        """
        name, size = self.names[i], len(envelope.payload)
        reply, card = read_reply(envelope, self.device)
        if card.memory and self.ledger is not None:
            self.ledger.note(self.request.method, name, card.memory, self.kept_at(t))
        self.roll.problems.pop(name, None)
        digest = hashlib.sha256(envelope.payload).hexdigest()
        trained: Reply | None = None
        if ahead is not None:
            reply, trained = parted(reply)
        self.roll.note("answered", name, round=t, step=step, bytes=size, sha256=digest)
        if ahead is not None and trained is not None:
            self._trained[1][i] = (ahead, trained)
            self.roll.note("answered", name, round=t + 1, step="train", bytes=size, sha256=digest)
        return reply

    def _send(self, step: str, asked: _Asked, seconds: float) -> None:
        """Send the message to every site that has not received it or has restarted since."""
        online = self.roll.look()
        t, exchange = self._exchange
        targets: list[tuple[int, Node]] = []
        for i in sorted(asked.waiting):
            node = online.get(self.names[i])
            if node is not None and asked.sent_to.get(i) != node:
                targets.append((i, node))
        request = replace(self.request, step=step, round=t, exchange=exchange, kept=self.kept_at(t))
        reading = step in Client.reading_steps
        version = (t, math.inf if reading else exchange)  # of what is known before the next round
        ahead = replace(request, step="train", round=t + 1, exchange=0, evaluated=t)
        contents = []
        for i, node in targets:
            known = ""
            if self.ledger is not None:
                known = self.ledger.expected(request.method, self.names[i], version)
            whole = replace(ahead if i in asked.ahead else request, client=i, remembered=known)
            contents.append((node, whole.envelope(asked.ahead.get(i, asked.down[i]))))
        ids = push(self.roll.grid, contents, seconds)
        for (i, node), message in zip(targets, ids, strict=True):
            if message:
                asked.sent_to[i] = node
                asked.messages[message] = i
                asked.latest[i] = message

    def _failed(self, i: int, answer: Returned, asked: _Asked) -> None:
        """Record a failed client, or send the message again if the client was cut off."""
        if answer.code == CRASHED:
            asked.crashes[i] = asked.crashes.get(i, 0) + 1
        if answer.code in BY_ITSELF or asked.crashes.get(i, 0) >= CRASHES:
            asked.failed[i] = f"site {self.names[i]} failed: {answer.reason}"
            asked.waiting.discard(i)
        else:
            asked.sent_to.pop(i, None)
