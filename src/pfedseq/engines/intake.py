"""The intake: replies are metered, unpacked and screened before the server sees them.

Every reply passes through it, in training and in evaluation.
The round continues as if a client whose reply is refused were absent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pfedseq.engines.moments import take_moments_in, with_moments
from pfedseq.engines.payload import bases, unpack
from pfedseq.engines.roster import Roster
from pfedseq.engines.screening import (
    absurd_lengths,
    counts_fault,
    fault_of,
    misplaced,
    score_fault,
    update_length,
)
from pfedseq.errors import InputError
from pfedseq.federation import Client, HearsOfRefusals, Reply, Tensors, TrainsAhead

EVALUATIONS = ("evaluate", "evaluate_mean", "assess")


class Intake:
    """A round's clients as a server knows them, by place; implements `federation.Clients`.

    It counts seconds and the bytes of the tensors as sent, without the header of a serialised
    message.
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.bytes_up = self.bytes_down = 0
        self.client_seconds = self.waiting_seconds = 0.0
        self.answered: set[int] = set()
        """The numbers of the clients whose update was accepted."""
        self.refused: dict[int, str] = {}
        """The reason of each refusal, by client number."""

    @property
    def ids(self) -> Sequence[int]:
        """Places of all clients, 0 … N − 1."""
        return range(len(self.roster.numbers))

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """All places; they do not change within a round."""
        return self.ids

    def participants(self, t: int) -> Sequence[int]:
        """The places of the clients that are asked to train in round t."""
        asked = set(self.roster.participants(t))
        return [place for place, i in enumerate(self.roster.numbers) if i in asked]

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run `step` at the clients in these places; return the valid replies by place."""
        numbers, server = self.roster.numbers, self.roster.server
        messages = with_moments(server, step, down)
        sent = {numbers[place]: tensors for place, tensors in messages.items()}
        accepted = self._taken_in(step, t, sent, self._metered(step, t, sent))
        replies = {place: accepted[numbers[place]] for place in down if numbers[place] in accepted}
        return take_moments_in(server, step, replies)

    def replies(self, step: str, t: int, down: Tensors | None = None) -> dict[int, Reply]:
        """The valid replies of all members, by number; each is sent `down`, or its own payload."""
        server = self.roster.server
        sent = {p: server.payload(p) if down is None else down for p in self.ids}
        return {self.roster.numbers[p]: reply for p, reply in self.call(step, t, sent).items()}

    def metrics(
        self, step: str, t: int, down: Tensors | None = None
    ) -> dict[int, dict[str, float]]:
        """The metrics of these replies."""
        return {i: dict(reply.metrics) for i, reply in self.replies(step, t, down).items()}

    def announce_training(self, t: int) -> None:
        """Tell the engine how round t opens, if it can send that with the next evaluation."""
        roster, server = self.roster, self.roster.server
        if not isinstance(roster.engine, TrainsAhead) or not server.opens_with_training:
            return
        asked = {i for i in roster.certain_participants(t) if not roster.vanishes(t, i)}
        own = {p: server.payload(p) for p, i in enumerate(roster.numbers) if i in asked}
        messages = with_moments(server, "train", own)
        roster.engine.announce_training(t, {roster.numbers[p]: m for p, m in messages.items()})

    def _metered(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        start = time.perf_counter()
        replies = self.roster.call(step, t, down)
        self.waiting_seconds += time.perf_counter() - start
        self.bytes_down += sum(map(_size, down.values()))
        self.bytes_up += sum(_size(reply.tensors) for reply in replies.values())
        return replies

    def _taken_in(
        self, step: str, t: int, down: Mapping[int, Tensors], replies: Mapping[int, Reply]
    ) -> dict[int, Reply]:
        server, training = self.roster.server, step not in Client.reading_steps
        expected = server.expected(step) | server.expected_moments(step)
        initial = server.setup.initial
        faults: dict[int, str] = {}
        sound: dict[int, Reply] = {}
        for i, reply in replies.items():
            if training:
                known = bases(initial, down.get(i, {}))
                reply = Reply(unpack(reply.tensors, known), reply.metrics)
            fault = misplaced(reply, t, i, down) or fault_of(reply, expected)
            if step in EVALUATIONS:
                fault = fault or score_fault(step, reply.metrics)
            if step == "assess":
                fault = fault or counts_fault(reply, server.setup.num_classes or 0)
            if fault:
                faults[i] = fault
            else:
                sound[i] = reply
        if step == "train" and expected:
            lengths = {i: update_length(reply, down[i]) for i, reply in sound.items()}
            conditions, before = self.roster.conditions, self.roster.update_lengths
            faults |= absurd_lengths(sound, lengths, before, down, conditions)
            self.roster.note_lengths({i: n for i, n in lengths.items() if i not in faults})
        accepted = {i: reply for i, reply in sound.items() if i not in faults}
        self.refused |= faults
        if faults and isinstance(self.roster.engine, HearsOfRefusals):
            self.roster.engine.note_refusals(step, t, faults)
        self.client_seconds += sum(r.metrics.get(f"{step}_seconds", 0.0) for r in accepted.values())
        if step == "train":
            self.answered = set(accepted)
        if len(faults) == server.setup.num_clients and step != "evaluate_mean":
            first, what = min(faults), "scores" if step in EVALUATIONS else "reply"
            raise InputError(
                f"no client's {what} in round {t} can be used; of client {first}: {faults[first]}"
            )
        return accepted


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
