"""The in-process engine: a message is a function call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from pfedseq.engines.answer import answer
from pfedseq.engines.cohort import CohortSite, Rendezvous, cohorts, run_cohort, shares
from pfedseq.engines.heap import keep_freed_memory
from pfedseq.engines.payload import Precision
from pfedseq.engines.privacy import Privacy
from pfedseq.engines.states import ClientStates, MemoryStates
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors


class LocalClients:
    """All clients in this process: `threads` cohorts at a time, each of up to `cohort` clients.

    PyTorch is held to `threads_per_client` threads inside each cohort, so that how many run side by
    side never changes a result. (Two of PyTorch's threads on one pass would wait for each other at
    every operation: on a busy machine that is many times slower than a cohort for each core.)

    `copies` are the same sites on further devices: the cohorts are shared out among all of them, as
    equally as whole cohorts can be, and the server, on the first one, sees nothing of it.
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
        copies: Sequence[Sequence[Site]] = (),
        privacy: Privacy | None = None,
    ) -> None:
        self.client, self.config, self.sites, self.cohort = client, config, sites, cohort
        self.payload: Precision = payload
        self.privacy = privacy
        self.states = MemoryStates() if states is None else states
        self.copies = copies
        torch.set_num_threads(threads_per_client)
        keep_freed_memory()

        def pool(workers: int) -> ThreadPoolExecutor:
            return ThreadPoolExecutor(
                workers, initializer=torch.set_num_threads, initargs=(threads_per_client,)
            )

        devices = 1 + len(copies)
        at_once = max(1, threads // devices)
        self._cohorts = [pool(at_once) for _ in range(devices)]
        self._members = pool(devices * at_once * cohort)

    @property
    def ids(self) -> Sequence[int]:
        """Numbers of all clients."""
        return range(len(self.sites))

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """All of them, from the start."""
        return self.ids

    def participants(self, t: int) -> Sequence[int]:
        """All of them, in every round."""
        return self.ids

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run `step` of each addressed client; each reply tells how long it took."""
        devices = 1 + len(self.copies)
        no_device_idle = max(1, -(-len(down) // devices))
        groups = cohorts(list(down), min(self.cohort, no_device_idle))
        places = [0] * len(groups)
        if self.copies:
            work = {i: self.sites[i].task(t, step).num_examples for i in down}
            places = shares(groups, work, devices)
        futures = [
            self._cohorts[place].submit(self._timed, place, members, step, t, down)
            for place, members in zip(places, groups, strict=True)
        ]
        replies: dict[int, Reply] = {}
        try:
            for future in futures:
                replies.update(future.result())
        finally:
            for future in futures:  # what has not begun when a cohort fails need not
                future.cancel()
        return {i: replies[i] for i in down}

    def _timed(
        self, place: int, members: Sequence[int], step: str, t: int, down: Mapping[int, Tensors]
    ) -> dict[int, Reply]:
        """The replies of a cohort; each client is charged an equal share of the time."""
        start, sites = time.perf_counter(), (self.sites, *self.copies)[place]
        if len(members) == 1:
            replies = [self.deliver(members[0], sites[members[0]], step, t, down[members[0]])]
        else:

            def work(i: int, meeting: Rendezvous) -> Reply:
                return self.deliver(i, CohortSite(sites[i], meeting, i), step, t, down[i])

            replies = run_cohort(self._members, members, work)
        spent = {f"{step}_seconds": (time.perf_counter() - start) / len(members)}
        return {
            i: Reply(self._moved(reply.tensors, self.sites[i]), reply.metrics | spent)
            for i, reply in zip(members, replies, strict=True)
        }

    def _moved(self, tensors: Tensors, site: Site) -> Tensors:
        """The same on the device that a site's model is on."""
        if not self.copies:
            return tensors
        device = site.task(0, "hello").initial.adapter.device
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    def deliver(self, i: int, site: Site, step: str, t: int, down: Tensors) -> Reply:
        """Hand a message to client i and bring back its reply."""
        state = self._moved(self.states.get(i), site)
        return self.answered(i, site, state, step, t, self._moved(down, site))

    def answered(
        self, i: int, site: Site, state: Tensors, step: str, t: int, down: Tensors
    ) -> Reply:
        """Client i's reply; what it remembers afterwards is stored."""
        how = (self.payload, self.privacy)
        reply = answer(self.client, self.config, site, state, step, t, i, down, *how)
        if step not in self.client.reading_steps:
            self.states.put(i, state)
        return reply
