"""The in-process engine: a message is a function call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from pfedseq.engines.answer import answer
from pfedseq.engines.grouping import grouped, shares
from pfedseq.engines.heap import keep_freed_memory
from pfedseq.engines.payload import PayloadKind
from pfedseq.engines.privacy import Privacy
from pfedseq.engines.rendezvous import Rendezvous, SharingSite, run_together
from pfedseq.engines.states import ClientStates, MemoryStates
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors


class LocalClients:
    """All clients in this process: `threads` groups at a time, each of up to `clients_per_pass`.

    What the clients of a group ask of their tasks goes through the backbone in one pass.

    PyTorch is held to `threads_per_client` threads inside each group, so that how many run side by
    side never changes a result. (Two PyTorch threads on one pass would wait for each other at every
    operation; on a busy machine that is many times slower than one group per core.)

    `copies` are the same sites on further devices: groups are distributed over all of them as
    evenly as possible, and the server, on the first device, does not notice.
    """

    def __init__(
        self,
        client: type[Client],
        config: MethodConfig,
        sites: Sequence[Site],
        threads: int = 1,
        threads_per_client: int = 1,
        clients_per_pass: int = 1,
        states: ClientStates | None = None,
        payload: PayloadKind = "float32",
        copies: Sequence[Sequence[Site]] = (),
        privacy: Privacy | None = None,
    ) -> None:
        self.client, self.config, self.sites = client, config, sites
        self.clients_per_pass = clients_per_pass
        self.payload: PayloadKind = payload
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
        self._groups = [pool(at_once) for _ in range(devices)]
        self._members = pool(devices * at_once * clients_per_pass)

    @property
    def ids(self) -> Sequence[int]:
        """Numbers of all clients."""
        return range(len(self.sites))

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """All clients, from the start."""
        return self.ids

    def participants(self, t: int) -> Sequence[int]:
        """All clients, in every round."""
        return self.ids

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run `step` at each addressed client; each reply reports how long it took."""
        devices = 1 + len(self.copies)
        no_device_idle = max(1, -(-len(down) // devices))
        groups = grouped(list(down), min(self.clients_per_pass, no_device_idle))
        places = [0] * len(groups)
        if self.copies:
            work = {i: self.sites[i].task(t, step).num_examples for i in down}
            places = shares(groups, work, devices)
        futures = [
            self._groups[place].submit(self._timed, place, members, step, t, down)
            for place, members in zip(places, groups, strict=True)
        ]
        replies: dict[int, Reply] = {}
        try:
            for future in futures:
                replies.update(future.result())
        finally:
            for future in futures:  # when a group fails, the remaining ones need not start
                future.cancel()
        return {i: replies[i] for i in down}

    def _timed(
        self, place: int, members: Sequence[int], step: str, t: int, down: Mapping[int, Tensors]
    ) -> dict[int, Reply]:
        """The replies of a group; each client is charged an equal share of the time."""
        start, sites = time.perf_counter(), (self.sites, *self.copies)[place]
        if len(members) == 1:
            replies = [self.deliver(members[0], sites[members[0]], step, t, down[members[0]])]
        else:

            def work(i: int, meeting: Rendezvous) -> Reply:
                return self.deliver(i, SharingSite(sites[i], meeting, i), step, t, down[i])

            replies = run_together(self._members, members, work)
        spent = {f"{step}_seconds": (time.perf_counter() - start) / len(members)}
        return {
            i: Reply(self._moved(reply.tensors, self.sites[i]), reply.metrics | spent)
            for i, reply in zip(members, replies, strict=True)
        }

    def _moved(self, tensors: Tensors, site: Site) -> Tensors:
        """The tensors on the device of a site's model."""
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
        """Client i's reply; its new state is stored."""
        how = (self.payload, self.privacy)
        reply = answer(self.client, self.config, site, state, step, t, i, down, *how)
        if step not in self.client.reading_steps:
            self.states.put(i, state)
        return reply
