"""Options shared by several commands, and the config values they set."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pfedseq.errors import InputError

EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130

ConfigName = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="A preset, such as demo, or the path of a TOML file."),
]
Rounds = Annotated[int | None, typer.Option(help="Number of communication rounds, e.g. 10.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a config value, e.g. training.lr=0.02; repeatable.",
    ),
]
Track = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="Also log every round to tensorboard or mlflow."),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda (all GPUs), cuda:1, cuda:0,cuda:1, mps or auto."),
]


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file with a method or data set of your own; repeatable.",
    ),
]


def load_plugins(files: list[Path] | None) -> None:
    """Load the user's plug-in files."""
    if files:
        from pfedseq.config import load_plugin

        for file in files:
            load_plugin(file)


def assignments(
    overrides: list[str] | None, rounds: int | None, seed: int | None, device: str | None
) -> list[str]:
    """The config overrides that options stand for, in the form of --set."""
    options = {"run.rounds": rounds, "run.seed": seed, "engine.device": device}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return [*(overrides or []), *given]


def words(text: str | None) -> list[str]:
    """The items of a comma-separated option."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def numbers(text: str | None, option: str) -> list[int]:
    """The whole numbers of a comma-separated option."""
    try:
        found = [int(word) for word in words(text)]
    except ValueError:
        raise InputError(f"{option} {text!r} must be whole numbers, e.g. 0,1,2") from None
    if twice := [n for n in found if found.count(n) > 1]:
        raise InputError(f"{option} {text!r} names {twice[0]} twice")
    return found


def tell(sentence: str) -> None:
    """Print a message that is not an error."""
    print(f"pfedseq: note: {sentence}", file=sys.stderr)


def tell_once() -> Callable[[str], None]:
    """Print each message only once: every seed's world repeats them."""
    told: set[str] = set()

    def tell_new(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            tell(sentence)

    return tell_new


@contextmanager
def interruptible(what_now: str) -> Iterator[None]:
    """Exit with a message when Ctrl-C interrupts the block."""
    from pfedseq.runs.interrupt import StopAtOnce

    try:
        yield
    except KeyboardInterrupt as how:
        print(f"pfedseq: interrupted; {what_now}", file=sys.stderr, flush=True)
        if isinstance(how, StopAtOnce):
            os._exit(EXIT_INTERRUPTED)  # an ordinary exit would wait for training threads
        raise typer.Exit(EXIT_INTERRUPTED) from None
