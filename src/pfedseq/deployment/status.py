"""The status of a federated run: a small file in its folder, for monitoring."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pfedseq.files import read_object, write_atomically


class StatusFile:
    """federation.json in the run's folder: the run's status, for monitoring."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "federation.json"

    def write(self, state: str, sentence: str, **more: Any) -> None:
        """Write a status: gathering, running, finished or failed, with a sentence."""
        values = self.read() | {"state": state, "sentence": sentence, "at": time.time()} | more
        write_atomically(self.path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def read(self) -> dict[str, Any]:
        """The last status written; {} if there is none."""
        return read_object(self.path) or {}
