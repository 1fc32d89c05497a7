"""The content of the report page as JSON values, read from the folders of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from pfedseq.config import Config, read_config
from pfedseq.data.record import train_count
from pfedseq.errors import InputError
from pfedseq.experiments.results import lead, quantities, seconds_per_round
from pfedseq.measures import Format
from pfedseq.methods import METHODS, method_title
from pfedseq.report.page.details import (
    MOST_ENTRIES,
    adapted_layers,
    measures_of,
    predictions_of,
    sets_of_tests,
)
from pfedseq.report.page.origins import calibration_origins
from pfedseq.runs.checkpoint import newest_server
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import MethodSummary, RoundRecord, evaluated, summarise_run
from pfedseq.runs.scores import MEAN_ADAPTER, Assessment, Scores, worse_off
from pfedseq.words import count

QUANTITIES = {
    "delta_rms": "clients' updates Δ",
    "calibration_rms": "calibrations ξ",
    "common_rms": "common part of ξ",
    "personal_rms": "personal part of ξ",
    "distance_rms": "distance of the mean adapter from its start",
}
"""Titles of the quantities that pFedSeq's server records by layer."""
BY_CLIENT = ("group",)
"""Quantities that it records by client, and only where there is something to record."""
MOST_CELLS = 60_000
"""Cells of all heat maps of clients × rounds; beyond that, rounds are thinned out evenly."""
MOST_NAMED = 8
"""Absent clients named per round; the others are counted."""
MOST_WORSE_OFF = 1_000
"""Clients that are worse off, listed one by one; all of them are counted by method."""


@dataclass(frozen=True)
class ReportedRun:
    """One method of one run."""

    folder: RunFolder
    config: Config
    method: str
    label: str
    """Identifies the run on the page: the method, or its label in a sweep."""
    records: Sequence[RoundRecord]
    summary: MethodSummary
    data: Mapping[str, Any]
    assessment: Assessment | None

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.run.seed

    @property
    def moment(self) -> tuple[int, int]:
        """Seed and last evaluated round: only runs that share both are compared."""
        return self.seed, self.summary.rounds


def page_content(folders: Sequence[Path]) -> dict[str, Any]:
    """The page's content: one board per data set and partition."""
    runs = [run for place in folders for run in _find_runs(place)]
    if not runs:
        raise InputError(f"no finished rounds in {', '.join(map(str, folders))}")
    boards: dict[str, list[ReportedRun]] = {}
    for run in runs:
        boards.setdefault(_data_of(run), []).append(run)
    cells = sum(len(r.data["clients"]) * len(evaluated(r.records)) for r in runs)
    stride = max(1, -(-cells // MOST_CELLS))
    return {
        "version": version("pfedseq"),
        "boards": [_board(name, found, stride) for name, found in boards.items()],
    }


def _find_runs(place: Path) -> list[ReportedRun]:
    """The runs in a folder, or in the subfolders of a sweep."""
    if not place.is_dir():
        raise InputError(f"{place} is not a folder of runs")
    configs = [place / "config.toml"] if (place / "config.toml").exists() else []
    configs = configs or sorted(place.rglob("config.toml"))
    found = []
    for path in configs:
        folder = RunFolder(path.parent)
        data = folder.read_data()
        if data is None:
            continue
        config = read_config(path)
        for method, records in folder.by_method().items():
            if not evaluated(records):
                continue
            below = path.parent.relative_to(place).parts
            arm = next((p for p in below if p == method or p.startswith(f"{method}-")), method)
            assessment = folder.read_assessment(method)
            summary = summarise_run(_until_evaluated(records), assessment)
            found.append(
                ReportedRun(folder, config, method, arm, records, summary, data, assessment)
            )
    return found


def _until_evaluated(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """The records up to the last evaluation; an unfinished run may have later ones."""
    last = max(number for number, record in enumerate(records) if record.scores is not None)
    return list(records[: last + 1])


def _data_of(run: ReportedRun) -> str:
    """The data set and partition, which all runs on one board share."""
    data = run.config.data
    dealt = {
        "owners": "each with its own data" if data.split_owners == 1 else "parts of owners' data",
        "dirichlet": f"classes split by Dirichlet({data.alpha:g})",
        "pathological": f"{count(data.classes_per_client, 'class')} each",
        "iid": "examples split at random",
    }.get(data.partition, data.partition)
    return f"{run.data['data']}: {count(len(run.data['clients']), 'client')}, {dealt}"


def _board(name: str, runs: Sequence[ReportedRun], stride: int) -> dict[str, Any]:
    lines: dict[str, list[ReportedRun]] = {}
    for run in sorted(runs, key=lambda run: (_place(run.method), run.label)):
        lines.setdefault(run.label, []).append(run)
    first = runs[0]
    num_clients = len(first.data["clients"])
    room = MOST_ENTRIES // len(lines)
    reference = "pfedseq" if "pfedseq" in lines else next(iter(lines))
    measure = first.summary.measure
    return {
        "name": name,
        "headline": {
            "name": measure.name,
            "title": measure.title,
            "unit": measure.format.unit,
            "digits": measure.format.digits,
            "higher": measure.higher_is_better,
        },
        "clients": [client["name"] for client in first.data["clients"]],
        "sizes": [train_count(client) for client in first.data["clients"]],
        "tests": sets_of_tests(first.summary.scores, first.assessment, num_clients),
        "unit": first.data.get("unit", "image"),
        "layers": next((found for run in runs if (found := _layers(run))), None),
        "quantities": QUANTITIES,
        "images": first.data["num_images"],
        "classes": first.data["class_names"],
        "notes": first.data.get("notes", []),
        "reference": reference,
        "lines": [_line(label, found, stride, room) for label, found in lines.items()],
        "leads": _leads(lines, reference),
        "worse_off": _worse_off(lines),
        "origins": _origins(lines),
        "config": first.folder.config.read_text(encoding="utf-8"),
        "environment": _environment(first),
    }


def _origins(lines: Mapping[str, Sequence[ReportedRun]]) -> dict[str, Any] | None:
    """The attribution of the calibrations of pFedSeq's first run, or why there is none."""
    if "pfedseq" not in lines:
        return None
    try:
        return calibration_origins(lines["pfedseq"][0].folder)
    except InputError as problem:
        return {"problem": str(problem)}


def _place(method: str) -> int:
    """The position of a method among the lines; unknown methods come last."""
    return [*METHODS, method].index(method)


def _title(label: str) -> str:
    method = next((m for m in METHODS if label == m or label.startswith(f"{m}-")), label)
    return method_title(method) + label.removeprefix(method).replace("-", " ", 1)


def _layers(run: ReportedRun) -> list[int] | None:
    return adapted_layers(run.folder, run.method)


def _line(label: str, runs: Sequence[ReportedRun], stride: int, room: int) -> dict[str, Any]:
    """One method: its curve over seeds, and the clients of each seed."""
    scored = [dict(evaluated(run.records)) for run in runs]
    rounds = sorted(set.intersection(*map(set, scored)))
    means = [[of_seed[t].client_mean for of_seed in scored] for t in rounds]
    summaries = {run.seed: run.summary for run in runs}
    measure = runs[0].summary.measure
    written = measure.format

    def points(value: float) -> float:
        return _points(written, value)

    values = {one.key: one.over_seeds(summaries) for one in quantities(measure)}
    by_client = [list(s.by_client.values()) for s in summaries.values()]
    return {
        "label": label,
        "title": _title(label),
        "method": runs[0].method,
        "seeds": [run.seed for run in runs],
        "rounds": rounds,
        "mean": [points(fmean(m)) for m in means],
        "low": [points(min(m)) for m in means],
        "high": [points(max(m)) for m in means],
        "scores": {
            **{
                key: None if value is None else [points(value.mean), points(value.std)]
                for key, value in values.items()
            },
            "spread": points(fmean(map(pstdev, by_client))),
            "best_client": points(fmean(measure.worst_first(v)[-1] for v in by_client)),
        },
        "seconds": round(fmean(map(seconds_per_round, summaries.values())), 4),
        "bytes": fmean(s.cost.bytes_up + s.cost.bytes_down for s in summaries.values()),
        "planned": runs[0].config.run.rounds,
        "kept": [run.summary.kept_round for run in runs],
        "measures": measures_of(runs[0].summary),
        "predictions": predictions_of(runs[0].assessment, room),
        "runs": [_seed(run, stride) for run in runs],
    }


def _seed(run: ReportedRun, stride: int) -> dict[str, Any]:
    """One seed: scores by client and round, costs by round, and the server's records."""
    scored = evaluated(run.records)
    kept = scored[::-1][::stride][::-1]  # the last round always
    num_clients = len(run.data["clients"])
    written = run.summary.measure.format

    def cells(scores: Scores, digits: int) -> list[float | None]:
        row: list[float | None] = [None] * num_clients
        for i, value in scores.by_client().items():
            row[i] = round(written.scale * value, digits)
        return row

    short = max(1, written.digits - 1)

    seconds = accumulate(r.cost.client_seconds + r.cost.server_seconds for r in run.records)
    return {
        "seed": run.seed,
        "rounds": [t for t, _ in kept],
        "cells": [cells(scores, short) for _, scores in kept],
        "final": cells(run.summary.scores, written.digits),
        "clock": [round(s, 2) for s in seconds],
        **_extras(run),
    }


def _extras(run: ReportedRun) -> dict[str, Any]:
    """Absent and refused clients by round, and the server's quantities by layer."""
    sizes: dict[str, list[Any]] = {}
    rounds = []
    for line in run.folder.metrics.read_text(encoding="utf-8").splitlines():
        if '"server":' not in line:
            continue  # parsing each client's scores again would take seconds
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            break  # a last line that a crash cut off
        if values.get("method") == run.method and isinstance(values.get("server"), dict):
            layered = {k: v for k, v in values["server"].items() if k not in BY_CLIENT}
            if layered:
                rounds.append(values["round"])
            for name, by_layer in layered.items():
                sizes.setdefault(name, []).append(by_layer)
    return {
        "absent": [_who(r.round, r.absent) for r in run.records if r.absent],
        "refused": [_who(r.round, r.refused) for r in run.records if r.refused],
        "server": {"rounds": rounds, "sizes": sizes} if rounds else None,
    }


def _who(t: int, clients: Sequence[int]) -> list[Any]:
    """Round, number of clients, and the first few of them."""
    return [t, len(clients), list(clients[:MOST_NAMED])]


def _leads(lines: Mapping[str, Sequence[ReportedRun]], reference: str) -> list[dict[str, Any]]:
    """Differences between the reference and each other method, paired by client and seed."""
    ours = {run.moment: run.summary for run in lines[reference]}
    leads = []
    for label, runs in lines.items():
        theirs = {run.moment: run.summary for run in runs}
        both = ours.keys() & theirs.keys()
        if label == reference or not both:
            continue
        mine, other = ({seed: of[seed, t] for seed, t in both} for of in (ours, theirs))
        if (found := lead(mine, other)) is None:
            continue
        written = runs[0].summary.measure.format
        leads.append(
            {
                "title": _title(label),
                "seeds": found.seeds,
                **{
                    key: None if value is None else _points(written, value)
                    for key, value in vars(found.interval).items()
                },
            }
        )
    return leads


def _worse_off(lines: Mapping[str, Sequence[ReportedRun]]) -> dict[str, Any]:
    """Clients that a method serves worse, on validation, than a simpler one: counted and listed."""
    moments: dict[tuple[int, int], dict[str, ReportedRun]] = {}
    for label, runs in lines.items():
        for run in runs:
            moments.setdefault(run.moment, {})[label] = run
    found = []
    for (seed, _), by_label in moments.items():
        for one in worse_off({label: run.summary.scores for label, run in by_label.items()}):
            run = by_label[one.method]
            written = run.summary.measure.format
            found.append(
                {
                    "title": _title(one.method),
                    "than": "the mean adapter" if one.than == MEAN_ADAPTER else _title(one.than),
                    "seed": seed,
                    "client": run.data["clients"][one.client]["name"],
                    "ours": _points(written, one.ours),
                    "theirs": _points(written, one.theirs),
                }
            )
    found.sort(key=_loss)
    pairs: dict[tuple[str, str], list[float]] = {}
    for entry in found:
        pairs.setdefault((entry["title"], entry["than"]), []).append(-_loss(entry))
    return {
        "total": len(found),
        "listed": found[:MOST_WORSE_OFF],
        "pairs": [
            {"title": title, "than": than, "number": len(losses), "mean": fmean(losses)}
            for (title, than), losses in sorted(pairs.items(), key=lambda pair: -len(pair[1]))
        ],
    }


def _loss(entry: Mapping[str, Any]) -> float:
    """Minus the size of the loss, so that sorting puts the largest first."""
    return -abs(float(entry["ours"] - entry["theirs"]))


def _environment(run: ReportedRun) -> str:
    """Versions, device and kernel of the run's last checkpoint."""
    newest = newest_server(run.folder.checkpoints(run.method))
    if newest is None:
        return ""
    made_with = newest[0].made_with
    kept = {k: v for k, v in made_with.items() if not k.startswith("config key ")}
    return "\n".join(f"{name}: {value}" for name, value in kept.items())


def _points(written: Format, value: float) -> float:
    """The value in the measure's unit; the page rounds it to the printed digits."""
    return round(written.scale * value, written.digits + 4)
