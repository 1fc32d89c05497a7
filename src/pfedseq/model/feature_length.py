"""The length of an encoder's feature vectors, computed from its weights."""

from torch import nn


def feature_length(tower: nn.Module) -> float:
    """√Σ(γ² + β²) over the last norm of a tower: the root mean square length of its output.

    A LayerNorm's output is γ·z + β with entries z of mean 0 and mean square 1, an RMSNorm's is γ·z.
    Returns 1 if the tower has no norm, or one without weights.
    """
    norms = [m for m in tower.modules() if type(m).__name__.endswith(("LayerNorm", "RMSNorm"))]
    parts = [getattr(norms[-1], name, None) for name in ("weight", "bias")] if norms else []
    squares = sum(float(part.detach().square().sum()) for part in parts if part is not None)
    return squares**0.5 or 1.0
