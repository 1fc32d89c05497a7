"""The models in use, which can be replaced while requests are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property

from starlette.concurrency import run_in_threadpool

from pfedseq.errors import InputError
from pfedseq.serving.batching import Batcher
from pfedseq.serving.metrics import Metrics
from pfedseq.serving.model_cache import ModelCache
from pfedseq.serving.together import ModelsTogether
from pfedseq.serving.watching import Log


@dataclass(frozen=True)
class Served:
    """The models of all clients, followed by the global model."""

    together: ModelsTogether
    clients: tuple[str, ...]
    method: str | None
    global_is: str

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Each client's number by its name."""
        return {name: number for number, name in reversed([*enumerate(self.clients)])}

    @property
    def in_memory(self) -> int:
        """Number of clients' models in memory."""
        models = self.together.models
        return models.kept if isinstance(models, ModelCache) else len(self.clients)


@dataclass
class Generation:
    """The models of one load, their thread, and the number of requests that use them."""

    served: Served
    batcher: Batcher
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)


class Generations:
    """The current models; a request keeps the models that it started with."""

    def __init__(
        self, served: Served, start: Callable[[Served], Batcher], metrics: Metrics, log: Log
    ) -> None:
        self._start, self._metrics, self._log = start, metrics, log
        self.current = Generation(served, start(served))
        self._reloading = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Generation]:
        """The current models, which remain usable until the end of the block."""
        used = self.current
        used.users += 1
        try:
            yield used
        finally:
            used.users -= 1
            if not used.users:
                used.unused.set()

    async def reload(self, load: Callable[[], Served]) -> None:
        """Replace the models by the result of `load`; if it fails, the old ones stay in use."""
        async with self._reloading:
            try:
                served = await run_in_threadpool(load)
                _check_unit(self.current.served, served)
            except InputError as problem:
                self._metrics.reload("failed")
                self._log("reload failed", problem=str(problem))
                return
            former, self.current = self.current, Generation(served, self._start(served))
            self._metrics.reload("done")
            self._log("reloaded", clients=len(served.clients), method=served.method)
            while former.users:
                former.unused.clear()
                await former.unused.wait()
            await run_in_threadpool(_close, former)

    async def close(self) -> None:
        """Answer waiting requests, then stop."""
        await run_in_threadpool(_close, self.current)


def _check_unit(old: Served, new: Served) -> None:
    if new.together.unit != old.together.unit:
        raise InputError(
            f"the new models read a {new.together.unit}, but the current ones a "
            f"{old.together.unit}: restart the service"
        )


def _close(generation: Generation) -> None:
    if isinstance(generation.served.together.models, ModelCache):
        generation.served.together.models.close()
    generation.batcher.close()
