"""The in-process engine: a message is a function call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from pfedseq.engines.answer import answer
from pfedseq.engines.cohort import CohortSite, Rendezvous, cohorts, run_cohort
from pfedseq.engines.payload import Precision
from pfedseq.engines.states import ClientStates, MemoryStates
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors


class LocalClients:
    """All clients in this process: `threads` cohorts at a time, each of up to `cohort` clients.

    PyTorch is held to `threads_per_client` threads inside each cohort, so that how many run side by
    side never changes a result. (Two of PyTorch's threads on one pass would wait for each other at
    every operation: on a busy machine that is many times slower than a cohort for each core.)
    """

    def __init__(
        self,
        client: type[Client],
        config: MethodConfig,
        sites: Sequence[Site],
        threads: int = 1,
        threads_per_client: int = 1,
        cohort: int = 1,
        states: ClientStates | None = None,
        payload: Precision = "float32",
    ) -> None:
        self.client, self.config, self.sites, self.cohort = client, config, sites, cohort
        self.payload: Precision = payload
        self.states = MemoryStates() if states is None else states
        torch.set_num_threads(threads_per_client)
        self._cohorts, self._members = (
            ThreadPoolExecutor(
                workers, initializer=torch.set_num_threads, initargs=(threads_per_client,)
            )
            for workers in (threads, threads * cohort)
        )

    @property
    def ids(self) -> Sequence[int]:
        """All of them."""
        return range(len(self.sites))

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """All of them, from the start."""
        return self.ids

    def participants(self, t: int) -> Sequence[int]:
        """All of them, in every round."""
        return self.ids

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run `step` of each addressed client; each reply tells how long it took."""

        def run(members: Sequence[int]) -> dict[int, Reply]:
            return self._timed(members, step, t, down)

        replies: dict[int, Reply] = {}
        for some in self._cohorts.map(run, cohorts(list(down), self.cohort)):
            replies.update(some)
        return {i: replies[i] for i in down}

    def _timed(
        self, members: Sequence[int], step: str, t: int, down: Mapping[int, Tensors]
    ) -> dict[int, Reply]:
        """The replies of a cohort; each client is charged an equal share of the time."""
        start = time.perf_counter()
        if len(members) == 1:
            replies = [self.deliver(members[0], self.sites[members[0]], step, t, down[members[0]])]
        else:

            def work(i: int, meeting: Rendezvous) -> Reply:
                return self.deliver(i, CohortSite(self.sites[i], meeting, i), step, t, down[i])

            replies = run_cohort(self._members, members, work)
        spent = {f"{step}_seconds": (time.perf_counter() - start) / len(members)}
        return {
            i: Reply(reply.tensors, reply.metrics | spent)
            for i, reply in zip(members, replies, strict=True)
        }

    def deliver(self, i: int, site: Site, step: str, t: int, down: Tensors) -> Reply:
        """Hand a message to client i and bring back its reply."""
        return self.answered(i, site, self.states.get(i), step, t, down)

    def answered(
        self, i: int, site: Site, state: Tensors, step: str, t: int, down: Tensors
    ) -> Reply:
        """Client i's reply; what it remembers afterwards is stored."""
        reply = answer(self.client, self.config, site, state, step, t, i, down, self.payload)
        if step not in self.client.reading_steps:
            self.states.put(i, state)
        return reply
