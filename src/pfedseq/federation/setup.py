"""What a server knows about its clients, and the mean of Eq. (1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.federation.messages import Reply
from pfedseq.federation.task import AuxiliaryTask
from pfedseq.lora import Factors
from pfedseq.params import Params, capped, trimmed_mean, weighted_mean

Aggregation = Literal["mean", "median", "trimmed_mean"]


@dataclass(frozen=True)
class Setup:
    """What a server knows before round 1, and after its clients have changed.

    A server addresses its N clients by place, 0 … N − 1: the rows of its per-client tensors.
    """

    initial: Params
    num_examples: tuple[int, ...]
    """|D_i| by place: the aggregation weights of Eq. (1)."""
    num_rounds: int
    seed: int
    num_classes: int | None = None
    """C, if the server needs it (PeFLL)."""
    auxiliary: AuxiliaryTask | None = None
    """Auxiliary data, if the server distils (PerAda)."""
    aggregation: Aggregation = "mean"
    """The aggregation in Eq. (1)."""
    trim: float = 0.1
    """Share of the clients that `trimmed_mean` leaves out at each end."""
    numbers: tuple[int, ...] = ()
    """The client numbers by place; empty if they equal the places."""
    most_clients: int = 0
    """The largest number of clients so far, if it was larger than now."""
    sketch_shape: tuple[int, ...] = (3, 32, 32)
    """The shape of an example in `Task.sketches`, if the server needs it (PeFLL)."""
    factors: Factors | None = None
    """The positions of LoRA's A and B in θ; None for other adapters."""
    max_weight: float = 1.0
    """The largest share of the weights that one client may have; |D_i| is self-declared."""
    name_of: Callable[[int], str] = str
    """The name of a client by its number; newcomers' names become known when they join."""

    @property
    def clients(self) -> tuple[int, ...]:
        """The client number of each place."""
        return self.numbers or tuple(range(self.num_clients))

    @property
    def width(self) -> int:
        """The largest number of places so far."""
        return max(self.most_clients, self.num_clients)

    def reseated(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> Setup:
        """The setup with the clients at the places `kept`, then `newcomers` (|D_i| by number)."""
        return replace(
            self,
            num_examples=(*(self.num_examples[p] for p in kept), *newcomers.values()),
            numbers=(*(self.clients[p] for p in kept), *newcomers),
            most_clients=self.width,
        )

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return len(self.num_examples)

    def weights(self, present: Tensor) -> Tensor:
        """|D_i| of the clients that answered, zero for the others; none above `max_weight`."""
        sizes = present * torch.tensor(self.num_examples, device=present.device)
        return capped(sizes, self.max_weight)

    @property
    def all_weights(self) -> Tensor:
        """|D_i| of all clients (N,), as `weights` has them when everyone answers."""
        return self.weights(torch.ones(self.num_clients, dtype=torch.bool))

    def aggregate(self, stacked: Tensor, present: Tensor, *, weighted: bool = True) -> Tensor:
        """Eq. (1), or the configured aggregation, over the present clients of `stacked` (N, …)."""
        if self.aggregation == "mean":
            return weighted_mean(stacked, self.weights(present) if weighted else present)
        rows = stacked[present]
        all_but_the_middle = (len(rows) - 1) // 2
        median = self.aggregation == "median"
        return trimmed_mean(rows, all_but_the_middle if median else int(self.trim * len(rows)))

    def like(self, key: str) -> Tensor:
        """A template with the shape of `adapter`, `delta`, `head` or `head_change` in a message."""
        adapter, head = self.initial.adapter, self.initial.head
        names = {"adapter": adapter, "delta": adapter, "head": head, "head_change": head}
        return names[key]

    def stack(
        self, replies: Mapping[int, Reply], key: str, like: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tensor `key` of all clients as (N, *shape), zero if absent; and a mask of those present.

        The shape is φ^0's for `adapter`, `delta` and `head`; for any other key, that of `like`.
        Refuses a reply whose tensor is missing, has another shape, or holds a NaN: one such
        client would otherwise spoil everyone's model.
        """
        if not replies:
            raise InputError("no client answered this round; nothing was changed")
        like = self.like(key) if like is None else like
        stacked = like.new_zeros((self.num_clients, *like.shape))
        present = torch.zeros(self.num_clients, dtype=torch.bool, device=like.device)
        for i, reply in replies.items():
            stacked[i] = reply.checked(i, key, like)
            present[i] = True
        return stacked, present
