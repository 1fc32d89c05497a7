"""`pfedseq data`: prepare a data set, and show its distribution over clients."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedseq.cli.options import EXIT_INTERRUPTED
from pfedseq.errors import InputError

app = typer.Typer(
    help="Prepare data sets and show how they are divided among clients.", no_args_is_help=True
)

Source = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="PATH", help="Folder, archive or hub id to read images from, e.g. photos."
    ),
]
Size = Annotated[
    int | None, typer.Option("--size", help="Pixels per side. Default: the backbone's own, or 224.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="data.KEY=VALUE", help="Override a value, e.g. data.alpha=0.1; repeatable."
    ),
]


@app.command()
def prepare(
    name: Annotated[
        str,
        typer.Argument(help="A data set (see `pfedseq datasets`), a preset or a config file."),
    ],
    source: Source = None,
    size: Size = None,
    skip_unreadable: Annotated[
        bool,
        typer.Option("--skip-unreadable", help="Leave out unreadable images instead of stopping."),
    ] = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens", help="Also compute and keep the outputs of the layers below the adapters."
        ),
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Read, check, resize and store the images of a data set, once for all runs.

    It can be interrupted and called again; finished parts are kept. A run computes missing tokens
    itself; `--tokens` does so in advance.

    Examples:

    - `pfedseq data prepare omniglot --from downloads/omniglot --size 96`

    - `pfedseq data prepare cifar100` (downloads it from the hub)

    - `pfedseq data prepare folder --from photos --set data.layout=owner/class`

    - `pfedseq data prepare my.toml --tokens --set 'adapter.layers="last 4"'`
    """
    from pfedseq.data.preparing import prepare_data, store_root
    from pfedseq.report.progress import StepDisplay
    from pfedseq.report.tables import print_prepared

    if skip_unreadable:
        overrides = [*(overrides or []), "data.skip_unreadable=true"]
    config = _config(name, source, size, overrides)
    if config.data.unit != "image" and not tokens:
        raise InputError(
            f"{config.data.unit}s need no preparation; --tokens computes the outputs of the frozen "
            "layers in advance"
        )
    try:
        with StepDisplay() as display:
            prepared = None
            if config.data.unit == "image":
                prepared = prepare_data(config.data, display.report, said_with=_said_with(source))
            if tokens:
                from pfedseq.runs.world import fill_tokens

                layers = fill_tokens(config, display.report)
    except KeyboardInterrupt:
        print(
            f"pfedseq: interrupted; what is done stays in {store_root(config.data)} (*.partial), "
            "and the same command continues from there",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if prepared is not None:
        print_prepared(prepared)
    if tokens:
        print(f"The tokens of {layers} frozen layers are ready for all runs of this backbone.")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A data set, a preset or a config file, e.g. digits.")
    ],
    source: Source = None,
    size: Size = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the partition.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also draw the distribution into this file, e.g. data.png.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Show how many examples of each class every client has; with --out, also as a picture.

    Examples:

    - `pfedseq data show digits --set data.partition=dirichlet --set data.alpha=0.1`

    - `pfedseq data show demo --out clients.png`
    """
    from pfedseq.data.distribution import describe_data, draw_distribution, undrawable
    from pfedseq.data.loading import load_data, remarks
    from pfedseq.report.progress import StepDisplay
    from pfedseq.report.tables import print_clients, print_notes

    config = _config(name, source, size, overrides, seed)
    with StepDisplay() as display:
        data = load_data(config.data, config.run.seed, display.report)
    examples = data.examples
    if out is not None:
        draw_distribution(data, out)
    print_clients(describe_data(data), examples.class_names, out, examples.unit)
    unseen = undrawable(data) if out is not None else []
    print_notes([*examples.notes, *remarks(data), *unseen])


def _config(
    name: str,
    source: str | None,
    size: int | None,
    overrides: list[str] | None,
    seed: int | None = None,
) -> Any:
    """The config that a data set's name (or a config) and the options stand for."""
    from pfedseq.config import load_config, make_config
    from pfedseq.data.config import USUAL_SIDE
    from pfedseq.data.registry import DATA_SETS
    from pfedseq.model.geometry import check_image_size
    from pfedseq.presets import preset_names

    options = {"data.image_size": size, "run.seed": seed}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    if source is not None:
        given.append(f"data.source={json.dumps(source, ensure_ascii=False)}")
    assignments = [*(overrides or []), *given]
    if name.endswith(".toml") or name in set(preset_names()) - set(DATA_SETS):
        config = load_config(name, assignments).sized()
        if config.data.unit == "image":
            check_image_size(config.model.backbone, config.data.side)
        return config
    needed = {
        "folder": "the folder of images",
        "hub": "a hub id or a folder of parquet files",
        "table": "a CSV or parquet file (file_name,label,site)",
        "text": "a CSV file (client,label,text) or a folder of .txt files",
    }
    if name in needed and source is None and not _sets_source(assignments):
        raise InputError(f"{name} needs --from: {needed[name]}")
    # The source belongs to the table at once: some data sets are refused without one.
    table: dict[str, Any] = {"name": name} | ({"source": source} if source else {})
    if name in DATA_SETS and DATA_SETS[name].published:
        table["image_size"] = USUAL_SIDE
    config = make_config({"data": table}, assignments)
    if any(a.startswith("model.backbone=") for a in assignments):
        config = config.sized()
        check_image_size(config.model.backbone, config.data.side)
    return config


def _sets_source(assignments: list[str]) -> bool:
    return any(assignment.startswith("data.source=") for assignment in assignments)


def _said_with(source: str | None) -> str:
    return "data.source" if source is None else "--from"
