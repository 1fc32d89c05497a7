"""Checks values against a config section, and reports a wrong one in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pfedseq.errors import InputError

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: Any, where: str, *, only_look: bool = False) -> Model:
    """Return the values as a section; `only_look` is for reading a run that is not started here."""
    try:
        return model.model_validate(values, context={"only_look": only_look})
    except ValidationError as problem:
        raise InputError(_explain(model, problem.errors(), where)) from None


_OTHER_NAMES = {
    "learning_rate": "lr",
    "epochs": "local_epochs",
    "grad_clip": "clip_norm",
    "gradient_clip": "clip_norm",
    "max_grad_norm": "clip_norm",
    "wd": "weight_decay",
    "decay": "weight_decay",
    "num_rounds": "rounds",
    "clients": "num_clients",
    "cohort": "clients_per_pass",
    "images": "source",
    "path": "source",
    "folder": "source",
}
"""Names that other programs give to some options."""


def _explain(model: type[BaseModel], errors: Sequence[Any], where: str) -> str:
    """Describe pydantic's first error in one sentence, with the nearest key for an unknown one."""
    error = errors[0]
    path = _option_path(model, [str(part) for part in error["loc"]])
    key = where + ".".join(path)
    if error["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        other = _OTHER_NAMES.get(path[-1])
        near = [other] if other in known else get_close_matches(path[-1], known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        return f"unknown config key {key!r}: {hint}"
    same = [e for e in errors if _option_path(model, [str(part) for part in e["loc"]]) == path]
    said = dict.fromkeys(_said(e["msg"]) for e in same)
    message = " or ".join(said).replace(" or must be ", " or ")
    if not path:
        return f"config section {where.rstrip('.')}: {message}" if where else f"config: {message}"
    if isinstance(error["input"], dict):  # a check of several options, which names them itself
        return f"config section {key}: {message}"
    return f"config key {key} = {error['input']!r}: {message}"


_PLAIN_WORDS = (
    ("Value error, ", ""),
    ("Input should be ", "must be "),
    ("greater than or equal to ", "at least "),
    ("less than or equal to ", "at most "),
    (", unable to parse string as an integer", ""),
    (", unable to parse string as a number", ""),
    (", got a number with a fractional part", ""),
    (", unable to interpret input", ""),
    ("a valid integer", "a whole number"),
    ("a valid number", "a number"),
    ("a valid boolean", "true or false"),
    ("a valid string", "a text"),
    ("a valid list", "a list"),
    ("a valid tuple", "a list"),
    ("a valid dictionary or instance of", "a section like"),
)
"""What pydantic says, and how a reader of TOML would say it."""


def _said(message: str) -> str:
    for theirs, ours in _PLAIN_WORDS:
        message = message.replace(theirs, ours)
    return message[0].lower() + message[1:]


def _option_path(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the path of an option, without the union members that pydantic appends."""
    kept: list[str] = []
    for part in path:
        kept.append(part)
        field = model.model_fields.get(part)
        annotation = field.annotation if field is not None else None
        if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
            break
        model = annotation
    return kept


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        if field is None or not isinstance(field.annotation, type):
            return []
        model = field.annotation
    return list(model.model_fields)
