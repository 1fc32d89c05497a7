"""Ctrl-C: the first lets the round come to its end, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class StopAtOnce(KeyboardInterrupt):
    """The second Ctrl-C: whoever catches it should not wait for threads that are at work."""


class Interruption:
    """Whether someone has pressed Ctrl-C."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.wanted = False
        self._tell = tell

    def pressed(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: ask for a stop, or stop at once the second time."""
        if self.wanted:
            raise StopAtOnce
        self.wanted = True
        with suppress(RuntimeError):  # the signal came in the middle of another line's writing
            self._tell("stopping after this round; Ctrl-C again stops at once")

    def stop_if_wanted(self) -> None:
        """Called where nothing would be lost."""
        if self.wanted:
            raise KeyboardInterrupt


@contextmanager
def finishing_the_round(tell: Callable[[str], None]) -> Iterator[Interruption]:
    """Within it Ctrl-C is only noted, for the run to stop where nothing is lost.

    Only the main thread gets signals; in another one, Ctrl-C stays what it was.
    """
    interruption = Interruption(tell)
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = signal.signal(signal.SIGINT, interruption.pressed)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)
