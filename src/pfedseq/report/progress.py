"""What a person sees while something runs: bars that are silent where nobody watches."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pfedseq.methods import METHODS
from pfedseq.report.console import console
from pfedseq.runs.records import RoundRecord

if TYPE_CHECKING:
    from pfedseq.runs.run import Listener
    from pfedseq.runs.sweep import Entry


class ProgressDisplay:
    """One bar per method with its accuracy and the time left; silent where nobody watches."""

    def __init__(self, methods: Sequence[str], rounds: int) -> None:
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]:>18}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        for name in methods:
            self._bars[name] = self._progress.add_task(
                METHODS[name].title, total=rounds, accuracy="", start=False
            )

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        self._progress.start_task(next(iter(self._bars.values())))
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
        bar = self._bars[record.method]
        self._progress.update(bar, completed=record.round)
        if record.scores is not None:
            accuracy = f"accuracy {100 * record.scores.client_mean:5.1f} %"
            self._progress.update(bar, accuracy=accuracy)
        if self._progress.tasks[bar].finished:
            waiting = [b for b in self._bars.values() if not self._progress.tasks[b].started]
            if waiting:
                self._progress.start_task(waiting[0])


class SequenceDisplay:
    """One bar for each run of a sweep, as they come; silent where nobody watches."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs, self._started = num_runs, 0
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

    def announce(self, entry: Entry) -> Listener:
        """Open the next run's bars."""
        if self._display is not None:
            self._display.__exit__(None, None, None)
        self._started += 1
        run = entry.config.run
        if console.is_terminal:
            console.print(
                f"[dim]run {self._started} of at most {self._num_runs}: {escape(entry.label)}[/dim]"
            )
        self._display = ProgressDisplay(run.methods, run.rounds).__enter__()
        return self._display.advance


class StepDisplay:
    """Named steps of some work, each with a count and the time left."""

    def __init__(self) -> None:
        self._steps: dict[str, TaskID] = {}
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
