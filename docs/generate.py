"""Writes the reference pages that follow from the code: options, methods, commands, Python names.

Sphinx calls `write_pages` before it reads the pages (docs/conf.py). What is written is not
committed, so it cannot be out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import typer
from pydantic import BaseModel

from pfedseq.cli import app
from pfedseq.federation import Method
from pfedseq.methods import METHODS
from pfedseq.report.options import Option, options, sections, summary
from pfedseq.training.config import LocalTraining

NAMES = {
    "pfedseq": None,  # all of __all__
    "pfedseq.federation": (
        *("Method", "MethodConfig", "Server", "Client", "Setup", "Reply", "Task", "Site"),
        *("Clients", "Hello"),
    ),
    "pfedseq.measures": ("Score",),
    "pfedseq.params": ("Params", "weighted_mean"),
    "pfedseq.training.optimizer": ("LocalOptimizer",),
    "pfedseq.methods.parts.step_along": ("step_along",),
}
"""Modules and the names of theirs that the API reference shows."""


def write_pages(folder: Path) -> None:
    """Write all generated pages into `folder`, which belongs to this function alone."""
    pages = {
        "options.md": options_page(),
        "cli.md": cli_page(),
        "api.md": api_page(),
        **{f"methods/{name}.md": method_page(name) for name in METHODS},
    }
    for name, text in pages.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists() or place.read_text(encoding="utf-8") != text:  # spares rebuilding it
            place.write_text(text, encoding="utf-8")
    for old in folder.rglob("*.md"):
        if str(old.relative_to(folder).as_posix()) not in pages:
            old.unlink()


def options_page() -> str:
    """Every section of a config with a table of its options."""
    parts = [
        "# Configuration\n",
        "A config is a TOML file. Every option is listed with its default, its allowed values and "
        "its meaning; “paper” is the value of the pFedSeq paper. `--set section.key=value` "
        "overrides one on the command line, `pfedseq options SECTION` shows this list in a "
        "terminal, and every run writes the values it used to `config.toml`. Unknown keys are "
        "refused.\n",
        "Methods read `lr`, `local_epochs` and the other options of `[training]` unless their own "
        "section, `[methods.NAME]`, sets them; here these sections list only what they add.\n",
    ]
    for name, section in sections().items():
        method = name.removeprefix("methods.") if name.startswith("methods.") else None
        parts += [f"## [{name}]\n", f"{summary(section)[:1].upper()}{summary(section)[1:]}.\n"]
        shown = options(section) if method is None else _own_options(METHODS[method])
        if shown:
            parts.append(_option_table(shown))
        if method is not None:
            parts.append(f"See [{METHODS[method].title}](methods/{method}.md).\n")
    return "\n".join(parts)


def method_page(name: str) -> str:
    """What a method's file says about it, and the options that only it has."""
    method = METHODS[name]
    module = _module_of(method)
    title, _, text = inspect.cleandoc(module.__doc__ or "").partition("\n")
    own = _own_options(method)
    shared = [o for o in options(method.config) if o.key in LocalTraining.model_fields]
    parts = [
        f"# {method.title}\n",
        f"*{title}*\n",
        _paragraphs(text),
        f"```sh\npfedseq run demo --method {name}\n```\n",
        f"Source: `src/{module.__name__.replace('.', '/')}.py`\n",
    ]
    if own:
        parts += [f"## Options\n\nIn `[methods.{name}]`:\n", _option_table(own)]
    parts += [
        f"## Options of local training\n\nFrom `[training]` unless `[methods.{name}]` sets them:\n",
        _option_table(shared),
    ]
    return "\n".join(parts)


def cli_page() -> str:
    """Every command with its arguments and options."""
    parts = [
        "# Command line\n",
        "Every command explains itself with `--help`. A user's error is one sentence and exit "
        "code 2; 130 means that Ctrl-C stopped it.\n",
    ]
    root = typer.main.get_command(app)
    for path, command in _commands(root, ()):
        context = click.Context(command, info_name=f"pfedseq {' '.join(path)}")
        usage = re.sub(r"\s+", " ", command.get_usage(context)).removeprefix("Usage: ")
        parts += [f"## pfedseq {' '.join(path)}\n", f"```text\n{usage}\n```\n"]
        parts.append(inspect.cleandoc(command.help or "") + "\n")
        rows = [row for parameter in command.params if (row := _parameter(parameter, context))]
        parts.append(_table(("", "meaning"), rows))
    return "\n".join(parts)


def api_page() -> str:
    """The public names, as directives of Sphinx's Python domain with Markdown inside."""
    parts = [
        "# Python API\n",
        "`pfedseq` runs experiments and reads their results; `pfedseq.federation` is what a method "
        "of your own is written with ([own methods](../../howto/own-method.md)).\n",
    ]
    for module_name, chosen in NAMES.items():
        module = importlib.import_module(module_name)
        parts += [f"## {module_name}\n"]
        for name in chosen or sorted(module.__all__, key=str.lower):
            parts.append(_described(getattr(module, name), name, module_name))
    return "\n".join(parts)


def _own_options(method: Method) -> list[Option]:
    """The options of a method that [training] does not have."""
    return [o for o in options(method.config) if o.key not in LocalTraining.model_fields]


def _module_of(method: Method) -> ModuleType:
    """The file that a method is defined in."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("pfedseq.methods.") and method in vars(module).values():
            return module
    raise LookupError(f"no module of pfedseq.methods defines {method.name}")


def _commands(
    group: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group that does something, with the words that name it."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name), command


def _parameter(parameter: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    """How a parameter is written, and what it means."""
    if isinstance(parameter, click.Argument):
        required = "Required." if parameter.required else "Optional."
        return f"`{parameter.make_metavar(context)}`", f"{parameter.help or ''} {required}"
    record = parameter.get_help_record(context)
    # Some versions of typer escape the bracket in "[default: 3]" for rich.
    return record and (f"`{record[0].strip()}`", _literal(record[1].replace("\\[", "[")))


def _described(thing: Any, name: str, module: str) -> str:
    """One public name: a function, or a class with its methods and properties."""
    if inspect.isclass(thing):
        members = [
            _directive("method", f"{member}{_signature(function)}", _doc(function))
            for member, function in _own_functions(thing)
        ]
        signature = "" if issubclass(thing, BaseModel | Exception) else _signature(thing)
        body = "\n".join([_doc(thing), *members])
        return _directive("class", f"{name}{signature}", body, module, fence="::::")
    return _directive("function", f"{name}{_signature(thing)}", _doc(thing), module)


def _own_functions(thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods that a class defines itself, in the order of the file."""
    for name, value in vars(thing).items():
        value = getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(value) and value.__doc__:
            yield name, value


def _signature(function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    shown = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    plain = [p.replace(annotation=p.empty) for p in shown]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)


def _doc(thing: Any) -> str:
    return _paragraphs(inspect.cleandoc(thing.__doc__ or ""))


def _directive(kind: str, signature: str, body: str, module: str = "", fence: str = ":::") -> str:
    option = f":module: {module}\n" if module else ""
    return f"{fence}{{py:{kind}}} {signature}\n{option}\n{body}\n{fence}\n"


def _paragraphs(text: str) -> str:
    """A docstring as Markdown: as it is, but for what Markdown would take for HTML or a list."""
    return re.sub(r"<(?=\w)", r"\\<", text.strip()) + "\n"


def _literal(text: str) -> str:
    """Straight quotes stay straight, and a sign stays with its number."""
    text = re.sub(r'("[^"]*")', r"`\1`", text).replace("[", "\\[")
    return re.sub(r"([≥>≤<]) (?=[\d-])", "\\1\N{NO-BREAK SPACE}", text)


def _option_table(found: Sequence[Option]) -> str:
    rows = [
        (f"`{o.key}`", f"`{o.default}`" if o.default else "–", _literal(o.allowed), o.description)
        for o in found
    ]
    return _table(("option", "default", "allowed", "meaning"), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(headings), _row(["---"] * len(headings)), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in cells) + " |"
