"""`pfedseq backbones`: values of `model.backbone`, and the fast paths of each family."""

from __future__ import annotations

from rich.markup import escape

from pfedseq.model.encoders import FAMILIES
from pfedseq.model.geometry import ARCHITECTURES, RANDOM_PREFIX, SUFFIXES
from pfedseq.model.language_model import DEMO
from pfedseq.report.console import console, plain_table

_FIRST_ARCHITECTURE, *_OTHER_ARCHITECTURES = ARCHITECTURES
_FIRST_SUFFIX, *_OTHER_SUFFIXES = SUFFIXES
SOURCES = (
    ("demo", "the small ViT inside this package, for images"),
    ("ORGANISATION/MODEL", "a model of the hub, in transformers' format or in timm's"),
    ("path/to/folder", "the same files in a folder: config.json, model.safetensors, …"),
    (
        f"path/to/file{_FIRST_SUFFIX}",
        f"weights in timm's naming, or of the augreg release; also {', '.join(_OTHER_SUFFIXES)}",
    ),
    (
        f"{RANDOM_PREFIX}{_FIRST_ARCHITECTURE}",
        "a ViT with random weights, for tests and timings; also "
        f"{', '.join((*_OTHER_ARCHITECTURES, 'demo'))}",
    ),
    (f"{RANDOM_PREFIX}bert-tiny", "a BERT with random weights, for texts"),
    (DEMO, "the small Llama inside this package, for dialogues"),
)


def print_backbones() -> None:
    """Print the sources of backbones and the supported families."""
    console.print("[bold]Sources[/bold] (model.backbone)")
    sources = plain_table()
    sources.add_column("name", no_wrap=True)
    sources.add_column("what it is")
    for name, what in SOURCES:
        sources.add_row(escape(name), what)
    console.print(sources)
    for unit in dict.fromkeys(family.unit for family in FAMILIES.values()):
        _print_families(unit)
    _print_fast_paths()
    for problem in FAMILIES.broken.values():
        console.print(f"Warning: {escape(problem)}", soft_wrap=True)


def _print_families(unit: str) -> None:
    """The families that read images, texts or dialogues; an example is never broken in two."""
    chosen = [family for family in FAMILIES.values() if family.unit == unit]
    timm = any(family.reads_timm for family in chosen)
    console.print(f"[bold]Families for {unit}s[/bold] (model_type of config.json)")
    families = plain_table()
    for heading in ("family", "for example"):
        families.add_column(heading, no_wrap=True)
    if timm:
        families.add_column("timm's files")
    families.add_column("model_type", overflow="fold")
    for family in chosen:
        reads = ["yes" if family.reads_timm else ""] * timm
        kinds = ", ".join(family.model_types)
        families.add_row(escape(family.title), escape(family.example), *reads, kinds)
    console.print(families)


def _print_fast_paths() -> None:
    """The fast paths that all families have, and those that single ones add."""
    common = [
        path
        for path in next(iter(FAMILIES.values())).fast_paths
        if all(path in family.fast_paths for family in FAMILIES.values())
    ]
    console.print(f"[bold]Fast paths[/bold] of all families: {', '.join(common) or 'none'}")
    for family in FAMILIES.values():
        if more := [path for path in family.fast_paths if path not in common]:
            console.print(f"{escape(family.title)} also: {', '.join(more)}")
