"""Exports clients' models as PEFT folders, complete checkpoints or ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfedseq.data.image_store import Report, silent
from pfedseq.errors import InputError
from pfedseq.files import write_atomically
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.runs.folder import RunFolder
from pfedseq.serving.card import model_card, run_facts
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.onnx_file import check_onnx, write_onnx
from pfedseq.workloads import find_kind
from pfedseq.workloads.kinds import Kind


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
    """Write each chosen client's model to a folder in `to`; returns the folders.

    If transformers cannot load the backbone by name (or with `with_backbone`), it is written once,
    beside them. Existing folders are never replaced.
    """
    if onnx:
        check_onnx()
    folders = [to / models.places[index].folder.name for index in chosen]
    for folder in folders:
        if folder.exists():
            raise InputError(f"{folder} already exists: delete it, or choose another --to")
    shared = to / _backbone_name(models)
    for done, (index, folder) in enumerate(zip(chosen, folders, strict=True)):
        personal = models.load(index)
        kind, encoder = find_kind(personal.reader.unit), personal.model.encoder
        kind.check_exportable(personal)
        if onnx:
            kind.check_onnx()
        base = encoder.name
        if with_backbone or not kind.is_published(encoder):
            base = f"../{shared.name}"
            if not done:
                _share(kind, encoder, shared)
        personal.save(folder, base)
        kind.complete(personal, folder)
        if merge:
            kind.write_merged(personal, folder / "merged")
        if onnx:
            write_onnx(personal, folder / "model.onnx")
        facts = run_facts(RunFolder(models.path), personal)
        card = model_card(personal, base, facts, folder.name)
        write_atomically(folder / "README.md", card)
        report("exporting", done + 1, len(chosen))
    return folders


def _backbone_name(models: ClientModels) -> str:
    """A name for the backbone's folder that no client has."""
    name, taken = "backbone", {place.folder.name.casefold() for place in models.places}
    while name in taken:
        name += "_"
    return name


def _share(kind: Kind, encoder: Encoder, folder: Path) -> None:
    """Write the backbone that all adapters share, unless it already exists."""
    if not folder.exists():
        kind.write_backbone(encoder, folder)
    elif not kind.same_backbone(encoder, folder):
        raise InputError(
            f"{folder} contains a backbone that differs from this run's: choose another --to"
        )
