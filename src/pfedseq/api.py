"""The package's face: run a config, or go on with a run, and leave a folder with everything."""

from __future__ import annotations

from pathlib import Path

from pfedseq.config import Config
from pfedseq.report.figures import draw_curves
from pfedseq.runs import run as runs
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import RunSummary


def run(
    config: Config,
    out: Path | str,
    listener: runs.Listener | None = None,
    tell: runs.Tell = runs.tell_nobody,
) -> RunSummary:
    """Run every method of a config into the folder `out`; returns what summary.json holds.

    An unfinished run of the same config that is there already is continued. `listener` gets every
    round's record, `tell` sentences that the user should know.
    """
    summary = runs.run(config, out, listener, tell)
    draw_curves(RunFolder(Path(out)))
    return summary


def resume(
    out: Path | str,
    listener: runs.Listener | None = None,
    tell: runs.Tell = runs.tell_nobody,
) -> RunSummary:
    """Continue a run from its last checkpoints; the results are those of an unbroken run."""
    summary = runs.resume(out, listener, tell)
    draw_curves(RunFolder(Path(out)))
    return summary
