"""The worker at a site that stays between messages: `python -m pfedseq.deployment.worker`.

It answers one message after the other over a socket that only the site's owner can reach, and ends
when it has been idle for a while or when the process that it was started for has gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
from pathlib import Path

import psutil

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.site_app import answer_here
from pfedseq.deployment.site_config import SiteConfig
from pfedseq.deployment.warm import socket_file
from pfedseq.errors import InputError

LOOK_SECONDS = 1.0


def main(folder: Path, idle_seconds: float, parent: int) -> None:
    """Answer until there is nothing more to do."""
    address = socket_file(folder)
    with contextlib.suppress(FileNotFoundError):
        address.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(address))
        os.chmod(address, 0o600)
        mine = address.stat().st_ino
        listening.listen()
        listening.settimeout(LOOK_SECONDS)
        last = time.monotonic()
        while time.monotonic() - last < idle_seconds and _is_there(parent):
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                with connection, contextlib.suppress(EOFError, ConnectionError):
                    connection.settimeout(None)
                    _answer(connection)
                last = time.monotonic()
    with contextlib.suppress(FileNotFoundError):
        if address.stat().st_ino == mine:  # not a successor's
            address.unlink()


def _is_there(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _answer(connection: socket.socket) -> None:
    asked = Envelope.receive(connection)
    try:
        site = SiteConfig.read(asked.fields["node"], {})
        request = Envelope(asked.fields["request"], asked.payload)
        answer = answer_here(site, request)
    except InputError as problem:
        answer = Envelope({"problem": str(problem)}, b"")
    except Exception as problem:  # the server is told, and the worker goes on with the next
        traceback.print_exc()
        answer = Envelope({"problem": f"{type(problem).__name__}: {problem}"}, b"")
    answer.send(connection)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
