"""Attribution of each client's calibration, computed from a run's last checkpoint."""

from __future__ import annotations

from typing import Any

import torch

from pfedseq.config import read_config
from pfedseq.data.record import train_count
from pfedseq.errors import InputError
from pfedseq.federation import Setup
from pfedseq.learners.attribution import attribute
from pfedseq.methods.pfedseq import PFedSeqServer
from pfedseq.params import Params
from pfedseq.runs.checkpoint import newest_server, restore_server
from pfedseq.runs.folder import RunFolder


def calibration_origins(folder: RunFolder) -> dict[str, Any] | None:
    """The attribution of ξ at the last checkpoint as plain values; None before the first one.

    It needs neither data nor backbone: the learner and its window are part of the server.
    """
    newest = newest_server(folder.checkpoints("pfedseq"))
    if newest is None:
        return None
    checkpoint, memory = newest
    t = checkpoint.round
    config, data = read_config(folder.config), folder.read_data()
    assert data is not None  # written before the first round
    nothing = Params(torch.zeros(memory["adapters"].shape[1:]), torch.zeros(1))
    counts = tuple(train_count(client) for client in data["clients"])
    setup = Setup(nothing, counts, config.run.rounds, config.run.seed)
    server = PFedSeqServer(config.method_config("pfedseq"), setup)  # type: ignore[arg-type]
    try:
        restore_server(server, memory, only=("history", "learner"))
    except (KeyError, ValueError, RuntimeError) as problem:
        raise InputError(
            f"the checkpoint of {folder.path} has another format ({problem})"
        ) from None
    known, window = server.history.known(), server.history.inputs()
    if not isinstance(window, torch.Tensor):
        raise InputError(
            'with mixing = "pooled", calibrations come from sums over all rounds and cannot '
            'be attributed to rounds or clients; set mixing = "dense" for that'
        )
    found = attribute(lambda window: server.learner(window, known), window)
    length = found.parts.shape[-1]
    return {
        "round": t,
        "seed": config.run.seed,
        "clients": [data["clients"][i]["name"] for i in server.setup.clients],
        "rounds": list(range(t - length + 1, t + 1)),
        "by_client": _plain(found.by_client),
        "by_round": _plain(found.parts.sum(1)),
        "left_out": _plain(found.left_out),
        "agreement": None if found.agreement is None else round(found.agreement, 3),
        "silent": bool((found.parts == 0).all()),
    }


def _plain(values: torch.Tensor) -> list[list[float]]:
    rows: list[list[float]] = [[round(v, 4) for v in row] for row in values.double().tolist()]
    return rows
