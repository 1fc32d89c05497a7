"""Groups: clients run side by side and their gradients are computed in one pass.

Each client of a group runs in its own thread, but only one of them at a time: a client that asks
its task for a gradient waits until every other client has asked or finished. Then all
requests are answered together. So the grouping follows from the clients' sequences of requests,
never from the speed of threads, and method files need not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from pfedseq.federation import Batch, Hello, Part, Site, Split, Task
from pfedseq.lora import Factors
from pfedseq.measures import Score
from pfedseq.params import Params
from pfedseq.training.config import Units

Result = TypeVar("Result")
Found = Params | Score | float
"""What a task answers."""


class Question(NamedTuple):
    """A request of a client to its task that can be answered together with others.

    A task may offer `answer_together(questions) -> answers`, faster than one by one and equal to
    it up to rounding.
    """

    task: Task
    kind: str
    """`grad`, `loss` or `score`: the task's method."""
    arguments: tuple[Any, ...]

    def answer(self) -> Found:
        """Answer this question alone."""
        found: Found = getattr(self.task, self.kind)(*self.arguments)
        return found


class Rendezvous:
    """The meeting point of a group; every member must leave it, also after an error."""

    def __init__(self, members: Sequence[int]) -> None:
        self.baton = threading.Condition()
        """Held by the one client that runs; given back while it waits for an answer."""
        self._present = set(members)
        self._asked: dict[int, Question] = {}
        self._answers: dict[int, Found | BaseException] = {}

    def ask(self, member: int, question: Question) -> Found:
        """The answer, once all present members have asked; the caller holds the baton."""
        self._asked[member] = question
        self._answer_if_complete()
        self.baton.wait_for(lambda: member in self._answers)
        answer = self._answers.pop(member)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self, member: int) -> None:
        """Stop waiting for this member; the caller holds the baton."""
        self._present.remove(member)
        self._answer_if_complete()

    def _answer_if_complete(self) -> None:
        if not self._asked or len(self._asked) < len(self._present):
            return
        members = sorted(self._asked)
        questions = [self._asked.pop(member) for member in members]
        try:
            answers: Sequence[Found | BaseException] = _answers(questions)
        except BaseException as problem:  # raised in every member's thread
            answers = [problem] * len(members)
        self._answers.update(zip(members, answers, strict=True))
        self.baton.notify_all()


def _answers(questions: Sequence[Question]) -> list[Found]:
    """Use the tasks' shared pass if they have one; otherwise answer one after the other."""
    together = getattr(questions[0].task, "answer_together", None)
    if together is not None and len(questions) > 1:
        answers: list[Found] = together(questions)
        return answers
    return [question.answer() for question in questions]


@dataclass(frozen=True)
class SharingTask:
    """A client's `Task` whose costly answers are computed together with the others'."""

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
        """The model's quantities that rates are scaled by."""
        return self.task.units

    @property
    def factors(self) -> Factors | None:
        """The positions of LoRA's A and B in θ; None for other adapters."""
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

    def _ask(self, kind: str, *arguments: object) -> Found:
        return self.meeting.ask(self.member, Question(self.task, kind, arguments))


@dataclass(frozen=True)
class SharingSite:
    """A client's site, whose tasks meet those of its group."""

    site: Site
    meeting: Rendezvous
    member: int

    def task(self, t: int, step: str) -> SharingTask:
        """The site's task, bound to the meeting."""
        return SharingTask(self.site.task(t, step), self.meeting, self.member)


def run_together(
    pool: ThreadPoolExecutor, members: Sequence[int], work: Callable[[int, Rendezvous], Result]
) -> list[Result]:
    """Run `work` for every member side by side, results in order; `pool` has a thread for each.

    If members fail, the others finish, and the first failure is raised.
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
