"""Kinds of examples: everything that depends on one is behind `Workload`, in a folder per kind."""

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
    """The workload for the examples of a `[data]` section."""
    return _of_unit(data.unit)


def find_kind(unit: str) -> Kind:
    """The kind of examples with this name, such as `image`, as stored in a saved model."""
    return _of_unit(unit).kind


def _of_unit(unit: str) -> type[Workload]:
    for workload in WORKLOADS:
        if workload.kind.unit == unit:
            return workload
    raise InputError(f"there is no workload for examples of the kind {unit!r}")


def asked_backbone(folder: Path, base: str, about: Mapping[str, Any], or_else: str = "") -> Asked:
    """The backbone of a saved model, or `or_else`; relative paths start at the folder."""
    name = about.get("backbone", {}).get("name") or base or or_else
    if not name:
        raise InputError(f"{folder} does not name the backbone of its adapter")
    beside = folder / name
    if beside.is_dir():  # an export's copy of the backbone, at a relative path
        name = str(beside.resolve())
    unit = about.get("unit")
    if unit is None:  # a folder of another program: PEFT names the task of a language model
        unit = "dialogue" if read_task_type(folder) == "CAUSAL_LM" else "image"
    return find_kind(unit).asked(folder, name, about)
