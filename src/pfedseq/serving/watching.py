"""Assigns ids to requests, logs and counts them."""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pfedseq.serving.metrics import Metrics

Log = Callable[..., None]
"""Called with an event's name and its details."""
ID_HEADER = b"x-request-id"
VITAL = ("/healthz", "/readyz", "/metrics")
"""Paths that are also served on reserve connections."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def log_to_stderr(event: str, **known: Any) -> None:
    """Print one JSON object per line."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": now, "event": event, **known}, ensure_ascii=False)
    print(line, file=sys.stderr, flush=True)


def log_nothing(event: str, **known: Any) -> None:
    """A `Log` that prints nothing."""


class Watched:
    """Assigns every request an id, or keeps a proxy's `X-Request-ID`; times and logs it."""

    def __init__(self, app: ASGIApp, paths: frozenset[str], metrics: Metrics, log: Log) -> None:
        self._app, self._paths, self._metrics, self._log = app, paths, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request through the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(scope)
        start, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (ID_HEADER, request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        path = scope["path"]
        answering = self._app
        if state.get("reserve") and path not in VITAL:
            sentence = "too many connections are in use: try again later"
            answering = JSONResponse({"detail": sentence}, 503, {"Connection": "close"})
        try:
            await answering(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - start
            known = path if path in self._paths else "other"
            self._metrics.request(known, status, seconds)
            self._log(
                "request",
                id=request_id,
                method=scope["method"],
                path=known,
                status=status,
                seconds=round(seconds, 4),
                client=state.get("client"),
                bytes=state.get("bytes"),
                peer=scope["client"][0] if scope.get("client") else None,
            )


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == ID_HEADER and _ID.fullmatch(value.decode("latin-1")):
            return str(value.decode("latin-1"))
    return secrets.token_hex(8)
