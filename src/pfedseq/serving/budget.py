"""Memory limits across requests: pixels being decoded, and bytes of bodies being read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Budget:
    """A shared amount; a request that finds too little left waits, first come, first served."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @asynccontextmanager
    async def take(self, amount: int) -> AsyncIterator[None]:
        """Hold `amount` during the block; at most the whole budget."""
        amount = min(amount, self.total)
        if self._waiting or self.used + amount > self.total:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, amount))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # its turn came at the same moment
                    self._give_back(amount)
                else:
                    self._waiting = deque(w for w in self._waiting if w[0] is not turn)
                    self._wake()
                raise
        else:
            self.used += amount
        try:
            yield
        finally:
            self._give_back(amount)

    def _give_back(self, amount: int) -> None:
        self.used -= amount
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.used + self._waiting[0][1] <= self.total:
            turn, amount = self._waiting.popleft()
            if not turn.done():
                self.used += amount
                turn.set_result(None)


class Tally:
    """A shared amount; a request that finds too little left is refused."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    def add(self, amount: int) -> bool:
        """Hold `amount` more; returns False, without holding it, if too little is left."""
        if self.used + amount > self.total:
            return False
        self.used += amount
        return True

    def give_back(self, amount: int) -> None:
        """Release `amount`."""
        self.used -= amount
