"""Top-2 accuracy: how often the true class is among the two most likely."""

import numpy as np

from pfedseq import Measure


def top_two(predictions):
    """The share of examples; None with two classes, where it is always 1."""
    if predictions.num_classes <= 2:
        return None
    likeliest = np.argsort(-predictions.probabilities, axis=1, kind="stable")[:, :2]
    return float((likeliest == predictions.labels[:, None]).any(axis=1).mean())


MEASURE = Measure("top_two", "top-2 accuracy", True, top_two, pooled="mean")
