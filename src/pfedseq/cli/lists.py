"""`pfedseq methods`, `datasets`, `backbones`, `presets`, `options`: lists of what can be chosen."""

from __future__ import annotations

from typing import Annotated

import typer

from pfedseq.cli.options import Plugins, load_plugins


def methods(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also list their options.")
    ] = False,
    advise: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="Say which methods suit a config's clients, and why."),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """List the methods that can be run, or those that suit a config's data.

    Examples:

    - `pfedseq methods --verbose`

    - `pfedseq methods --advise demo`
    """
    from pfedseq.report.lists import print_methods

    load_plugins(plugin)
    if advise is None:
        print_methods(verbose)
        return
    from pfedseq.config import load_config
    from pfedseq.data.loading import load_data
    from pfedseq.experiments.advice import advise as rules
    from pfedseq.experiments.advice import situation_of
    from pfedseq.report.advice import print_advice

    config = load_config(advise).sized()
    data = load_data(config.data, config.run.seed)
    situation = situation_of(data, config.federation.participation)
    print_advice(situation, rules(situation))


def datasets(plugin: Plugins = None) -> None:
    """List the data sets that can be used.

    Example: `pfedseq datasets`
    """
    from pfedseq.report.lists import print_datasets

    load_plugins(plugin)
    print_datasets()


def backbones(plugin: Plugins = None) -> None:
    """List the backbones that can be loaded, from where, and the fast paths that each has.

    Example: `pfedseq backbones`
    """
    from pfedseq.report.backbones import print_backbones

    load_plugins(plugin)
    print_backbones()


def presets() -> None:
    """List the configs that ship with the package.

    Example: `pfedseq presets`
    """
    from pfedseq.report.lists import print_presets

    print_presets()


def options(
    section: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SECTION]…",
            help="Sections of a config, e.g. training or methods.pfedseq, or single options, e.g. "
            "adapter.layers.",
        ),
    ] = None,
) -> None:
    """Explain the options of a config: default, allowed values, meaning.

    Without a section, list the options of all sections but the methods' own.

    Examples:

    - `pfedseq options training federation`

    - `pfedseq options methods.ditto`

    - `pfedseq options adapter.layers`
    """
    from pfedseq.report.options import print_options, sections

    print_options(section or [name for name in sections() if not name.startswith("methods.")])
