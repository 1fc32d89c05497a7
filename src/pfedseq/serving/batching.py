"""Dynamic batching: requests that arrive during a pass share the next one.

One thread owns the model. It takes up to `most` rows of waiting requests (those of one request stay
together), answers them in one pass, and repeats: no request waits for others to arrive, and passes
grow with the load.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

Probabilities = Callable[[Sequence[int], Sequence[NDArray[Any]]], Tensor]
"""(the model of each row, the examples) ↦ probabilities (B, C)."""

Note = Callable[[int, int], None]
"""Called after each pass with its numbers of requests and rows."""


class TooManyWaiting(Exception):
    """The queue is full."""


@dataclass(frozen=True)
class _Request:
    rows: tuple[int, ...]
    example: NDArray[Any]
    answer: Future[Tensor] = field(default_factory=Future)


class Batcher:
    """Batches requests of many threads; `close` ends its thread."""

    def __init__(
        self, answer: Probabilities, most: int, waiting: int, note: Note = lambda *_: None
    ) -> None:
        self._answer, self._most, self._note = answer, most, note
        self._queue: queue.Queue[_Request | None] = queue.Queue(waiting)
        self.passes = self.answered = 0
        """Numbers of passes and of answered requests."""
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Approximate number of requests in the queue."""
        return self._queue.qsize()

    @property
    def alive(self) -> bool:
        """Whether the thread that owns the model is running."""
        return self._thread.is_alive()

    def ask(self, rows: Sequence[int], example: NDArray[Any]) -> Future[Tensor]:
        """A future of the probabilities (len(rows), C) of an example under the models `rows`."""
        request = _Request(tuple(rows), example)
        try:
            self._queue.put_nowait(request)
        except queue.Full:
            raise TooManyWaiting from None
        return request.answer

    def close(self) -> None:
        """Answer the waiting requests, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, ended = self._gather(first)
            # Skips cancelled requests; from here on none can be cancelled.
            wanted = [one for one in batch if one.answer.set_running_or_notify_cancel()]
            if wanted:
                self._answer_all(wanted)
            if ended:
                return

    def _gather(self, first: _Request) -> tuple[list[_Request], bool]:
        batch, rows = [first], len(first.rows)
        while rows < self._most:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return batch, True
            batch.append(following)
            rows += len(following.rows)
        return batch, False

    def _answer_all(self, batch: Sequence[_Request]) -> None:
        rows = [row for one in batch for row in one.rows]
        examples: list[Any] = [one.example for one in batch for _ in one.rows]
        try:
            shares = self._answer(rows, examples)
        except BaseException as problem:  # passed to all waiting requests; must not end the thread
            for one in batch:
                one.answer.set_exception(problem)
            return
        self.passes, self.answered = self.passes + 1, self.answered + len(batch)
        self._note(len(batch), len(rows))
        for one, share in zip(batch, shares.split([len(o.rows) for o in batch]), strict=True):
            one.answer.set_result(share)
