"""Clients' models as folders that others load: PEFT, whole checkpoints, ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from pfedseq.data.image_store import Report, silent
from pfedseq.errors import InputError
from pfedseq.files import write_atomically
from pfedseq.model.backbone import Backbone, load_backbone
from pfedseq.runs.folder import RunFolder
from pfedseq.serving.card import model_card, run_facts
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.onnx_file import check_onnx, write_onnx
from pfedseq.workloads.images.published import refuse_registers, write_backbone, write_merged


def export_models(
    models: ClientModels,
    chosen: Sequence[int],
    to: Path,
    *,
    with_backbone: bool = False,
    merge: bool = False,
    onnx: bool = False,
    report: Report = silent,
) -> list[Path]:
    """Write the chosen clients' models to folders of their own in `to`; returns the folders.

    Where transformers cannot load the backbone by name alone (or `with_backbone` asks for it), it
    is written once, beside them. Nothing that is there already is replaced.
    """
    if onnx:
        check_onnx()
    folders = [to / models.places[index].folder.name for index in chosen]
    for folder in folders:
        if folder.exists():
            raise InputError(f"{folder} is there already: delete it, or choose another --to")
    shared = to / _backbone_name(models)
    for done, (index, folder) in enumerate(zip(chosen, folders, strict=True)):
        personal = models.load(index)
        refuse_registers(personal.model.backbone)
        base = personal.model.backbone.name
        if with_backbone or not personal.model.backbone.as_published:
            base = f"../{shared.name}"
            if not done:
                _share(personal.model.backbone, shared)
        personal.save(folder, base)
        if merge:
            write_merged(personal, folder / "merged")
        if onnx:
            write_onnx(personal, folder / "model.onnx")
        facts = run_facts(RunFolder(models.path), personal)
        card = model_card(personal, base, facts, folder.name)
        write_atomically(folder / "README.md", card)
        report("exporting", done + 1, len(chosen))
    return folders


def _backbone_name(models: ClientModels) -> str:
    """A folder for the backbone that no client's is called."""
    name, taken = "backbone", {place.folder.name.casefold() for place in models.places}
    while name in taken:
        name += "_"
    return name


def _share(backbone: Backbone, folder: Path) -> None:
    """Write the backbone for all adapters beside it, or find that it is there."""
    if not folder.exists():
        write_backbone(backbone, folder)
    elif not _same(backbone, load_backbone(str(folder))):
        raise InputError(f"{folder} is another backbone than this run's: choose another --to")


def _same(one: Backbone, other: Backbone) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return (
        mine.keys() == theirs.keys()
        and one.model.config.num_attention_heads == other.model.config.num_attention_heads
        and all(torch.equal(mine[name].cpu(), theirs[name]) for name in mine)
    )
