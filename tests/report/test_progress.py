"""Progress where nobody watches, and after a run was continued."""

import io

import pytest
from rich.console import Console

from pfedseq.report import progress
from pfedseq.report.progress import ProgressDisplay, RoundPace, StepDisplay, minutes
from pfedseq.runs.records import Cost, RoundRecord
from tests.scored import scores_of


def record(method, t, accuracy=None, seconds=3.0):
    scores = None if accuracy is None else scores_of((accuracy,))
    return RoundRecord(method, t, scores, Cost(0, 0, 0.0, 0.0, 0.0, seconds))


@pytest.fixture
def time(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(progress, "clock", lambda: now[0])

    def pass_by(seconds):
        now[0] += seconds

    return pass_by


@pytest.fixture
def no_terminal(monkeypatch):
    monkeypatch.setattr(progress, "console", Console(file=io.StringIO(), force_terminal=False))


def test_without_a_terminal_a_line_comes_every_ten_seconds(time, no_terminal, capsys):
    with ProgressDisplay(["pfedseq", "local"], 8) as display:
        for t in range(1, 9):
            time(4)
            display.advance(record("pfedseq", t, t / 10))
        time(2)
        display.advance(record("local", 1))
    assert capsys.readouterr().err.splitlines() == [
        "pFedSeq round 1/8, accuracy 10.0 %, elapsed 0:04, left 0:28",
        "pFedSeq round 4/8, accuracy 40.0 %, elapsed 0:16, left 0:16",
        "pFedSeq round 7/8, accuracy 70.0 %, elapsed 0:28, left 0:04",
        "pFedSeq round 8/8, accuracy 80.0 %, elapsed 0:32, left 0:00",
        "Local round 1/8, elapsed 0:02, left 0:14",
    ]


def test_long_rounds_have_a_line_each(time, no_terminal, capsys):
    with ProgressDisplay(["local"], 3) as display:
        for t in (1, 2, 3):
            time(4000)
            display.advance(record("local", t))
    assert [line.split(", ")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"Local round {t}/3" for t in (1, 2, 3)
    ]


def test_after_resuming_what_was_done_is_done(time, no_terminal, capsys):
    earlier = {
        "pfedseq": [record("pfedseq", t, 0.6) for t in range(1, 5)],
        "local": [record("local", t, 0.4) for t in (1, 2, 3)],
    }
    with ProgressDisplay(["pfedseq", "local"], 4, earlier) as display:
        time(5)
        display.advance(record("local", 3, 0.5))  # round 3 was not in the checkpoint: run again
    assert capsys.readouterr().err.splitlines() == [
        "pFedSeq round 4/4, accuracy 60.0 %, elapsed 0:12, left 0:00: finished earlier",
        # rounds 1 and 2 took 6 seconds, round 3 five; one is left at this session's pace
        "Local round 3/4, accuracy 50.0 %, elapsed 0:11, left 0:05",
    ]


def test_the_bars_of_a_resumed_run(time, monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(progress, "console", terminal)
    earlier = {"pfedseq": [record("pfedseq", t, 0.6) for t in range(1, 5)]}
    with ProgressDisplay(["pfedseq", "local"], 4, earlier) as display:
        time(5)
        display.advance(record("local", 1, 0.25))
    lines = [line for line in screen.getvalue().splitlines() if "/4" in line][-2:]
    assert "4/4" in lines[0]
    assert "accuracy 60.0 %  elapsed 0:12, left 0:00" in lines[0]
    assert "1/4" in lines[1]
    assert "accuracy 25.0 %  elapsed 0:05, left 0:15" in lines[1]


def test_a_method_that_waits_does_not_age(time):
    pace = RoundPace(4)
    time(50)
    assert (pace.elapsed(), pace.left()) == (0.0, None)
    pace.start()
    time(2)
    pace.advance(record("local", 1))
    assert (pace.elapsed(), pace.left()) == (2.0, 6.0)


def test_preparing_speaks_every_ten_seconds(time, no_terminal, capsys):
    with StepDisplay() as display:
        for done in range(0, 60, 10):
            display.report("reading images", done, 1000)
            time(6)
    assert capsys.readouterr().err.splitlines() == [
        "reading images: 20 of 1,000",
        "reading images: 40 of 1,000",
    ]


def test_minutes():
    assert [minutes(s) for s in (0, 7.4, 62, 3599, 3723)] == [
        "0:00",
        "0:07",
        "1:02",
        "59:59",
        "1:02:03",
    ]
