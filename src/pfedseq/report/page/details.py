"""Classes, confusion matrices and calibration for the page, computed from counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pfedseq.measures import MEASURES, Counts, find_measure
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import MethodSummary
from pfedseq.runs.scores import Assessment, Scores

MOST_ENTRIES = 60_000
"""Entries of all confusion matrices on a page; beyond that, only the pooled ones."""


def predictions_of(found: Assessment | None, entries_left: int) -> dict[str, Any] | None:
    """Confusion and reliability of all clients pooled, and of each client if there is room."""
    if found is None or not found.counts:
        return None
    entries = sum(len(one.confusion) for one in found.counts.values())
    clients = None
    if entries <= entries_left:
        clients = {str(i): _plain(one) for i, one in found.counts.items()}
    return {
        "round": found.round,
        "entries": entries if clients is not None else 0,
        "together": _plain(Counts.pooled(list(found.counts.values()))),
        "clients": clients,
    }


def _plain(counts: Counts) -> dict[str, Any]:
    examples, right = counts.reliability.T
    return {
        "confusion": counts.confusion.tolist(),
        "reliability": [
            [int(n), int(k), round(float(c), 3)]
            for n, k, c in zip(examples, right, counts.confidence, strict=True)
        ],
    }


def sets_of_tests(
    scores: Scores, found: Assessment | None, clients: int
) -> list[dict[str, Any] | None]:
    """By client: number of test examples and classes, and the share of the largest class.

    The last two are None without counts: language models have none, nor have unfinished runs.
    """
    sets: list[dict[str, Any] | None] = [None] * clients
    for i, examples in zip(scores.clients, scores.test_examples, strict=True):
        if examples and i < clients:
            sets[i] = {"examples": examples, "classes": None, "largest": None}
    for i, counts in (found.counts if found is not None else {}).items():
        by_class = np.bincount(counts.confusion[:, 0], counts.confusion[:, 2])
        if (total := int(by_class.sum())) and i < clients:
            sets[i] = {
                "examples": total,
                "classes": int((by_class > 0).sum()),
                "largest": round(100 * float(by_class.max()) / total, 1),
            }
    return sets


def measures_of(summary: MethodSummary) -> dict[str, dict[str, Any]]:
    """Every measure on the test data, formatted: over clients, and over pooled examples."""
    rows = {}
    for name in (name for name in summary.scores.test if name in MEASURES):
        measure, over = find_measure(name), summary.scores.over_clients(name)
        if over is None:
            continue
        written, pooled = measure.format, summary.pooled.get(name)
        rows[name] = {
            "title": written.label(measure.title),
            "higher": measure.higher_is_better,
            "mean": written(over.client_mean),
            "worst": written(over.worst_client),
            "pooled": None if pooled is None else written(pooled),
            "undefined": over.undefined,
        }
    return rows


def adapted_layers(folder: RunFolder, method: str) -> list[int] | None:
    """The backbone's indices of the adapted layers, from a saved adapter."""
    for path in sorted((folder.path / "adapters" / method).glob("*/adapter_config.json")):
        values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        layers = values.get("layers_to_transform")
        return [int(layer) for layer in layers] if isinstance(layers, list) else None
    return None
