"""Clients side by side: what they ask of their tasks at the same time is answered in one pass.

Each client of a cohort runs in a thread of its own, but only one of them at a time: whoever asks
its task for a gradient waits until every other has asked, too, or is done. Then all questions are
answered together. So what is computed together follows from the clients' own sequences of
questions, never from how fast threads happen to run; and method files need not know.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from pfedseq.federation import Answer, Batch, Hello, Part, Question, Site, Split, Task
from pfedseq.lora import Factors
from pfedseq.measures import Score
from pfedseq.params import Params
from pfedseq.training.config import Units

FULL_PASS, FULL_PASS_OF_A_CARD = 40, 64
"""Examples in a pass with which the backbone's products are near their fastest."""

Result = TypeVar("Result")


class Rendezvous:
    """Where the clients of a cohort meet; every one of `members` must leave, whatever happens."""

    def __init__(self, members: Sequence[int]) -> None:
        self.baton = threading.Condition()
        """Held by the one client that runs; given back while it waits for an answer."""
        self._present = set(members)
        self._asked: dict[int, Question] = {}
        self._answers: dict[int, Answer | BaseException] = {}

    def ask(self, member: int, question: Question) -> Answer:
        """The answer, once all that are present have asked; the caller holds the baton."""
        self._asked[member] = question
        self._answer_if_complete()
        self.baton.wait_for(lambda: member in self._answers)
        answer = self._answers.pop(member)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self, member: int) -> None:
        """Nobody waits for this member any more; the caller holds the baton."""
        self._present.remove(member)
        self._answer_if_complete()

    def _answer_if_complete(self) -> None:
        if not self._asked or len(self._asked) < len(self._present):
            return
        members = sorted(self._asked)
        questions = [self._asked.pop(member) for member in members]
        try:
            answers: Sequence[Answer | BaseException] = answer_together(questions)
        except BaseException as problem:  # it is everyone's: each raises it in its own thread
            answers = [problem] * len(members)
        self._answers.update(zip(members, answers, strict=True))
        self.baton.notify_all()


def answer_together(questions: Sequence[Question]) -> list[Answer]:
    """By the tasks' own way of doing so, where they have one; else one after the other."""
    together = getattr(questions[0].task, "answer_together", None)
    if together is not None and len(questions) > 1:
        answers: list[Answer] = together(questions)
        return answers
    return [question.answer() for question in questions]


@dataclass(frozen=True)
class CohortTask:
    """A client's task, whose costly answers wait for the others'; implements `Task`."""

    task: Task
    meeting: Rendezvous
    member: int

    @property
    def initial(self) -> Params:
        """φ^0, the same at every client."""
        return self.task.initial

    @property
    def round(self) -> int:
        """t, the round that the task is bound to."""
        return self.task.round

    @property
    def num_examples(self) -> int:
        """|D_i|, the number of training examples."""
        return self.task.num_examples

    @property
    def units(self) -> Units:
        """What the model's rates are measured in."""
        return self.task.units

    @property
    def factors(self) -> Factors | None:
        """Where LoRA's A and B lie in θ; None for other adapters."""
        return self.task.factors

    @property
    def label_counts(self) -> Tensor:
        """Training examples of each class (C,)."""
        return self.task.label_counts

    def hello(self) -> Hello:
        """Return the task's hello."""
        return self.task.hello()

    def save(self, phi: Params) -> None:
        """Save φ as the task does."""
        self.task.save(phi)

    def batches(self, epochs: int) -> Iterator[Batch]:
        """Yield the task's minibatches."""
        return self.task.batches(epochs)

    def sketches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the task's sketches of a batch."""
        return self.task.sketches(batch)

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        """∇_φ over the batch, computed with the others'."""
        gradient = self._ask("grad", phi, batch, part)
        assert isinstance(gradient, Params)
        return gradient

    def loss(self, phi: Params, batch: Batch) -> float:
        """The mean loss over the batch."""
        loss = self._ask("loss", phi, batch)
        assert isinstance(loss, float)
        return loss

    def score(self, phi: Params, split: Split, full: bool = False) -> Score:
        """The measures on a split."""
        score = self._ask("score", phi, split, full)
        assert isinstance(score, Score)
        return score

    def _ask(self, kind: str, *arguments: object) -> Answer:
        return self.meeting.ask(self.member, Question(self.task, kind, arguments))


@dataclass(frozen=True)
class CohortSite:
    """A client's site, whose tasks meet those of the cohort."""

    site: Site
    meeting: Rendezvous
    member: int

    def task(self, t: int, step: str) -> CohortTask:
        """The site's task, bound to the meeting."""
        return CohortTask(self.site.task(t, step), self.meeting, self.member)


def run_cohort(
    pool: ThreadPoolExecutor, members: Sequence[int], work: Callable[[int, Rendezvous], Result]
) -> list[Result]:
    """`work` of every member side by side, results in their order; `pool` has room for them all.

    Where members fail, the others finish, and the first failure is raised.
    """
    meeting = Rendezvous(members)

    def run(member: int) -> Result:
        with meeting.baton:
            try:
                return work(member, meeting)
            finally:
                meeting.leave(member)

    futures = [pool.submit(run, member) for member in members]
    wait(futures)
    return [future.result() for future in futures]


def cohorts(ids: Sequence[int], size: int) -> list[list[int]]:
    """The ids, rising, in groups of at most `size` and as equal as can be."""
    ordered = sorted(ids)
    groups = -(-len(ordered) // size)
    bounds = [len(ordered) * g // groups for g in range(groups + 1)] if groups else [0]
    return [ordered[a:b] for a, b in pairwise(bounds)]


def shares(groups: Sequence[Sequence[int]], work: Mapping[int, int], devices: int) -> list[int]:
    """Which device each cohort goes to, so that all have about as much work; follows from it alone.

    The largest first, each to the device that has least so far.
    """
    amounts = [sum(work[i] for i in group) for group in groups]
    loads, chosen = [0] * devices, [0] * len(groups)
    for place in sorted(range(len(groups)), key=lambda place: -amounts[place]):
        least = loads.index(min(loads))
        chosen[place] = least
        loads[least] += amounts[place]
    return chosen


def automatic_cohort(num_clients: int, batch_size: int, cards: int = 0) -> int:
    """How many clients to train in one pass on this machine: enough to fill it, a cohort per core.

    Where there are graphics cards, a cohort for each of them.

    More examples than `FULL_PASS` do not make a pass faster, but fall out of the processor's cache
    and take memory. The cores are those of the machine, not `engine.threads`: how many cohorts run
    side by side must not change what is computed together.
    """
    cores = cards or os.cpu_count() or 1
    largest = max(1, (FULL_PASS_OF_A_CARD if cards else FULL_PASS) // batch_size)
    turns = -(-num_clients // (largest * cores))  # of all cores; none of them idle in the last
    return -(-num_clients // (turns * cores))
