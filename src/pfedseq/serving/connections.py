"""Limits on connections, so that idle connections cannot block the service.

uvicorn has no time limit on a request's head and no limit on connections without a request. Its
protocol class, with one object per connection, is extended by three rules.

- A head must be complete within `head_seconds` of the connection, or of the next request's first
  byte.
- Beyond `most` connections, a new one replaces the connection that has been idle longest.
- If every connection has a request in progress, a few more (`RESERVE`) are accepted, which only
  serve health and metrics; any further connection is closed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from pfedseq.errors import InputError

RESERVE = 16
"""Connections beyond the limit, for health and metrics."""
OTHER_FILES = 64
"""Open files of the process besides its connections."""

Closed = Callable[[str], None]
"""Called with the reason when the service closes a connection."""


def limited(
    most: int, head_seconds: float, closed: Closed, base: Any = AutoHTTPProtocol
) -> type[asyncio.Protocol]:
    """A protocol class for `uvicorn.Config(http=…)` that enforces the limits."""

    class Limited(base):  # type: ignore[misc]
        """One connection."""

        app_state: dict[str, Any]
        _head_timer: asyncio.TimerHandle | None = None
        since = 0.0
        """The time since which the connection has been idle."""

        @property
        def idle(self) -> bool:
            """Whether no request is in progress."""
            return self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport: asyncio.Transport) -> None:
            if len(self.connections) >= most and not self._make_room():
                if len(self.connections) >= most + RESERVE:
                    closed("limit")
                    transport.abort()
                    return
                self.app_state = {**self.app_state, "reserve": True}
            super().connection_made(transport)
            self.since = self.loop.time()
            self._watch_head()

        def data_received(self, data: bytes) -> None:
            if self.transport is None:  # refused, and closing
                return
            if self.idle:
                self._watch_head()
            super().data_received(data)
            if not self.idle:
                self._head_is_in()

        def on_response_complete(self) -> None:
            self.since = self.loop.time()
            super().on_response_complete()
            if not self.idle:  # the next request has already arrived
                self._head_is_in()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_in()
            if self.transport is not None:
                super().connection_lost(exc)

        def _watch_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(head_seconds, self._head_is_late)

        def _head_is_in(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            if self.idle and not self.transport.is_closing():
                closed("head")
                self.transport.abort()

        def _make_room(self) -> bool:
            """Close the connection that has been idle longest; False if there is none."""
            idle = [one for one in self.connections if one.idle]
            if not idle:
                return False
            oldest = min(idle, key=lambda one: one.since)
            self.connections.discard(oldest)
            closed("room")
            oldest.transport.abort()
            return True

    return Limited


def allow_files(connections: int) -> None:
    """Raise the limit on open files for so many connections; refuse if that is not possible."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    needed = connections + RESERVE + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"the system lets this process open {hard} files, too few for {connections} "
            f"connections: set --max-connections to {max(hard - RESERVE - OTHER_FILES, 1)} or less"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
