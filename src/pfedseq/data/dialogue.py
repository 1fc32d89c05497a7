"""Prompts and answers for a language model: JSONL files, or plain texts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import Dialogue, DialogueSet, Turn
from pfedseq.data.source import number_groups, split_roles
from pfedseq.data.text import text_hashes
from pfedseq.errors import InputError

ROLES = ("system", "user", "assistant")
SUFFIXES = (".jsonl", ".txt")
ROWS = '{"prompt": …, "answer": …}, {"messages": [{"role": …, "content": …}, …]} or {"text": …}'
_BLANK_LINES = re.compile(r"\n\s*\n")


class OwnedDialogue(NamedTuple):
    """One dialogue with its client, split and group; '' if unknown."""

    dialogue: Dialogue
    owner: str = ""
    split: str = ""
    group: str = ""


def load_dialogues(config: DataConfig) -> DialogueSet:
    """The dialogues of `data.source`.

    A folder has a file or a sub-folder for each client; the rows of a single .jsonl file may name
    their `client`.
    """
    path = Path(config.source or "").expanduser()
    if path.is_dir():
        found = list(_in_folder(path))
    elif path.is_file():
        found = list(_in_file(path, None))
    else:
        raise InputError(
            f"data.source = {str(path)!r} is neither a .jsonl file nor a folder of .jsonl and .txt "
            "files"
        )
    if not found:
        raise InputError(f"{path} contains no dialogues: it needs .jsonl or .txt files")
    return dialogue_set(path.stem, found, config.split == "stratified")


def dialogue_set(name: str, found: list[OwnedDialogue], hashed: bool = True) -> DialogueSet:
    """Dialogues as a data set; either all or none of them name a client."""
    has_owners, has_splits = bool(found[0].owner), any(example.split for example in found)
    for example in found:
        if bool(example.owner) != has_owners:
            raise InputError(f"some rows of {name} name a `client` and others do not: name all")
    owner_names = sorted({example.owner for example in found}) if has_owners else []
    number = {owner: place for place, owner in enumerate(owner_names)}
    is_test, is_validation = split_roles([example.split for example in found])
    written = [_written(example.dialogue) for example in found]
    return DialogueSet(
        name=name,
        dialogues=tuple(example.dialogue for example in found),
        owners=np.array([number[e.owner] for e in found]) if has_owners else None,
        owner_names=tuple(owner_names),
        is_test=is_test if has_splits else None,
        fingerprint=hashlib.sha256(json.dumps(written).encode()).hexdigest(),
        groups=number_groups([(example.owner, example.group) for example in found]),
        is_validation=is_validation,
        hashes=text_hashes(written) if hashed else None,
    )


def _written(dialogue: Dialogue) -> str:
    return json.dumps([*dialogue.turns, ("assistant", dialogue.answer)], ensure_ascii=False)


def _in_folder(path: Path) -> Iterator[OwnedDialogue]:
    """The dialogues of every client; its file or sub-folder gives its name."""
    for file in sorted(path.rglob("*")):
        inside = file.relative_to(path).parts
        if file.suffix in SUFFIXES and file.is_file():
            yield from _in_file(file, file.stem if len(inside) == 1 else inside[0])


def _in_file(path: Path, owner: str | None) -> Iterator[OwnedDialogue]:
    """The rows of a .jsonl file, or a text's paragraphs; `owner` overrides the rows' `client`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"{path} is not readable as UTF-8 text: {problem}") from None
    if path.suffix != ".jsonl":
        if owner is None:
            owner = path.stem
        for paragraph in _BLANK_LINES.split(text):
            if paragraph.strip():
                yield OwnedDialogue(Dialogue((), paragraph.strip()), owner)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield from _of_row(_row(line, path, number), path, number, owner)


def _row(line: str, path: Path, number: int) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as problem:
        raise InputError(f"line {number} of {path} is not JSON: {problem}") from None
    if not isinstance(row, dict):
        raise InputError(f"line {number} of {path} is not a JSON object: each line is {ROWS}")
    return row


def _of_row(
    row: Mapping[str, Any], path: Path, number: int, owner: str | None
) -> Iterator[OwnedDialogue]:
    """One example, or for a conversation one per message of the assistant."""
    where = f"line {number} of {path}"
    owner, split, group = (
        owner or str(row.get("client") or ""),
        str(row.get("split") or ""),
        str(row.get("group") or ""),
    )
    if "messages" in row:
        turns = _turns(row["messages"], where)
        answers = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
        if len(answers) > 1:
            group = group or f"{path}:{number}"
        for place in answers:
            yield OwnedDialogue(Dialogue(turns[:place], turns[place].content), owner, split, group)
    elif "answer" in row and "prompt" in row:
        prompt, answer = (_said(row[key], f"the {key} in {where}") for key in ("prompt", "answer"))
        yield OwnedDialogue(Dialogue((Turn("user", prompt),), answer), owner, split, group)
    elif "text" in row:
        text = _said(row["text"], f"the text in {where}")
        yield OwnedDialogue(Dialogue((), text), owner, split, group)
    else:
        keys = ", ".join(row) or "none"
        raise InputError(f"{where} has the keys {keys}: each line is {ROWS}")


def _turns(messages: Any, where: str) -> tuple[Turn, ...]:
    """Messages in the form chat templates take; the assistant must answer at least once."""
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise InputError(f"the messages in {where} are not a list of objects: each line is {ROWS}")
    turns = []
    for message in messages:
        role = message.get("role")
        if role not in ROLES:
            raise InputError(
                f"a message in {where} has the role {role!r}: it must be one of {', '.join(ROLES)}"
            )
        turns.append(Turn(role, _said(message.get("content"), f"a message in {where}")))
    if not any(turn.role == "assistant" for turn in turns[1:]):
        raise InputError(
            f"in {where} the assistant never answers, so nothing can be learnt from it"
        )
    return tuple(turns)


def _said(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{what} must be a non-empty text, not {value!r}")
    return value
