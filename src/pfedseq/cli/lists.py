"""`pfedseq methods`, `datasets` and `presets`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer


def methods(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also list options.")] = False,
) -> None:
    """List the methods that can be run.

    Example: `pfedseq methods --verbose`
    """
    from pfedseq.report.tables import print_methods

    print_methods(verbose)


def datasets() -> None:
    """List the data sets that can be used.

    Example: `pfedseq datasets`
    """
    from pfedseq.report.tables import print_datasets

    print_datasets()


def presets() -> None:
    """List the configs that ship with the package.

    Example: `pfedseq presets`
    """
    from pfedseq.report.tables import print_presets

    print_presets()
