"""How a federation's run stands: a small file in its folder, for whoever watches."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pfedseq.files import read_object, write_atomically


class StatusFile:
    """federation.json in the run's folder: how it stands, for whoever watches."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "federation.json"

    def write(self, state: str, sentence: str, **more: Any) -> None:
        """`state` is gathering, running, finished or failed; `sentence` says more."""
        values = self.read() | {"state": state, "sentence": sentence, "at": time.time()} | more
        write_atomically(self.path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def read(self) -> dict[str, Any]:
        """What was last written; empty before that."""
        return read_object(self.path) or {}
