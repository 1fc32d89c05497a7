"""Submits a run to Flower and shows its server's status until it ends."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pfedseq.cli.options import EXIT_INTERRUPTED
from pfedseq.errors import InputError

if TYPE_CHECKING:
    from pfedseq.deployment.status import StatusFile

WATCH_SECONDS = 1.0
NEW_ATTEMPT_SECONDS = 30.0
"""Seconds to wait for a new attempt after one has ended."""
AGAIN = "submit it again without a config to continue: flwr run APP LINK --run-config 'out=\"…\"'"
TELL_SECONDS = 20.0
"""Interval in seconds of the messages while a run has not started."""


def submit(federation: Any, out: Path, config: Path | None, accept: Sequence[str] = ()) -> None:
    """Submit the run to Flower and watch it; the outcome is what our own server writes."""
    from pfedseq.deployment.loopback import CONNECTION

    asked = time.time()
    values = {"out": str(out)} | ({"config": str(config)} if config else {})
    values |= {"accept": ",".join(accept)} if accept else {}
    text = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    printed = federation.flwr("run", str(federation.app), CONNECTION, "--run-config", text)
    federation.remember_run(out)
    number = re.search(r"started run (\d+)", printed)
    try:
        here = f"`pfedseq flower resume {out}` continues it"
        follow(out, asked, lambda: federation.fate(number[1]) if number else None, here)
    except KeyboardInterrupt:
        print(f"pfedseq: the run continues: see pfedseq flower status and {out}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def await_attempt(file: StatusFile) -> None:
    """If the last attempt has ended, wait a while for a new one."""
    how = file.read()
    why = how.get("sentence") if how.get("state") == "failed" else ended(how)
    if not why:
        return
    print(
        f"pfedseq: the last attempt has ended ({why}); waiting {NEW_ATTEMPT_SECONDS:g} s for a "
        "new one",
        file=sys.stderr,
    )
    deadline = time.monotonic() + NEW_ATTEMPT_SECONDS
    while time.monotonic() < deadline:
        if file.read().get("at") != how.get("at"):
            return
        time.sleep(WATCH_SECONDS)


def follow(out: Path, asked: float, fate: Callable[[], str | None], again: str = "") -> None:
    """Show a run's progress from `asked` on; `fate` explains why a run will never start."""
    from pfedseq.config import load_config
    from pfedseq.deployment.status import StatusFile
    from pfedseq.report.figures import draw_curves
    from pfedseq.report.progress import ProgressDisplay
    from pfedseq.report.tables import print_results
    from pfedseq.runs.folder import RunFolder

    folder, file = RunFolder(out), StatusFile(out)
    _await_server(out, file, asked, fate)
    config = load_config(folder.config)
    said, shown = "", 0
    with ProgressDisplay(config.run.methods, config.run.rounds, {}) as display:
        while True:
            how = file.read()
            if how["state"] == "gathering" and how["sentence"] != said:
                said = how["sentence"]
                print(f"pfedseq: {said}", file=sys.stderr)
            records = folder.records()
            for record in records[shown:]:
                display.advance(record)
            shown = max(shown, len(records))
            if how["state"] in ("finished", "failed") or (lost := ended(how)):
                break
            time.sleep(WATCH_SECONDS)
    if how["state"] == "failed":
        raise InputError(f"{out}: {how['sentence']}")
    if how["state"] != "finished":
        raise InputError(f"{out}: {lost}; {again or AGAIN}")
    draw_curves(folder)
    print_results(folder.read_summary(), out)
    print("Personal models are at the sites: RUN/METHOD/model in each site's own folder.")


def _await_server(out: Path, file: Any, asked: float, fate: Callable[[], str | None]) -> None:
    """Wait until our server has written a status, however long it takes to start.

    A run may have to wait for another one to end, and a server for its backbone to be downloaded.
    """
    begun = told = time.monotonic()
    while file.read().get("at", -1.0) < asked:
        now = time.monotonic()
        if now - told > TELL_SECONDS:
            told = now
            why = fate()
            if why and file.read().get("at", -1.0) < asked:
                why = _refusal(out, asked) or f"{why}; the SuperLink's log says more"
                raise InputError(f"{out} did not start: {why}")
            print(
                f"pfedseq: waiting for Flower's server to start {out} ({now - begun:.0f} s so far; "
                "Ctrl-C stops waiting, not the run)",
                file=sys.stderr,
            )
        time.sleep(WATCH_SECONDS)


def _refusal(out: Path, asked: float) -> str | None:
    """Why our server has refused what was submitted at `asked`, if it has."""
    from pfedseq.deployment.audit import SUBMISSION, Audit

    audit = Audit(out)
    if not audit.path.exists():
        return None
    told = [e for e in audit.events() if e["event"] == "refused" and e["site"] == SUBMISSION]
    if not told or datetime.fromisoformat(told[-1]["at"]).timestamp() < asked:
        return None
    return str(told[-1]["reason"])


def ended(how: dict[str, Any]) -> str | None:
    """Explain a server that ended without a status; None while it runs or if it ended well."""
    from pfedseq.deployment.loopback import running

    if how.get("state") in ("finished", "failed", None) or running(how["pid"], how["created"]):
        return None
    return "the server was stopped during the run"
