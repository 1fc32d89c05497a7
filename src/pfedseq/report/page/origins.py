"""Where each client's calibration came from, computed from a run's last checkpoint alone."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pfedseq.config import load_config
from pfedseq.engines.states import MemoryStates
from pfedseq.errors import InputError
from pfedseq.federation import Setup
from pfedseq.learners.attribution import attribute
from pfedseq.methods.pfedseq import PFedSeqServer
from pfedseq.params import Params
from pfedseq.runs.checkpoint import Checkpoint
from pfedseq.runs.folder import RunFolder


def calibration_origins(folder: RunFolder) -> dict[str, Any] | None:
    """The account of ξ at the last checkpoint, as plain values; None before the first one.

    Neither data nor backbone are needed: the learner, and the window it reads, are the server's.
    """
    path = folder.checkpoint("pfedseq")
    if not path.exists():
        return None
    config, data = load_config(folder.config), folder.read_data()
    assert data is not None  # a run writes down its data before its first round
    try:
        with safe_open(path, "pt") as file:
            shape = file.get_slice("adapters").get_shape()
    except (SafetensorError, OSError) as problem:
        raise InputError(f"the checkpoint {path} is not readable ({problem})") from None
    nothing = Params(torch.zeros(shape[1:]), torch.zeros(1))
    counts = tuple(len(client["train"]) for client in data["clients"])
    setup = Setup(nothing, counts, config.run.rounds, config.run.seed)
    server = PFedSeqServer(config.method_config("pfedseq"), setup)  # type: ignore[arg-type]
    t = Checkpoint(path, MemoryStates()).load(server, torch.device("cpu"))
    found = attribute(server.learner, server.history.window())
    length = found.parts.shape[-1]
    return {
        "round": t,
        "seed": config.run.seed,
        "clients": [client["name"] for client in data["clients"]],
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
