"""Options that several commands have, and the config values they stand for."""

from __future__ import annotations

from typing import Annotated

import typer

EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130

ConfigName = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A preset, e.g. demo, or the path of a TOML file.")
]
Rounds = Annotated[int | None, typer.Option(help="T, communication rounds.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Override a config value; may be repeated."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.")]


def assignments(
    overrides: list[str] | None, rounds: int | None, seed: int | None, device: str | None
) -> list[str]:
    """The config values that options stand for, as --set would give them."""
    options = {"run.rounds": rounds, "run.seed": seed, "engine.device": device}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return [*(overrides or []), *given]
