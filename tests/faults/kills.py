"""Kill real processes at random moments, go on each time, and compare with a run left alone.

Half of the kills come from outside after a random time; the others strike in the middle of a
write, with half of the file's bytes on disk, or between a write and its rename. A killed run is
continued by `resume` or by running the same config again, in turn, until it ends. Then its metrics
(seconds aside), its summary and every client's adapter must be those of the run left alone.

A process that has everything imported forks one for each attempt, so that an attempt costs a second
and not ten:

    python -m tests.faults.kills --kills 1000
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pfedseq.api import resume, run
from pfedseq.config import Config, make_config
from pfedseq.methods import METHODS

ROUNDS = 4
MOST_WRITES = 40
"""A kill in the middle of a write strikes one of so many writes."""


def tiny(method: str) -> Config:
    """A run of some seconds: three clients of 24 digits each."""
    return make_config(
        {
            "run": {"methods": [method], "rounds": ROUNDS, "name": "tiny"},
            "data": {"name": "digits", "num_clients": 3, "max_images_per_client": 24},
            "auxiliary": {"num_images": 16},
            "training": {"lr": 0.02, "batch_size": 8},
            "engine": {"device": "cpu", "clients_per_pass": 2, "threads": 1},
            "methods": {
                "pfedseq": {"warmup_rounds": 1, "max_sequence_length": 2},
                "perada": {"distillation_steps": 2},
            },
        }
    )


@dataclass
class Tally:
    """What was done, and what came of it."""

    kills: int = 0
    kills_in_a_write: int = 0
    resumes: int = 0
    runs_compared: int = 0
    rounds_repeated: int = 0
    """Rounds that stood in metrics.jsonl already and were run again."""
    losses: int = 0
    """Runs that could not be continued, or ended with other results."""

    def __str__(self) -> str:
        return ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in asdict(self).items()
        )


def attempt(work: Callable[[], object], log: Path, die_at: int | None = None) -> int:
    """The id of a process that does the work; it kills itself at its write number `die_at`."""
    pid = os.fork()
    if pid:
        return pid
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        if die_at is not None:
            die_in_write(die_at)
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def die_in_write(number: int) -> None:
    """Die at write `number`: an odd one half-written, an even one before its rename."""
    count = 0
    fsync, replace = os.fsync, os.replace

    def dying_fsync(handle: int) -> None:
        nonlocal count
        count += 1
        if count == number and number % 2:
            halve(handle)
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    def dying_replace(source: Path, target: Path) -> None:
        if count >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.fsync, os.replace = dying_fsync, dying_replace  # type: ignore[assignment]


def halve(handle: int) -> None:
    """Take away the second half of what was written to an open file, or of a line added to it."""
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode):
        appended = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND
        os.ftruncate(handle, status.st_size - 100 if appended else status.st_size // 2)


def results(folder: Path) -> dict[str, object]:
    """All that must not depend on whether a run was cut off."""
    found: dict[str, object] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "adapters").rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    found["metrics"] = [
        _timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    summary = json.loads((folder / "summary.json").read_text())
    summary["methods"] = {name: _timeless(values) for name, values in summary["methods"].items()}
    found["summary"] = summary
    found["pictures"] = [(folder / name).is_file() for name in ("curves.png", "clients.png")]
    return found


def _timeless(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if not name.endswith("_seconds")}


def killed_again_and_again(
    method: str, work: Path, rng: random.Random, tally: Tally, most_kills: int
) -> None:
    """One run of a method, killed until it ends or `most_kills` are spent, then left to end."""
    config, log = tiny(method), work / "log"
    whole = work / f"{method}-whole"
    if not whole.exists():
        start = time.monotonic()
        if os.waitpid(attempt(lambda: run(config, whole), log), 0)[1]:
            raise RuntimeError(f"{method} does not even run alone:\n{log.read_text()}")
        (work / f"{method}-seconds").write_text(str(time.monotonic() - start))
    seconds = float((work / f"{method}-seconds").read_text())
    cut = work / f"{method}-cut"
    shutil.rmtree(cut, ignore_errors=True)
    kills = 0
    while True:
        started = (cut / "config.toml").exists()
        lines_before = _lines(cut)

        def go(resuming: bool = started and kills % 2 == 0) -> None:
            resume(cut) if resuming else run(config, cut)

        spent = kills >= most_kills
        in_write = not spent and rng.random() < 0.5
        pid = attempt(go, log, rng.randint(1, MOST_WRITES) if in_write else None)
        tally.resumes += started
        if not spent and not in_write:
            _kill_after(pid, rng.uniform(0, seconds))
        code = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(code):
            kills += 1
            tally.kills += 1
            tally.kills_in_a_write += bool(list(cut.rglob(".*.tmp"))) or in_write
            tally.rounds_repeated += _repeated(cut, method)
            continue
        if code:
            tally.losses += 1
            print(f"{method} cannot go on after {lines_before} rounds:\n{log.read_text()}")
            return
        break
    tally.runs_compared += 1
    if results(cut) != results(whole):
        tally.losses += 1
        print(f"{method} ended with other results: compare {cut} with {whole}")
        shutil.copytree(cut, work / f"{method}-lost-{tally.losses}")


def _lines(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def _repeated(folder: Path, method: str) -> int:
    """Whole lines of metrics.jsonl beyond the newest checkpoint."""
    rounds = [0]
    for manifest in (folder / "checkpoints" / method).glob("*/manifest.json"):
        rounds.append(json.loads(manifest.read_text())["round"])
    return _lines(folder) - max(rounds)


def _kill_after(pid: int, seconds: float) -> None:
    """SIGKILL after a time, unless the process has ended before; it stays to be waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tally; 1 where anything was lost."""
    parser = argparse.ArgumentParser(description="Kill runs at random moments and continue them.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the tally to this file, too")
    options = parser.parse_args(arguments)
    methods, rng, tally = options.methods.split(","), random.Random(options.seed), Tally()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        turn = 0
        while tally.kills < options.kills and not tally.losses:
            method = methods[turn % len(methods)]
            left = options.kills - tally.kills
            killed_again_and_again(method, Path(work), rng, tally, min(left, 12))
            turn += 1
            minutes = (time.monotonic() - start) / 60
            print(f"{minutes:5.1f} min, {method:>10}: {tally}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(asdict(tally)) + "\n")
    return bool(tally.losses)


if __name__ == "__main__":
    sys.exit(main())
