"""The results folder of a run: its files, and how they are written safely."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfedseq.config import Config, load_config, read_config
from pfedseq.data import record as data_records
from pfedseq.data.record import DataRecord
from pfedseq.errors import InputError
from pfedseq.files import append_line, remove_temporaries, write_atomically
from pfedseq.runs.findings import Seen, look
from pfedseq.runs.identity import config_values, difference
from pfedseq.runs.records import RoundRecord, RunSummary, harmed_clients, summarise_run
from pfedseq.runs.scores import Assessment, Scores


def client_folders(names: Sequence[str]) -> list[str]:
    """A folder name for every client: its own name if that is a valid folder name.

    Numbered clients become `client_NN`. Names are unique, also on case-insensitive file systems.
    """
    folders: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.()+ -]", "_", name).strip(" .")
        folder = f"client_{plain}" if plain.isdigit() or not plain else plain
        taken = {other.casefold() for other in folders}
        number = 2
        while folder.casefold() in taken:
            folder, number = f"{plain}_{number}", number + 1
        folders.append(folder)
    return folders


class RunFolder:
    """A config, its data and clients, metrics, summary, pictures, adapters and checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.partition = path / "partition.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.curves = path / "curves.png"
        self.clients_picture = path / "clients.png"

    @classmethod
    def create(cls, path: Path, config_text: str) -> RunFolder:
        """Create the folder of a new run, after `check_vacant`."""
        folder = cls(path)
        write_atomically(folder.config, config_text)
        return folder

    @staticmethod
    def check_vacant(path: Path) -> None:
        """Refuse a folder that is not empty or not writable, before any work is done."""
        if path.is_dir():
            remove_temporaries(path)  # all that a run killed at its start leaves
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} exists and is not an empty folder; choose another --out")
        nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise InputError(f"cannot write to {path}: {nearest} is not a folder one may write to")

    def check_options(self, wanted: Config) -> None:
        """Refuse to continue a run that was started with other options."""
        if changed := self.other_options(wanted):
            raise InputError(
                f"{self.path} holds a run with other options ({changed}); choose another --out, or "
                "delete that folder"
            )

    def other_options(self, wanted: Config) -> str | None:
        """The first difference between `wanted` and the run in this folder, or None."""
        if not self.config.exists():
            return None
        saved, asked = load_config(self.config), wanted.model
        used = saved.model  # with the resolved normalisation
        filled = asked.model_copy(
            update={"mean": asked.mean or used.mean, "std": asked.std or used.std}
        )
        sized = self.rated(wanted).sized_as(saved.data)
        now = config_values(sized.model_copy(update={"model": filled}))
        return difference(config_values(saved), now)

    def rated(self, wanted: Config) -> Config:
        """`wanted` with the rate that a range test found for the run in this folder, if any."""
        if not (wanted.wants_rate and self.config.exists()):
            return wanted
        then = load_config(self.config).training
        return wanted.at_rate(then.lr) if then.rate_test == "done" else wanted

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self.summary.exists() and self.curves.exists()

    def checkpoints(self, method: str) -> Path:
        """The folder of a method's checkpoints."""
        return self.path / "checkpoints" / method

    def states(self, method: str) -> Path:
        """The folder of clients' states with `engine.states = "disk"`."""
        return self.path / "checkpoints" / f"{method}_running"

    def adapter(self, method: str, client: str) -> Path:
        """The PEFT folder of one client's personal model; `client` is one of `client_folders`."""
        return self.path / "adapters" / method / client

    def assessment(self, method: str) -> Path:
        """The file with all measures of a method's kept models."""
        return self.path / "assessments" / f"{method}.json"

    def write_assessment(self, method: str, found: Assessment) -> None:
        """Write the assessment of a method's kept models."""
        write_atomically(self.assessment(method), _json(found.to_json()))

    def read_assessment(self, method: str) -> Assessment | None:
        """Read what `write_assessment` wrote; None before the method's last round is done."""
        path = self.assessment(method)
        if not path.exists():
            return None
        try:
            return Assessment.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
            raise InputError(
                f"{path} is not readable ({problem!r}); delete it and `pfedseq resume {self.path}` "
                "writes it again"
            ) from None

    def keep_data(self, record: DataRecord) -> None:
        """Record the data that the run uses, or refuse to continue with other data."""
        if (then := self.read_data()) is None:
            write_atomically(self.partition, _json(record))
        elif changed := data_records.difference(then, record):
            raise InputError(
                f"the data are not those that {self.path} was started with ({changed}): bring back "
                "the former data, or start a new run in another folder"
            )

    def replace_data(self, record: DataRecord) -> None:
        """Add the data of sites that have joined a run."""
        write_atomically(self.partition, _json(record))

    def read_data(self) -> DataRecord | None:
        """The record of the run's data; None before the run has started."""
        if not self.partition.exists():
            return None
        try:
            record: DataRecord = json.loads(self.partition.read_text(encoding="utf-8"))
            _ = record["num_images"], [client["name"] for client in record["clients"]]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise InputError(
                f"{self.partition} is not readable ({problem}): without it the data cannot be "
                "verified; start a new run in another folder"
            ) from None
        return record

    def append(self, record: RoundRecord) -> None:
        """Add one line to metrics.jsonl."""
        append_line(self.metrics, json.dumps(record.to_json()))

    def records(self) -> list[RoundRecord]:
        """All lines of metrics.jsonl, without a last line that a crash cut off."""
        if not self.metrics.exists():
            return []
        records: list[RoundRecord] = []
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                records.append(RoundRecord.from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError):
                if number == len(lines):
                    break
                raise InputError(f"line {number} of {self.metrics} is damaged") from None
        return records

    def keep_records(self, method: str, done: int) -> None:
        """Drop a method's lines after round `done`; those rounds will be repeated."""
        records = self.records()
        lines = [
            json.dumps(r.to_json()) + "\n" for r in records if r.method != method or r.round <= done
        ]
        kept = {r.round for r in records if r.method == method}
        if missing := sorted(set(range(1, done + 1)) - kept):
            raise InputError(
                f"{self.metrics} lacks round {missing[0]} of {method}, which its checkpoint says "
                f"was run; bring the line back, or delete {self.checkpoints(method)} to start the "
                "method"
            )
        write_atomically(self.metrics, "".join(lines))

    def by_method(self) -> dict[str, list[RoundRecord]]:
        """The records of each method, in order."""
        grouped: dict[str, list[RoundRecord]] = {}
        for record in self.records():
            grouped.setdefault(record.method, []).append(record)
        return grouped

    def write_summary(self, epsilon: dict[str, float] | None = None) -> RunSummary:
        """Write summary.json from the metrics and the privacy guarantees."""
        data = self.read_data() or {"clients": []}
        names = tuple(client["name"] for client in data["clients"])
        by_method = self.by_method()
        methods = {
            name: summarise_run(records, self.read_assessment(name))
            for name, records in by_method.items()
        }
        scores = {name: one.scores for name, one in methods.items()}
        found = look(self._seen(by_method, scores, names, data))
        summary = RunSummary(methods, names, harmed_clients(scores, names), epsilon, found)
        write_atomically(self.summary, _json(summary.to_json(), indent=2))
        return summary

    def _seen(
        self,
        by_method: Mapping[str, Sequence[RoundRecord]],
        scores: Mapping[str, Scores],
        names: Sequence[str],
        data: DataRecord,
    ) -> Seen:
        """The run's records, for `look`."""
        assessed = {name: self.read_assessment(name) for name in by_method}
        config = read_config(self.config) if self.config.exists() else Config()
        counted = [client for client in data["clients"] if "class_counts" in client]
        return Seen(
            by_method,
            scores,
            names,
            config.methods,
            {name: one.moved for name, one in assessed.items() if one is not None},
            {client["name"]: client["class_counts"]["train"] for client in counted},
            {client["name"]: client["class_counts"]["test"] for client in counted},
            data.get("class_names", ()),
            config.model.backbone if self.config.exists() else "",
            config.run.keep == "last",
        )

    def read_summary(self) -> RunSummary:
        """Read summary.json."""
        try:
            return RunSummary.from_json(json.loads(self.summary.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise InputError(
                f"{self.summary} is not readable ({problem}); delete it and "
                f"`pfedseq resume {self.path}` writes it again"
            ) from None


def _json(values: Any, indent: int | None = None) -> str:
    """JSON that keeps non-ASCII names readable; compact if on one line."""
    separators = None if indent else (",", ":")
    return json.dumps(values, indent=indent, separators=separators, ensure_ascii=False) + "\n"
