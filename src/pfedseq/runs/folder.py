"""A run's folder: what is in it, and how it is written without ever losing a line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from pfedseq.errors import InputError
from pfedseq.files import write_atomically
from pfedseq.runs.records import RoundRecord, RunSummary, summarise_run


class RunFolder:
    """A config, its partition, metrics, summary, curves, adapters and checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.partition = path / "partition.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.curves = path / "curves.png"

    @classmethod
    def create(cls, path: Path, config_text: str) -> RunFolder:
        """A new run, once `check_vacant` has found the place free."""
        folder = cls(path)
        write_atomically(folder.config, config_text)
        return folder

    @staticmethod
    def check_vacant(path: Path) -> None:
        """Refuse a place that holds another run or cannot be written, before any work is done."""
        if (path / "config.toml").exists():
            raise InputError(
                f"{path} already holds a run; continue it with `pfedseq resume {path}` "
                "or choose another --out"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} exists and is not an empty folder; choose another --out")
        nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise InputError(f"cannot write to {path}: {nearest} is not a folder one may write to")

    def checkpoint(self, method: str) -> Path:
        """Where a method's memory is kept between rounds."""
        return self.path / "checkpoints" / f"{method}.safetensors"

    def adapter(self, method: str, client: int) -> Path:
        """The PEFT folder of one client's personal model."""
        return self.path / "adapters" / method / f"client_{client:02d}"

    def append(self, record: RoundRecord) -> None:
        """Add one line to metrics.jsonl."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record.to_json()) + "\n")
        except OSError as problem:
            raise InputError(f"cannot write {self.metrics}: {problem.strerror}") from None

    def records(self) -> list[RoundRecord]:
        """All lines of metrics.jsonl; a last line that a crash cut off is left out."""
        if not self.metrics.exists():
            return []
        records: list[RoundRecord] = []
        lines = self.metrics.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                records.append(RoundRecord.from_json(json.loads(line)))
            except (json.JSONDecodeError, KeyError, TypeError):
                if number == len(lines):
                    break
                raise InputError(f"line {number} of {self.metrics} is damaged") from None
        return records

    def keep_records(self, wanted: Callable[[RoundRecord], bool]) -> None:
        """Drop the lines of rounds that will be run again."""
        lines = [json.dumps(r.to_json()) + "\n" for r in self.records() if wanted(r)]
        write_atomically(self.metrics, "".join(lines))

    def by_method(self) -> dict[str, list[RoundRecord]]:
        """The records of each method, in order."""
        grouped: dict[str, list[RoundRecord]] = {}
        for record in self.records():
            grouped.setdefault(record.method, []).append(record)
        return grouped

    def write_summary(self) -> RunSummary:
        """summary.json from the metrics."""
        summary = RunSummary({name: summarise_run(r) for name, r in self.by_method().items()})
        write_atomically(self.summary, json.dumps(summary.to_json(), indent=2) + "\n")
        return summary

    def read_summary(self) -> RunSummary:
        """What summary.json holds."""
        try:
            return RunSummary.from_json(json.loads(self.summary.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise InputError(
                f"{self.summary} is not readable ({problem}); delete it and "
                f"`pfedseq resume {self.path}` writes it anew"
            ) from None
