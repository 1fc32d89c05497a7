"""Sends each round to TensorBoard or MLflow; metrics.jsonl is written in any case."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from pfedseq.config import Config
from pfedseq.errors import InputError
from pfedseq.runs.identity import config_values
from pfedseq.runs.records import RoundRecord
from pfedseq.runs.run import Listener, Tell
from pfedseq.runs.sweep import SweepEntry

Announce = Callable[[SweepEntry], Listener | None]

MLFLOW_EXPERIMENT = "pfedseq"


class Tracker(Protocol):
    """A destination for numbers by method and round."""

    def log(self, method: str, t: int, values: dict[str, float]) -> None:
        """One round's numbers."""

    def close(self) -> None:
        """End tracking."""


class TensorBoardTracker:
    """Event files under the run's folder, one writer for each method."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._module = _need("torch.utils.tensorboard", "tensorboard")
        self._folder = folder / "tensorboard"
        self._writers: dict[str, Any] = {}

    def log(self, method: str, t: int, values: dict[str, float]) -> None:
        """Scalars by name; TensorBoard lays the methods over one another."""
        if method not in self._writers:
            self._writers[method] = self._module.SummaryWriter(str(self._folder / method))
        for name, value in values.items():
            self._writers[method].add_scalar(name, value, t)
        self._writers[method].flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


class MLflowTracker:
    """A run for each method in the experiment `pfedseq`, wherever MLFLOW_TRACKING_URI points."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._mlflow = _need("mlflow", "mlflow")
        self._client = self._mlflow.MlflowClient()
        self._config, self._folder = config, folder
        self._runs: dict[str, str] = {}

    def log(self, method: str, t: int, values: dict[str, float]) -> None:
        """Metrics with the round as their step; the first round brings the config along."""
        if method not in self._runs:
            self._runs[method] = self._begin(method)
        now = int(time.time() * 1000)
        metric = self._mlflow.entities.Metric
        self._client.log_batch(
            self._runs[method], metrics=[metric(k, v, now, t) for k, v in values.items()]
        )

    def close(self) -> None:
        """Mark the runs as finished."""
        for run in self._runs.values():
            self._client.set_terminated(run)

    def _begin(self, method: str) -> str:
        known = self._client.get_experiment_by_name(MLFLOW_EXPERIMENT)
        place = known.experiment_id if known else self._client.create_experiment(MLFLOW_EXPERIMENT)
        name = f"{self._config.run.name}/{method}/seed_{self._config.run.seed}"
        run = self._client.create_run(place, run_name=name, tags={"folder": str(self._folder)})
        others = tuple(f"methods.{m}." for m in self._config.methods if m != method)
        for key, value in config_values(self._config).items():
            if not key.startswith(others):
                self._client.log_param(run.info.run_id, key, value)
        identity: str = run.info.run_id
        return identity


TRACKERS: dict[str, Callable[[Config, Path], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
}


class Tracking:
    """Forwards each record; a failing tracker is reported once, and the run continues."""

    def __init__(self, tracker: Tracker, tell: Callable[[str], None]) -> None:
        self._tracker, self._tell, self._works = tracker, tell, True

    def log(self, record: RoundRecord) -> None:
        """One finished round."""
        self._guarded(
            lambda: self._tracker.log(record.method, record.round, tracked_values(record))
        )

    def close(self) -> None:
        """End tracking."""
        self._guarded(self._tracker.close)

    def _guarded(self, work: Callable[[], None]) -> None:
        if not self._works:
            return
        try:
            work()
        except Exception as problem:  # an unreachable tracking server must not end a run
            self._works = False
            self._tell(
                f"tracking has stopped ({type(problem).__name__}: {problem}); the run continues, "
                "and metrics.jsonl has every round"
            )


def open_tracking(kind: str, config: Config, folder: Path, tell: Callable[[str], None]) -> Tracking:
    """The tracker of that name; refuses one that is unknown or not installed."""
    if kind not in TRACKERS:
        raise InputError(f"--track {kind!r} is unknown: choose {' or '.join(TRACKERS)}")
    return Tracking(TRACKERS[kind](config, folder), tell)


@contextmanager
def tracked(
    announce: Announce, kind: str | None, entries: Sequence[SweepEntry], out: Path, tell: Tell
) -> Iterator[Announce]:
    """Wrap a sweep's `announce` so that runs are also sent to the tracker `kind`, if given."""
    if kind is None or not entries:
        yield announce
        return

    def tracking_of(entry: SweepEntry) -> Tracking:
        return open_tracking(kind, entry.config, entry.folder(out).path, tell)

    current = tracking_of(entries[0])  # fail before the first run rather than after it

    def both(entry: SweepEntry) -> Listener:
        nonlocal current
        current.close()
        current = tracking = tracking_of(entry)
        show = announce(entry)

        def listen(record: RoundRecord) -> None:
            if show is not None:
                show(record)
            tracking.log(record)

        return listen

    try:
        yield both
    finally:
        current.close()


def tracked_values(record: RoundRecord) -> dict[str, float]:
    """The scalar values of a round."""
    values = {f"cost/{name}": float(value) for name, value in asdict(record.cost).items()}
    if record.scores is not None:
        for name in record.scores.test:
            if (over := record.scores.over_clients(name)) is not None:
                values |= {f"{name}/{key}": float(value) for key, value in asdict(over).items()}
            if (over := record.scores.over_clients(name, "validation")) is not None:
                values[f"{name}/validation_mean"] = over.client_mean
    if record.answered is not None:
        values["clients/answered"] = float(record.answered)
    return values


def _need(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"--track {extra} needs a package that is not installed: pip install pfedseq[{extra}]"
        ) from None
