"""How often the right class is among the two likeliest."""

import numpy as np

from pfedseq import Measure


def top_two(predictions):
    """The share of examples; None where there are only two classes and it says nothing."""
    if predictions.num_classes <= 2:
        return None
    likeliest = np.argsort(-predictions.probabilities, axis=1, kind="stable")[:, :2]
    return float((likeliest == predictions.labels[:, None]).any(axis=1).mean())


MEASURE = Measure("top_two", "right among two", True, top_two, pooled="mean")
