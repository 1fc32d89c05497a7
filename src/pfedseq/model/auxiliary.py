"""Unlabelled examples for distillation: logits of PerAda's teachers and student on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, softmax

from pfedseq.model.adapted import AdaptedModel
from pfedseq.params import Params
from pfedseq.seeding import torch_generator


@dataclass(frozen=True)
class AuxiliaryExamples:
    """Implements `federation.AuxiliaryTask`; teachers are adapters in the one backbone."""

    model: AdaptedModel
    read: Callable[[NDArray[np.int64]], Tensor]
    """The inputs of the first adapted layer for examples by index."""
    count: int
    seed: int
    threads: int = 1
    """Number of teachers that process a batch in parallel."""

    def batches(self, t: int, count: int, size: int) -> Iterator[Tensor]:
        """Batches of complete shuffled passes, one pass after another.

        Teachers and student share these inputs, so the frozen layers below run once.
        """
        order = torch_generator(self.seed, "auxiliary", t)
        passes = -(-count * size // self.count)
        indices = torch.cat([torch.randperm(self.count, generator=order) for _ in range(passes)])
        for batch in indices[: count * size].split(size):
            yield self.read(batch.numpy())

    def logits(self, phis: Sequence[Params], batch: Tensor) -> Tensor:
        """(…, B, C): one pass per φ, in parallel.

        A batch fills a pass, so stacking several adapters in one would not be faster.
        """

        @torch.no_grad()
        def of(phi: Params) -> Tensor:
            return self.model.classify(phi.head, self.model.features(phi.adapter, batch))

        return torch.stack(list(self._side_by_side.map(of, phis)))

    @cached_property
    def _side_by_side(self) -> ThreadPoolExecutor:
        # One PyTorch thread each, so that their number does not change a bit of the result.
        return ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))

    def distillation_grad(self, phi: Params, batch: Tensor, teacher: Tensor) -> Params:
        """∇_φ KL(softmax(teacher) ‖ softmax(logits(φ))), mean over the batch."""
        adapter, head = (x.detach().requires_grad_() for x in (phi.adapter, phi.head))
        student = self.model.classify(head, self.model.features(adapter, batch))
        loss = kl_div(log_softmax(student, 1), softmax(teacher, 1), reduction="batchmean")
        return Params(*torch.autograd.grad(loss, (adapter, head)))
