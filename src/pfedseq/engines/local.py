"""The in-process engine: a message is a function call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from pfedseq.federation import Client, MethodConfig, Reply, Task, Tensors


class Site(Protocol):
    """The place where a client's data lies."""

    def task(self, t: int, step: str) -> Task:
        """The client's objective, bound to round t and to the step it is used in."""


class LocalClients:
    """All clients in this process, several at a time where `threads` allows.

    PyTorch is held to `threads_per_client` threads inside each client, so that the number of
    clients that run side by side never changes a result.
    """

    def __init__(
        self,
        client: type[Client],
        config: MethodConfig,
        sites: Sequence[Site],
        threads: int = 1,
        threads_per_client: int = 1,
    ) -> None:
        self.client, self.config, self.sites = client, config, sites
        self.states: dict[int, Tensors] = {i: {} for i in range(len(sites))}
        torch.set_num_threads(threads_per_client)
        self._pool = ThreadPoolExecutor(
            max_workers=threads, initializer=torch.set_num_threads, initargs=(threads_per_client,)
        )

    @property
    def ids(self) -> Sequence[int]:
        """All of them, always."""
        return range(len(self.sites))

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run `step` of each addressed client; each reply tells how long it took."""
        replies = self._pool.map(lambda i: self._timed(i, step, t, down[i]), down)
        return dict(zip(down, replies, strict=True))

    def _timed(self, i: int, step: str, t: int, down: Tensors) -> Reply:
        start = time.perf_counter()
        reply = self.deliver(i, step, t, down)
        seconds = time.perf_counter() - start
        return Reply(reply.tensors, reply.metrics | {f"{step}_seconds": seconds})

    def deliver(self, i: int, step: str, t: int, down: Tensors) -> Reply:
        """Hand a message to client i and bring back its reply.

        All that passes is contiguous, as after any wire: a matrix product may round differently
        on a strided view of the same numbers.
        """
        state = self.states[i]
        reply = self._run(i, step, t, _contiguous(down), state)
        state.update(_contiguous(state))
        return Reply(_contiguous(reply.tensors), reply.metrics)

    def _run(self, i: int, step: str, t: int, down: Tensors, state: Tensors) -> Reply:
        client = self.client(self.config, self.sites[i].task(t, step), state)
        reply: Reply = getattr(client, step)(down)
        return reply


def _contiguous(tensors: Tensors) -> Tensors:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
