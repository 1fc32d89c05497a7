"""What an example is: all that depends on it stands behind `Workload`, a folder for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedseq.data.config import DataConfig
from pfedseq.errors import InputError
from pfedseq.model.peft_folder import read_task_type
from pfedseq.workloads.dialogue.workload import DialogueWorkload
from pfedseq.workloads.images.workload import ImageWorkload
from pfedseq.workloads.kinds import Kind
from pfedseq.workloads.personal import Asked
from pfedseq.workloads.text.workload import TextWorkload
from pfedseq.workloads.workload import Workload

WORKLOADS: tuple[type[Workload], ...] = (ImageWorkload, TextWorkload, DialogueWorkload)


def find_workload(data: DataConfig) -> type[Workload]:
    """The workload of the examples that a `[data]` section names."""
    return _of_unit(data.unit)


def find_kind(unit: str) -> Kind:
    """By what one example is called, as a saved model has it."""
    return _of_unit(unit).kind


def _of_unit(unit: str) -> type[Workload]:
    for workload in WORKLOADS:
        if workload.kind.unit == unit:
            return workload
    raise InputError(f"there is no workload for examples of the kind {unit!r}")


def asked_backbone(folder: Path, base: str, about: Mapping[str, Any], or_else: str = "") -> Asked:
    """Which backbone a saved model is for, or `or_else`; a relative path counts from the folder."""
    name = about.get("backbone", {}).get("name") or base or or_else
    if not name:
        raise InputError(f"{folder} does not say which backbone its adapter is for")
    beside = folder / name
    if beside.is_dir():  # an export's own copy of the backbone, by a relative path
        name = str(beside.resolve())
    unit = about.get("unit")
    if unit is None:  # others' folders: PEFT names the task of a language model
        unit = "dialogue" if read_task_type(folder) == "CAUSAL_LM" else "image"
    return find_kind(unit).asked(folder, name, about)
