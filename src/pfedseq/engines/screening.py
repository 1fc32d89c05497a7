"""Validation of replies, used by `engines/intake.py`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median

import torch

from pfedseq.engines.answer import CLIENT, DIVERGED, ROUND
from pfedseq.engines.conditions import FederationConfig
from pfedseq.federation import Reply, Tensors
from pfedseq.measures import MEASURES, Counts
from pfedseq.training.moments import is_moment

_ADVICE = ": its training diverged; lower the learning rate (training.lr)"
FEWEST_FOR_A_MEDIAN = 3
"""Minimum number of updates for a median: of two, neither can be called the outlier."""
Lengths = Mapping[int, Sequence[float]]
"""The lengths of each client's last updates."""


SCORES = ("loss", "examples")
"""Metrics that every evaluation must report for each split."""


ROUNDING = 1e-9
"""Tolerance for sums of floating-point numbers at their bounds."""


def absurd_lengths(
    replies: dict[int, Reply],
    lengths: Mapping[int, float],
    before: Lengths,
    down: Mapping[int, Tensors],
    config: FederationConfig,
) -> dict[int, str]:
    """Reasons to refuse updates of extreme length; overlong ones in `replies` are scaled down.

    What is extreme is told by the round's median. Where too few have answered for one, it is told
    by the median of the client's own updates `before`, or, if these are too few, of everyone's.
    """
    faults = {}
    for i, length in lengths.items():
        usual = _usual(i, lengths, before)
        if usual is None or usual[0] == 0:
            continue
        middle, of_what = usual
        if length > config.max_update_ratio * middle:
            faults[i] = (
                f"its update is {length / middle:.3g} times as long as the median of {of_what} "
                f"(federation.max_update_ratio is {config.max_update_ratio:g})"
            )
        elif config.clip_ratio and length > config.clip_ratio * middle:
            replies[i] = _cut(replies[i], down[i], config.clip_ratio * middle / length)
    return faults


def _usual(i: int, lengths: Mapping[int, float], before: Lengths) -> tuple[float, str] | None:
    """The length that client i's update is compared with, and of what it is the median."""
    if len(lengths) >= FEWEST_FOR_A_MEDIAN:
        return median(lengths.values()), "this round's"
    if len(own := before.get(i, ())) >= FEWEST_FOR_A_MEDIAN:
        return median(own), "its own last ones"
    everyones = [length for theirs in before.values() for length in theirs]
    if len(everyones) >= FEWEST_FOR_A_MEDIAN:
        return median(everyones), "everyone's last ones"
    return None


def score_fault(step: str, metrics: Mapping[str, float]) -> str | None:
    """Why an evaluation is refused, or None."""
    wanted = [f"{split}_{name}" for split in ("test", "validation") for name in SCORES]
    for name in wanted if step != "evaluate_mean" else []:
        if name not in metrics:
            return f"its evaluation does not report {name}"
    for name, value in metrics.items():
        low, high = _range(name)
        if not low - ROUNDING <= value <= high + ROUNDING:
            return f"its evaluation says that its {name} is {value:g}, which cannot be"
    return None


def counts_fault(reply: Reply, num_classes: int) -> str | None:
    """Why the counts of a client's test predictions are refused, or None; none may be sent."""
    if not reply.tensors:
        return None
    counts = Counts.read(reply.tensors, num_classes)
    if counts is None:
        return "the counts of its test predictions are not readable"
    said = reply.metrics["test_examples"]
    if counts.examples != said:
        return f"the counts of its test predictions do not add up to its {said:g} test examples"
    return None


def _range(name: str) -> tuple[float, float]:
    """The range of a metric."""
    measured = re.sub("^(mean_validation|validation|test)_", "", name)
    if measured in MEASURES:
        return MEASURES[measured].bounds
    return (0.0, math.inf) if name.endswith(("_examples", "_seconds")) else (-math.inf, math.inf)


def misplaced(reply: Reply, t: int, i: int, down: Mapping[int, Tensors]) -> str | None:
    """Why a reply does not answer the message sent to client i in round t, or None."""
    if i not in down:
        return "it answers a message that was not sent to it"
    for what, name, wanted in (("round", ROUND, t), ("client", CLIENT, i)):
        said = reply.metrics.get(name)
        if said is None:
            return f"it does not name the {what} whose message it answers"
        if said != wanted:
            return f"it answers a message of {what} {said:g} instead of {wanted}"
    return None


def fault_of(reply: Reply, expected: Tensors) -> str | None:
    """Why the content of a reply is refused, or None."""
    if reply.metrics.get(DIVERGED):
        return "its training diverged; lower the learning rate (training.lr)"
    for name, value in reply.metrics.items():
        if not math.isfinite(value):
            return f"its {name} is {value}{_ADVICE if name.endswith('_loss') else ''}"
    for name, like in expected.items():
        tensor = reply.tensors.get(name)
        if tensor is None:
            return f"its reply has no tensor {name!r}"
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            return (
                f"its tensor {name!r} is {_kind(tensor)} where {_kind(like)} is expected: is its "
                "adapter configured like the server's?"
            )
    for name, tensor in reply.tensors.items():
        if not tensor.isfinite().all():
            return f"its tensor {name!r} holds NaN or infinity"
    return None


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _update(reply: Reply, down: Tensors) -> Tensors:
    """The change from what was sent to a reply; a tensor that was not sent counts as a whole."""
    return {
        name: tensor - down[name] if name in down else tensor
        for name, tensor in reply.tensors.items()
        if not is_moment(name)
    }


def update_length(reply: Reply, down: Tensors) -> float:
    """‖new − old‖ over all tensors of a reply."""
    squares = (float(part.double().square().sum()) for part in _update(reply, down).values())
    return math.sqrt(sum(squares))


def _cut(reply: Reply, down: Tensors, factor: float) -> Reply:
    shortened = {
        name: down[name] + factor * part if name in down else factor * part
        for name, part in _update(reply, down).items()
    }
    return Reply(reply.tensors | shortened, reply.metrics)
