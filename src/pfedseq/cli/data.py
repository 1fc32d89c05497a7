"""`pfedseq data …`: prepare a data set once, and look at who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

app = typer.Typer(
    help="Prepare data sets and look at their division among clients.", no_args_is_help=True
)

Source = Annotated[
    str | None,
    typer.Option("--from", metavar="PATH", help="Folder, archive or hub id to read images from."),
]
Size = Annotated[
    int | None, typer.Option("--size", help="Pixels per side; default 224, digits 32.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="data.KEY=VALUE", help="Override a value; may be repeated."),
]


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="A data set; `pfedseq datasets` lists them.")],
    source: Source = None,
    size: Size = None,
    overrides: Overrides = None,
) -> None:
    """Read, check, resize and store the images of a data set, once for all runs.

    May be interrupted and called again; what is finished is kept.

    Examples:

    - `pfedseq data prepare omniglot --from downloads/omniglot --size 96`

    - `pfedseq data prepare cifar100` (fetches it from the hub)

    - `pfedseq data prepare folder --from photos --set data.layout=owner/class`
    """
    from pfedseq.data.preparing import prepare_data
    from pfedseq.report.progress import StepDisplay
    from pfedseq.report.tables import print_prepared

    config = _config(name, source, size, overrides)
    with StepDisplay() as display:
        prepared = prepare_data(config.data, display.report)
    print_prepared(prepared)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A data set, or a preset or config file.")],
    source: Source = None,
    size: Size = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the division among clients.")] = None,
    out: Annotated[Path | None, typer.Option(help="The picture; default NAME-clients.png.")] = None,
    overrides: Overrides = None,
) -> None:
    """Print clients × classes and draw the paper's figure of the distribution.

    Examples:

    - `pfedseq data show digits --set data.partition=dirichlet --set data.alpha=0.1`

    - `pfedseq data show demo --out clients.png`
    """
    from pfedseq.data.distribution import describe_data, draw_distribution
    from pfedseq.data.loading import load_data
    from pfedseq.report.progress import StepDisplay
    from pfedseq.report.tables import print_clients

    config = _config(name, source, size, overrides, seed)
    picture = out or Path(f"{config.data.name}-clients.png")
    with StepDisplay() as display:
        data = load_data(config.data, config.run.seed, display.report)
    draw_distribution(data, picture)
    print_clients(describe_data(data), data.images.class_names, picture)


def _config(
    name: str,
    source: str | None,
    size: int | None,
    overrides: list[str] | None,
    seed: int | None = None,
) -> Any:
    """The config that a data set's name (or a config) and the options stand for."""
    from pfedseq.config import load_config, make_config
    from pfedseq.data.config import DataName
    from pfedseq.presets import preset_names

    options = {"data.image_size": size, "run.seed": seed}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    if source is not None:
        given.append(f"data.source='{source}'")
    assignments = [*(overrides or []), *given]
    if name.endswith(".toml") or name in set(preset_names()) - set(get_args(DataName)):
        return load_config(name, assignments)
    # The source belongs to the table at once: some data sets are refused without one.
    table = {"name": name} | ({"source": source} if source else {})
    return make_config({"data": table}, assignments)
