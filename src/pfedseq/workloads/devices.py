"""Selects the devices for tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pfedseq.errors import InputError


def pick_devices(wanted: str | Sequence[str]) -> list[torch.device]:
    """The named devices, all of one kind; `cuda` and `auto` select all GPUs."""
    counts = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    devices = []
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if name == "auto":
            name = next(kind for kind, count in counts.items() if count)
        kind, _, number = name.partition(":")
        if (number and not number.isdigit()) or int(number or 0) >= counts.get(kind, 0):
            raise InputError(f"device {name!r} is not available here; use --device cpu or auto")
        every = range(counts["cuda"]) if name == "cuda" else []
        devices += [torch.device("cuda", card) for card in every] or [torch.device(name)]
    if len({device.type for device in devices}) > 1:
        raise InputError(
            f"engine.device names devices of several kinds ({', '.join(map(str, devices))}), which "
            "round differently and are not equally fast: choose one kind"
        )
    return devices
