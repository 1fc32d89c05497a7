"""A site's warm worker, from the side of the process that Flower starts for every message.

Importing PyTorch and rebuilding backbone and data takes far longer than a message should. So that
process only hands the message, over a socket in the site's own folder, to a worker that stays:
started when there is none, gone when it has had nothing to do for a while or Flower's node ends.
Nothing depends on it: it holds no memory that is not in the site's folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pfedseq.deployment.envelope import Envelope
from pfedseq.errors import InputError

START_SECONDS = 120.0
LONGEST_SOCKET_NAME = 100
"""Bytes: what all systems accept, with a little room."""


def ask_worker(
    envelope: Envelope, node: Mapping[str, Any], folder: Path, seconds: float
) -> Envelope:
    """The worker's answer; a worker that dies over it is replaced once."""
    for last in (False, True):
        try:
            with _connected(folder, seconds) as connection:
                Envelope({"node": dict(node), "request": envelope.fields}, envelope.payload).send(
                    connection
                )
                answer = Envelope.receive(connection)
        except (EOFError, ConnectionError):
            if last:
                raise InputError(
                    f"the site's worker died twice over a message; see {log_file(folder)}"
                ) from None
            continue
        if "problem" in answer.fields:
            raise InputError(str(answer.fields["problem"]))
        return answer
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _connected(folder: Path, seconds: float) -> Iterator[socket.socket]:
    """A connection to the worker, which is started where none listens."""
    address, worker = str(socket_file(folder)), None
    deadline = time.monotonic() + START_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        while True:
            try:
                connection.connect(address)
                break
            except OSError:
                if worker is None:
                    worker = _start(folder, seconds)
                if worker.poll() is not None or time.monotonic() > deadline:
                    raise InputError(
                        f"the site's worker does not start; see {log_file(folder)}"
                    ) from None
                time.sleep(0.05)
        yield connection


def _start(folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    """A worker that outlives this process, but not the one that Flower's node started it from."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", f"{__package__}.worker", str(folder)]
    command += [json.dumps(seconds), str(os.getppid())]
    with log_file(folder).open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def socket_file(folder: Path) -> Path:
    """In the site's folder, or where that name is too long, in a private one of short name."""
    file = folder.absolute() / "worker.sock"
    if len(os.fsencode(file)) <= LONGEST_SOCKET_NAME:
        return file
    short = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"pfedseq-{os.getuid()}-{short}"
    private.mkdir(mode=0o700, exist_ok=True)
    status = private.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InputError(f"{private} belongs to someone else: remove it")
    return private / "worker.sock"


def log_file(folder: Path) -> Path:
    """What the worker says."""
    return folder / "worker.log"
