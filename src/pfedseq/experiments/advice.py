"""Rules of thumb for choosing methods for a config's clients, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import DialogueSet, FederatedData
from pfedseq.methods import find_method

FEW_IMAGES = 60
"""Training examples per client below which local training is hardly enough."""
MANY_IMAGES = 1000
"""Training examples per client that count as many."""
FEW_CLIENTS, MANY_CLIENTS = 4, 100
ENOUGH_IN_ROUND = 10
"""Clients in a round from which momentum at the server helps, if more are absent than present."""
ALIKE, APART = 0.75, 0.35
"""Label overlap above which clients count as similar, and below which as different."""


@dataclass(frozen=True)
class Situation:
    """The properties of the data that the rules use."""

    clients: int
    examples: float
    """The median number of training examples per client."""
    overlap: float | None
    """Mean over pairs of clients of Σ_c min(share of c, share of c): 1 for the same labels.

    None for dialogues, which have no labels.
    """
    participation: float


@dataclass(frozen=True)
class Advice:
    """Recommended methods and the reason."""

    methods: tuple[str, ...]
    reason: str
    backed: bool
    """Whether docs/lab/results.md has the evidence."""


def situation_of(data: FederatedData, participation: float) -> Situation:
    """Compute the properties from the clients' training examples."""
    labels, num_classes = data.examples.labels, len(data.examples.class_names)
    counts = [np.bincount(labels[c.train], minlength=num_classes) for c in data.clients]
    examples = float(median(int(count.sum()) for count in counts))
    if isinstance(data.examples, DialogueSet):
        return Situation(len(counts), examples, None, participation)
    shares = np.array([count / max(1, count.sum()) for count in counts])  # (N, C)
    return Situation(
        len(counts),
        examples,
        _overlap(shares),
        participation,
    )


def _overlap(shares: NDArray[Any]) -> float:
    """Mean over pairs of clients of Σ_c min(share, share), from shares (N, C); 1 for one client.

    In each class the client with the smallest share is the smaller of all its pairs, the second of
    all its other pairs, and so on.
    """
    number = len(shares)
    if number < 2:
        return 1.0
    smaller_of = np.arange(number - 1, -1, -1)[:, np.newaxis]  # pairs, by place
    pairs = number * (number - 1) / 2
    return float((np.sort(shares, axis=0) * smaller_of).sum() / pairs)


def advise(given: Situation) -> list[Advice]:
    """The rules that apply, the most informative first; methods that need a head need classes."""
    found = _by_labels(given, given.overlap) if given.overlap is not None else [_WITHOUT_LABELS]
    found += _by_numbers(given)
    if given.overlap is None:
        for number, advice in enumerate(found):
            fit = tuple(name for name in advice.methods if not find_method(name).needs_head)
            found[number] = replace(advice, methods=fit)
    return found


def _by_labels(given: Situation, overlap: float) -> list[Advice]:
    """The rules about the clients' classes."""
    found = []
    if overlap >= ALIKE and given.examples < FEW_IMAGES:
        found.append(
            Advice(
                ("fedavg",),
                "clients have the same classes and few examples each: a shared model helps more "
                "than personal ones",
                backed=True,
            )
        )
        found.append(
            Advice(
                ("fedavgm", "fedprox"),
                "the same; momentum or a proximal term may help further",
                backed=False,
            )
        )
    if overlap <= APART:
        found.append(
            Advice(
                ("pfedseq", "pefll", "pfedhn", "pfedla", "fedrep"),
                "clients have different classes: a private head on a shared or generated adapter; "
                "one model for all is a poor fit",
                backed=True,
            )
        )
        found.append(
            Advice(
                ("fedrod", "fedsa_lora", "feddpa", "fedalt"),
                "different classes: a private LoRA or head beside a common one; better than Local, "
                "not as good as the above",
                backed=True,
            )
        )
    if overlap > APART:
        found.append(
            Advice(
                ("pfedseq", "pefll", "pfedhn", "fedrep"),
                "clients share classes but their examples may differ: a shared or generated "
                "adapter with a personal part",
                backed=True,
            )
        )
    return found


_WITHOUT_LABELS = Advice(
    ("pfedseq", "ditto", "feddpa"),
    "clients may answer the same prompts differently: a common adapter with a personal part",
    backed=False,
)


def _by_numbers(given: Situation) -> list[Advice]:
    """The rules about the numbers of clients and examples."""
    found = []
    if given.examples >= MANY_IMAGES:
        found.append(
            Advice(
                ("pfedseq", "pefll", "fedrep"),
                "every client has many examples: learning together still pays, but less; compare "
                "with Local, too",
                backed=True,
            )
        )
    absent = given.participation < 0.5
    enough = given.participation * given.clients >= ENOUGH_IN_ROUND
    if absent and enough:
        found.append(
            Advice(
                ("pfedseq", "fedrep", "fedavgm"),
                "less than half of the clients take part in a round: use momentum at the server, "
                "methods.pfedseq.server_momentum = 0.9 with methods.pfedseq.gain = 10 and "
                "methods.fedrep.server_momentum = 0.9 (FedAvgM has it)",
                backed=True,
            )
        )
    if absent and not enough:
        found.append(
            Advice(
                ("pefll", "pfedhn", "fedrep"),
                "few clients take part in a round: momentum at the server would add up the updates "
                "of clients that differ, so leave it out",
                backed=True,
            )
        )
    if given.clients > MANY_CLIENTS or (absent and enough):
        found.append(
            Advice(
                ("ghbm", "scaffold"),
                "only some clients take part in a round: momentum or control variates over several "
                "rounds account for the absent ones",
                backed=False,
            )
        )
    if given.clients < FEW_CLIENTS:
        found.append(
            Advice(
                ("local", "ditto", "apple"),
                "very few clients: there is little to average; compare with local training",
                backed=False,
            )
        )
    return found


def sentences(given: Situation) -> Sequence[str]:
    """Describe the properties in words."""
    overlap = (
        ()
        if given.overlap is None
        else (
            f"their labels overlap by {100 * given.overlap:.0f} % on average (100 %: the same "
            "classes in the same shares)",
        )
    )
    return (
        f"{given.clients} clients, {given.examples:.0f} training examples each (median)",
        *overlap,
        f"{100 * given.participation:.0f} % of them take part in a round",
    )
