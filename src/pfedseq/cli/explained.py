"""Commands whose help explains their arguments with any version of typer and click.

Typer before 0.21, which Flower asks for, sets the help of an argument and then lets click 8.5
overwrite it with nothing. This class restores it from the function.
"""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import click
from typer.core import TyperCommand
from typer.models import ArgumentInfo


class ExplainedCommand(TyperCommand):
    """A command that keeps the help of its arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.callback is None:
            return
        hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True)
        for parameter in self.params:
            if isinstance(parameter, click.Argument) and not parameter.help:
                notes = getattr(hints.get(parameter.name or ""), "__metadata__", ())
                told = [note.help for note in notes if isinstance(note, ArgumentInfo)]
                parameter.help = next(filter(None, told), None)
