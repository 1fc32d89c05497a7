"""All measures of a model that predicts classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from pfedseq.data.image_store import Report
from pfedseq.measures import MEASURES, Score, score
from pfedseq.workloads.personal import PREDICTION_BATCH, Example, PersonalModel


@torch.no_grad()
def score_classes(
    personal: PersonalModel,
    examples: Iterator[Example],
    labels: NDArray[np.int64],
    report: Report,
) -> Score:
    """All measures on examples with these labels (n,), and counts."""
    logits, total = [], len(labels)
    for start in range(0, total, PREDICTION_BATCH):
        wanted = labels[start : start + PREDICTION_BATCH]
        logits.append(personal.logits(personal.inputs([next(examples) for _ in wanted])).cpu())
        report("evaluating", start + len(wanted), total)
    return score(torch.cat(logits), torch.from_numpy(labels), tuple(MEASURES), counts=True)
