"""audit.jsonl in the run's folder: who joined, answered and was refused, when, and with what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pfedseq.errors import InputError
from pfedseq.files import append_line


class Note(Protocol):
    """Writes down that something happened at or with a site."""

    def __call__(self, event: str, site: str, **more: Any) -> None:
        """One event; `more` says what belongs to it."""


def no_note(event: str, site: str, **more: Any) -> None:
    """Write nothing down."""


class Audit:
    """A log to which lines are only ever added; a `Note`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"

    def __call__(self, event: str, site: str, **more: Any) -> None:
        """One line."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        values = {"at": at, "event": event, "site": site, **more}
        append_line(self.path, json.dumps(values, ensure_ascii=False))

    def events(self) -> Iterator[dict[str, Any]]:
        """All that was written; a last line that a crash cut off is left out."""
        if not self.path.exists():
            raise InputError(f"{self.path} does not exist: no federation's run has begun there")
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
