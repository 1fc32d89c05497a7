"""Ctrl-C: the first stops after the current round, the second immediately."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class StopAtOnce(KeyboardInterrupt):
    """The second Ctrl-C: exit without waiting for running threads."""


class Interruption:
    """Whether Ctrl-C was pressed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.wanted = False
        self._tell = tell

    def pressed(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: request a stop, or stop immediately the second time."""
        if self.wanted:
            raise StopAtOnce
        self.wanted = True
        with suppress(RuntimeError):  # the signal interrupted another write
            self._tell("stopping after this round; Ctrl-C again stops at once")

    def stop_if_wanted(self) -> None:
        """Stop here if a stop was requested; called where nothing would be lost."""
        if self.wanted:
            raise KeyboardInterrupt


@contextmanager
def finishing_the_round(tell: Callable[[str], None]) -> Iterator[Interruption]:
    """Defer Ctrl-C to a point where nothing is lost.

    Only the main thread receives signals; in other threads Ctrl-C is unchanged.
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
