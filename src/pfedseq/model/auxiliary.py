"""Unlabelled images under the shared backbone: where PerAda's teachers and student meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate, kl_div, log_softmax, softmax

from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.task import ImageSource
from pfedseq.params import Params
from pfedseq.seeding import torch_generator


@dataclass(frozen=True)
class AuxiliaryImages:
    """Implements `federation.AuxiliaryTask`; teachers are adapters in the one backbone."""

    model: AdaptedModel
    source: ImageSource
    image_size: int
    """The backbone's; smaller images are enlarged when they are read."""
    seed: int

    def batches(self, t: int, count: int, size: int) -> Iterator[Tensor]:
        """Images as the first adapted layer sees them: whole shuffled passes, one after the other.

        All teachers and the student start from there, so what lies below is computed once.
        """
        order, total = torch_generator(self.seed, "auxiliary", t), len(self.source.images.images)
        passes = -(-count * size // total)
        indices = torch.cat([torch.randperm(total, generator=order) for _ in range(passes)])
        for batch in indices[: count * size].split(size):
            pixels = self.source.pixels(batch.numpy())
            if pixels.shape[-1] != self.image_size:
                pixels = interpolate(pixels, (self.image_size, self.image_size), mode="bilinear")
            yield self.model.inputs(pixels)

    @torch.no_grad()
    def logits(self, phi: Params, batch: Tensor) -> Tensor:
        """(B, C)."""
        return self.model.classify(phi.head, self.model.features(phi.adapter, batch))

    def distillation_grad(self, phi: Params, batch: Tensor, teacher: Tensor) -> Params:
        """∇_φ KL(softmax(teacher) ‖ softmax(logits(φ))), mean over the batch."""
        adapter, head = (x.detach().requires_grad_() for x in (phi.adapter, phi.head))
        student = self.model.classify(head, self.model.features(adapter, batch))
        loss = kl_div(log_softmax(student, 1), softmax(teacher, 1), reduction="batchmean")
        return Params(*torch.autograd.grad(loss, (adapter, head)))
