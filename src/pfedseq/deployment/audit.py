"""audit.jsonl in the run's folder: when which site joined, answered or was refused, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pfedseq.errors import InputError
from pfedseq.files import append_line

SUBMISSION = "(submission)"
"""In place of a site's name: a run that was submitted for the folder and refused."""


class Note(Protocol):
    """Records an event that concerns a site."""

    def __call__(self, event: str, site: str, **more: Any) -> None:
        """Record one event; `more` holds its details."""


def no_note(event: str, site: str, **more: Any) -> None:
    """A `Note` that records nothing."""


class Audit:
    """An append-only log; a `Note`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"

    def __call__(self, event: str, site: str, **more: Any) -> None:
        """Append one line."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        values = {"at": at, "event": event, "site": site, **more}
        append_line(self.path, json.dumps(values, ensure_ascii=False))

    def events(self) -> Iterator[dict[str, Any]]:
        """All recorded events, without a last line cut off by a crash."""
        if not self.path.exists():
            raise InputError(f"{self.path} does not exist: no federated run has started there")
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
