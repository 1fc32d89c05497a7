"""The command line: thin functions over the Python API, one sentence per user error."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pfedseq import __version__
from pfedseq.cli import data, doctor, experiments, flower, lists, models, page, run, serve
from pfedseq.cli.explained import ExplainedCommand
from pfedseq.cli.options import EXIT_BAD_INPUT
from pfedseq.errors import InputError

app = typer.Typer(
    name="pfedseq",
    help="Tune a foundation model for each of many parties, without sharing their data.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="Start with: `pfedseq run demo`",
    suggest_commands=False,  # click does so already
)
for command in (
    run.run,
    run.resume,
    run.compare,
    models.predict,
    models.evaluate,
    models.export,
    serve.serve,
    experiments.reproduce,
    experiments.plan,
    experiments.tune,
    page.report,
    lists.methods,
    lists.datasets,
    lists.backbones,
    lists.presets,
    lists.options,
    doctor.doctor,
):
    app.command()(command)
app.command("import")(models.import_)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")
for group in (app, data.app, flower.app):
    for registered in group.registered_commands:
        registered.cls = ExplainedCommand


def main() -> None:
    """Run the command line; a user's error is one sentence on stderr and exit code 2."""
    try:
        app()
    except InputError as problem:
        print(f"pfedseq: {problem}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pfedseq {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None: ...
