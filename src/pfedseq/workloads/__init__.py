"""What an example is: all that depends on it stands behind `Workload`, a folder for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pfedseq.data.config import DataConfig
from pfedseq.errors import InputError
from pfedseq.workloads import images, text
from pfedseq.workloads.images.workload import ImageWorkload
from pfedseq.workloads.personal import Asked
from pfedseq.workloads.text.workload import TextWorkload
from pfedseq.workloads.workload import Workload

WORKLOADS: dict[str, type[Workload]] = {"image": ImageWorkload, "text": TextWorkload}
"""By what one example is called, as `personal_model.json` has it."""
_ASKED: dict[str, Callable[[Path, str, Mapping[str, Any]], Asked]] = {
    "image": images.asked_backbone,
    "text": text.asked_backbone,
}


def find_workload(data: DataConfig) -> type[Workload]:
    """The kind of the examples that a `[data]` section names."""
    kinds = (kind for kind in WORKLOADS.values() if data.name in kind.data_names)
    return next(kinds, ImageWorkload)


def asked_backbone(folder: Path, base: str, about: Mapping[str, Any], or_else: str = "") -> Asked:
    """Which backbone a saved model is for, or `or_else`; a relative path counts from the folder."""
    name = about.get("backbone", {}).get("name") or base or or_else
    if not name:
        raise InputError(f"{folder} does not say which backbone its adapter is for")
    beside = folder / name
    if beside.is_dir():  # an export's own copy of the backbone, by a relative path
        name = str(beside.resolve())
    return _ASKED[about.get("unit", "image")](folder, name, about)
