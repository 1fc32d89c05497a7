"""Sends messages to nodes, through Flower's Grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message

from pfedseq.deployment.envelope import Envelope
from pfedseq.words import printable

BY_ITSELF = (2, 1)
"""Flower's error codes for a client that failed itself, for which resending does not help."""
CRASHED = 8
"""Flower's error code for a client that was killed."""
_FLOWER_WRAPPING = re.compile(r"^<class '[\w.]+'>:<'(.*)'>$", re.DOTALL)


@dataclass(frozen=True)
class Node:
    """One start of a site's node; a restarted node is another one, even with its old number."""

    number: int
    activated: str
    name: str
    """The registered name; '' if nodes need not be registered."""


def push(grid: Any, contents: Sequence[tuple[Node, Envelope]], seconds: float) -> list[str | None]:
    """Send requests, valid for `seconds`; their ids in order, None where one was refused."""
    if not contents:
        return []
    evaluations = dict.fromkeys(("evaluate", "evaluate_mean", "assess"), "evaluate")
    kinds = {**evaluations, "hello": "query", "export": "query"}
    messages = [  # a list: Flower goes over it twice
        Message(
            content.to_records(),
            node.number,
            kinds.get(content.fields["step"], "train"),
            ttl=max(1.0, seconds),
            group_id=str(content.fields["round"]),
        )
        for node, content in contents
    ]
    ids = list(grid.push_messages(messages))
    return ids if len(ids) == len(messages) else [None] * len(messages)


def failure(message: Message) -> str:
    """A failed client's error message, without Flower's wrapping."""
    said = str(message.error.reason or f"error {message.error.code}")
    unwrapped = _FLOWER_WRAPPING.match(said)
    return printable(unwrapped[1] if unwrapped else said)
