"""`pfedseq backbones`: values of `model.backbone`, and the fast paths of each family."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from pfedseq.model.encoders import FAMILIES
from pfedseq.model.geometry import ARCHITECTURES, RANDOM_PREFIX, SUFFIXES
from pfedseq.model.language_model import DEMO
from pfedseq.report.console import console

SOURCES = (
    ("demo", "the small ViT inside this package, for images"),
    ("ORGANISATION/MODEL", "a model of the hub, in transformers' format or in timm's"),
    ("path/to/folder", "the same files in a folder: config.json, model.safetensors, …"),
    (f"path/to/file{'|'.join(SUFFIXES)}", "weights in timm's naming, or of the augreg release"),
    (
        f"{RANDOM_PREFIX}{'|'.join((*ARCHITECTURES, 'demo'))}",
        "a ViT with random weights, for tests and timings",
    ),
    (f"{RANDOM_PREFIX}bert-tiny", "a BERT with random weights, for texts"),
    (DEMO, "the small Llama inside this package, for dialogues"),
)


def print_backbones() -> None:
    """Print the sources of backbones and the supported families."""
    sources = Table(title="Sources (model.backbone)", title_justify="left")
    for heading in ("name", "what it is"):
        sources.add_column(heading, overflow="fold")
    for name, what in SOURCES:
        sources.add_row(escape(name), what)
    console.print(sources)
    families = Table(
        title="Families, by model_type of config.json in transformers' format",
        title_justify="left",
        show_lines=True,
    )
    for heading in ("family", "reads", "model_type", "timm's files", "for example", "fast paths"):
        families.add_column(heading, overflow="fold")
    for family in FAMILIES.values():
        families.add_row(
            escape(family.title),
            f"{family.unit}s",
            ", ".join(family.model_types),
            "yes" if family.reads_timm else "",
            escape(family.example),
            ", ".join(family.fast_paths),
        )
    console.print(families)
    for problem in FAMILIES.broken.values():
        console.print(f"Warning: {escape(problem)}", soft_wrap=True)
