"""Progress: bars on a terminal, occasional lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from pfedseq.methods import method_title
from pfedseq.report.console import console
from pfedseq.runs.records import RoundRecord

if TYPE_CHECKING:
    from pfedseq.runs.run import Listener
    from pfedseq.runs.sweep import SweepEntry

SECONDS_BETWEEN_LINES = 10.0
clock = time.monotonic


class RoundPace:
    """One method's progress, elapsed time and remaining time.

    Rounds of an earlier session count as done and elapsed; the remaining time is estimated from
    this session's rounds only.
    """

    def __init__(self, rounds: int, earlier: Sequence[RoundRecord] = ()) -> None:
        self.rounds, self._earlier = rounds, earlier
        self.done = earlier[-1].round if earlier else 0
        self.headline = ""
        for record in earlier:
            self._see(record)
        self._earlier_seconds = sum(record.cost.round_seconds for record in earlier)
        self._started: float | None = None
        self._ended: float | None = None
        self._done_before: int | None = None

    @property
    def finished(self) -> bool:
        """Whether no round is left."""
        return self.done >= self.rounds

    def start(self) -> None:
        """Start the clock."""
        self._started = clock()

    def advance(self, record: RoundRecord) -> None:
        """Record a finished round; the first one shows where this session continued."""
        if self._started is None:  # the previous method stopped early
            self.start()
        if self._done_before is None:
            self._done_before = record.round - 1
            kept = (r.cost.round_seconds for r in self._earlier if r.round < record.round)
            self._earlier_seconds = sum(kept)
        self.done = record.round
        self._see(record)
        if self.finished:
            self._ended = clock()

    def _see(self, record: RoundRecord) -> None:
        if record.scores is not None:
            measure = record.scores.measure
            short = replace(measure.format, digits=max(1, measure.format.digits - 1))
            self.headline = f"{measure.title} {short.with_unit(record.scores.client_mean)}"

    def elapsed(self) -> float:
        """Seconds, including earlier sessions."""
        return self._earlier_seconds + self._session()

    def left(self) -> float | None:
        """Seconds, or None before the first round of this session is done."""
        if self.finished:
            return 0.0
        if self._done_before is None:
            return None
        # Only whole rounds count, so that the estimate does not rise during a round.
        return self._session() / (self.done - self._done_before) * (self.rounds - self.done)

    def _session(self) -> float:
        if self._started is None:
            return 0.0
        return (clock() if self._ended is None else self._ended) - self._started

    def times(self) -> str:
        """'elapsed 1:02, left 3:10'."""
        left = self.left()
        return f"elapsed {minutes(self.elapsed())}, left {'–' if left is None else minutes(left)}"

    def score(self) -> str:
        """'accuracy 61.2 %', or nothing before the first evaluation."""
        return self.headline


def minutes(seconds: float) -> str:
    """'0:07', '12:30', '1:02:03'."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


class _PaceColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        pace: RoundPace = task.fields["pace"]
        return Text(f"{pace.score():>16}  {pace.times()}")


class _Lines:
    """A line on stderr when ten seconds have passed, for logs."""

    def __init__(self) -> None:
        self._last = clock()

    def say(self, line: str, *, always: bool = False) -> None:
        now = clock()
        if always or now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            print(line, file=sys.stderr, flush=True)


class ProgressDisplay:
    """One bar per method with its accuracy, the time it took and the time left.

    Without a terminal: a line after the first and the last round, and every ten seconds between.
    `earlier` holds the finished rounds of a continued run.
    """

    def __init__(
        self,
        methods: Sequence[str],
        rounds: int,
        earlier: Mapping[str, Sequence[RoundRecord]] | None = None,
    ) -> None:
        self._paces = {name: RoundPace(rounds, (earlier or {}).get(name, ())) for name in methods}
        self._lines = _Lines()
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            _PaceColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        for name, pace in self._paces.items():
            self._bars[name] = self._progress.add_task(
                method_title(name), total=rounds, completed=pace.done, pace=pace
            )

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        for name, pace in self._paces.items():
            if pace.finished and not console.is_terminal:
                self._lines.say(f"{_line(name, pace)}: finished earlier", always=True)
        self._start_next()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, record: RoundRecord) -> None:
        """Show one finished round."""
        pace = self._paces[record.method]
        first = pace.left() is None
        pace.advance(record)
        self._progress.update(self._bars[record.method], completed=record.round)
        if not console.is_terminal:
            self._lines.say(_line(record.method, pace), always=first or pace.finished)
        if pace.finished:
            self._start_next()

    def _start_next(self) -> None:
        for pace in self._paces.values():
            if not pace.finished:
                pace.start()
                return


def _line(name: str, pace: RoundPace) -> str:
    parts = [f"{method_title(name)} round {pace.done}/{pace.rounds}", pace.score(), pace.times()]
    return ", ".join(part for part in parts if part)


class SequenceDisplay:
    """Progress displays for the runs of a sweep in the folder `out`."""

    def __init__(self, num_runs: int, out: Path) -> None:
        self._num_runs, self._out, self._started = num_runs, out, 0
        self._display: ProgressDisplay | None = None

    def __enter__(self) -> SequenceDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.__exit__(kind, error, trace)

    def announce(self, entry: SweepEntry) -> Listener:
        """Open the next run's bars."""
        if self._display is not None:
            self._display.__exit__(None, None, None)
        self._started += 1
        run = entry.config.run
        heading = f"run {self._started} of at most {self._num_runs}: {entry.label}"
        if console.is_terminal:
            console.print(f"[dim]{escape(heading)}[/dim]")
        else:
            print(heading, file=sys.stderr, flush=True)
        earlier = entry.folder(self._out).by_method()
        self._display = ProgressDisplay(run.methods, run.rounds, earlier).__enter__()
        return self._display.advance


class StepDisplay:
    """Named steps of some work, each with a count and the time left."""

    def __init__(self) -> None:
        self._steps: dict[str, TaskID] = {}
        self._lines = _Lines()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> StepDisplay:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def report(self, step: str, done: int, total: int) -> None:
        """`done` of `total` of a step."""
        if step not in self._steps:
            self._steps[step] = self._progress.add_task(step, total=total)
        self._progress.update(self._steps[step], completed=done, total=total)
        if not console.is_terminal and total > 1:
            self._lines.say(f"{step}: {done:,} of {total:,}")
