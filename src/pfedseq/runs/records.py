"""What is reported of a round and of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedseq.engines.rounds import RoundOutcome
from pfedseq.errors import InputError

RoundRecord = dict[str, Any]
"""One line of metrics.jsonl; every key that holds a duration ends in `_seconds`."""


def summarise_round(method: str, outcome: RoundOutcome) -> RoundRecord:
    """What a round cost, and, where clients were evaluated, how well each did.

    `client_mean` is the paper's ("averaging over all clients"); `sample_weighted` weighs each
    client by its test images; `bottom_decile` is the mean over the worst tenth of the clients.
    """
    scores = _scores(method, outcome.t, outcome.evaluated) if outcome.evaluated else {}
    return {
        "method": method,
        "round": outcome.t,
        **scores,
        "bytes_up": outcome.bytes_up,
        "bytes_down": outcome.bytes_down,
        "client_seconds": outcome.client_seconds,
        "server_seconds": outcome.server_seconds,
        "evaluate_seconds": outcome.evaluate_seconds,
    }


def _scores(method: str, t: int, clients: Mapping[int, Mapping[str, float]]) -> RoundRecord:
    """Per-client scores, and the ways to boil them down to one number."""
    ids = sorted(clients)
    for i in ids:
        if math.isnan(clients[i]["test_loss"]):
            raise InputError(
                f"{method}: client {i}'s test loss is NaN in round {t}: its training diverged; "
                "lower the learning rate (training.lr)"
            )
    column = {
        key: [clients[i][key] for i in ids]
        for key in ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss")
    }
    accuracy = np.array(column["test_accuracy"])
    sizes = [clients[i]["test_examples"] for i in ids]
    tenth = max(1, len(ids) // 10)
    return {
        "client_mean": float(accuracy.mean()),
        "sample_weighted": float(np.average(accuracy, weights=sizes)),
        "worst_client": float(accuracy.min()),
        "bottom_decile": float(np.sort(accuracy)[:tenth].mean()),
        "validation_mean": float(np.mean(column["validation_accuracy"])),
        "test_loss_mean": float(np.mean(column["test_loss"])),
        "clients": ids,
        **column,
    }


def evaluated(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """The rounds after which the clients were evaluated."""
    return [record for record in records if "client_mean" in record]


def summarise_run(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """One method's result: the last round is the headline, the best rounds stand beside it."""
    scored = evaluated(records)
    last = scored[-1]
    by_validation = max(scored, key=lambda r: r["validation_mean"])
    by_test = max(scored, key=lambda r: r["client_mean"])
    headline = ("client_mean", "sample_weighted", "worst_client", "bottom_decile")
    totals = ("bytes_up", "bytes_down", "client_seconds", "server_seconds", "evaluate_seconds")
    return {
        "rounds": last["round"],
        **{key: last[key] for key in headline},
        "test_accuracy": last["test_accuracy"],
        "best_on_validation": {
            "round": by_validation["round"],
            "client_mean": by_validation["client_mean"],
        },
        "best_on_test_optimistic": {
            "round": by_test["round"],
            "client_mean": by_test["client_mean"],
        },
        **{key: sum(record[key] for record in records) for key in totals},
    }
