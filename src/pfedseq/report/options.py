"""All config options, read from the pydantic models, for the terminal and the docs."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from pfedseq.config import Config
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.report.console import console

_TYPES = {int: "integer", float: "number", str: "text", Path: "text", bool: "true or false"}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of"}


@dataclass(frozen=True)
class Option:
    """One key of a section of the config."""

    key: str
    allowed: str
    """Its type and range, or its choices."""
    default: str
    """The default in TOML; empty if the option is unset by default."""
    description: str


def sections() -> dict[str, type[BaseModel]]:
    """The config sections by TOML name, in order; plug-ins and methods are last."""
    kinds = {
        name: (get_args(field.annotation) or [field.annotation])[0]  # [[plugins]] is a list
        for name, field in Config.model_fields.items()
    }
    named = {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }
    named["plugins"] = named.pop("plugins")
    return named | {f"methods.{name}": method.config for name, method in METHODS.items()}


def find_options(name: str) -> tuple[str, type[BaseModel], list[Option]]:
    """A section with its options, or with the one that `section.key` names."""
    around, _, key = name.rpartition(".")
    section = sections().get(around)
    if section is not None and key in section.model_fields:
        return around, section, [option for option in options(section) if option.key == key]
    section = find_section(name)
    return name, section, options(section)


def find_section(name: str) -> type[BaseModel]:
    """The section of that name; an error suggests the nearest section or option."""
    known = sections()
    if name in known:
        return known[name]
    keys = [f"{section}.{key}" for section, kind in known.items() for key in kind.model_fields]
    ending = [key for key in keys if key.endswith(f".{name}")]
    near = ending or get_close_matches(name, [*known, *keys], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    raise InputError(f"there is no config section or option {name!r}: {hint}")


def options(section: type[BaseModel]) -> list[Option]:
    """The options of one section, in the order of the model."""
    return [
        Option(key, _allowed(field), _default(field), field.description or "")
        for key, field in section.model_fields.items()
    ]


def print_options(names: Sequence[str]) -> None:
    """Print sections, or single options (`section.key`), as a commented TOML file."""
    for given in names:
        name, section, found = find_options(given)
        console.print(f"\n[bold]\\[{name}][/bold]  [dim]# {escape(summary(section))}[/dim]")
        for option in found:
            shown = f"{option.key} = {option.default}" if option.default else f"{option.key}, unset"
            console.print(escape(shown), highlight=False)
            about = Text(f"{option.allowed}: {option.description}", style="dim")
            console.print(Padding(about, (0, 0, 0, 4), expand=False))


def summary(section: type[BaseModel]) -> str:
    """The first line of a section's docstring, without its own name."""
    line = (section.__doc__ or "").splitlines()[0]
    return re.sub(r"^\[+\w+\]+: ", "", line).rstrip(".")


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    return "" if default in (None, PydanticUndefined) else _toml(default)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case Mapping():
            return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _allowed(field: FieldInfo) -> str:
    """Describe a type and its range, e.g. `integer, ≥ 1`; list lengths are left out."""
    return ", ".join([_any_of(list(_names(field.annotation))), *_bounds(field.metadata)])


def _bounds(constraints: Sequence[Any]) -> list[str]:
    return [
        f"{sign} {_toml(getattr(constraint, name))}"
        for constraint in constraints
        for name, sign in _BOUNDS.items()
        if getattr(constraint, name, None) is not None
    ]


def _any_of(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _names(annotation: Any) -> Iterator[str]:
    """The TOML name of a type, without None, which TOML lacks."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return
    if origin is Annotated:
        within = [c for a in arguments[1:] for c in getattr(a, "metadata", [a])]
        yield ", ".join([_any_of(list(_names(arguments[0]))), *_bounds(within)])
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _names(argument)
    elif origin is Literal:
        yield from (_toml(choice) for choice in arguments)
    elif origin in (list, tuple) and arguments:
        (of,) = {tuple(_names(a)) for a in arguments if a is not Ellipsis}
        length = "" if Ellipsis in arguments or origin is list else f"{len(arguments)} × "
        yield f"[{length}{_any_of(of)}{'' if length else ', …'}]"
    elif origin is dict or annotation is dict:
        yield "table"
    else:
        yield _TYPES.get(annotation, getattr(annotation, "__name__", str(annotation)))
