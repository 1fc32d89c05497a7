"""The public functions that run a config, or continue a run, into one results folder."""

from __future__ import annotations

from pathlib import Path

from pfedseq.api.opened import Run, open_run
from pfedseq.config import Config
from pfedseq.data.arrays import Given
from pfedseq.report.figures import draw_curves
from pfedseq.runs import run as runs
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import RunSummary

__all__ = ["Run", "open_run", "resume", "run"]


def run(
    config: Config,
    out: Path | str,
    listener: runs.Listener | None = None,
    tell: runs.Tell = runs.tell_nobody,
    data: Given | None = None,
) -> RunSummary:
    """Run every method of a config into the folder `out`; returns what summary.json holds.

    If `out` holds an unfinished run of the same config, it is continued. `listener` receives each
    round's record, `tell` messages for the user. `data` replaces the config's [data]:
    `{"site_a": (x, y), "site_b": data_set}` with images (uint8, or
    floats in [0, 1]; channels first or last; PIL) or texts, and labels that are numbers or names.
    """
    summary = runs.run(config, out, listener, tell, data)
    draw_curves(RunFolder(Path(out)))
    return summary


def resume(
    out: Path | str,
    listener: runs.Listener | None = None,
    tell: runs.Tell = runs.tell_nobody,
    data: Given | None = None,
) -> RunSummary:
    """Continue a run from its last checkpoints; the results equal those of an uninterrupted run.

    A run that was started with `data` needs the same data again.
    """
    summary = runs.resume(out, listener, tell, data)
    draw_curves(RunFolder(Path(out)))
    return summary
