"""Help texts explain every argument and option in plain words, and every command has an example."""

import re

import click
import pytest
import typer

from pfedseq.cli import app

GREEK = re.compile(r"[Α-Ωα-ω]")


def commands(group, path=("pfedseq",)):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield " ".join((*path, name)), command


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", EVERY)
def test_a_command_explains_itself(name):
    command = EVERY[name]
    assert re.search(rf"`{name}\b", command.help or ""), "an example"
    first = command.help.splitlines()[0]
    assert first.endswith("."), "a sentence"
    assert not GREEK.search(command.help)
    for parameter in command.params:
        if parameter.name != "help":
            assert parameter.help, parameter.name
            assert not GREEK.search(parameter.help)
            assert not re.match(r"[A-Z],", parameter.help), "a symbol of the paper"


def test_the_list_of_commands_is_seen():
    assert len(EVERY) > 20
    assert all(isinstance(command, click.Command) for command in EVERY.values())
