"""`pfedseq serve`: all clients' models behind one address."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from pfedseq.cli.models import MethodName, Models
from pfedseq.cli.options import Plugins, load_plugins
from pfedseq.errors import InputError
from pfedseq.words import count

TOKEN_VARIABLE = "PFEDSEQ_TOKEN"


def serve(
    run: Models,
    method: MethodName = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the bearer token to require; or set {TOKEN_VARIABLE}."),
    ] = None,
    max_megabytes: Annotated[float, typer.Option(min=0.001, help="Largest request.")] = 10,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request times out.")
    ] = 30,
    max_batch: Annotated[int, typer.Option(min=1, help="Examples in a pass, at most.")] = 64,
    plugin: Plugins = None,
) -> None:
    """Serve every client's personal model over HTTP, all on one backbone.

    The address shows a page to try it; /docs describes the API. Requests for different clients
    share passes through the backbone.

    Examples:

    - `pfedseq serve runs/tiles`

    - `curl --data-binary @photo.jpg 'localhost:8000/predict?client=mill'`

    - `curl -H 'Content-Type: text/plain' -d 'More salt.' 'localhost:8000/predict?client=anna'`
    """
    if not all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn")):
        raise InputError("serving needs more packages: pip install 'pfedseq[serve]'")
    import uvicorn

    from pfedseq.report.progress import StepDisplay
    from pfedseq.serving.client_models import ClientModels
    from pfedseq.serving.service import Limits, Served, make_service
    from pfedseq.serving.together import ModelsTogether, load_together

    load_plugins(plugin)
    token = _token(token_file)
    found = ClientModels.open(run, method)
    with StepDisplay() as display:
        models, everyones, global_is = load_together(found, display.report)
    served = Served(
        ModelsTogether([*models, everyones]), tuple(found.names), found.method, global_is
    )
    limits = Limits(body_bytes=int(1e6 * max_megabytes), seconds=timeout, batch=max_batch)
    if token is None and not _is_loopback(host):
        print(
            f"pfedseq: warning: anyone who reaches {host} can use these models; set a token",
            file=sys.stderr,
        )
    listening = _listen(host, port)
    place = f"[{host}]" if ":" in host else host
    address = f"http://{place}:{listening.getsockname()[1]}/"
    print(f"{count(len(found.names), 'client')} at {address} (Ctrl-C stops it)", flush=True)
    app = make_service(served, limits, token)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none")).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as problem:
        why = os.strerror(problem.errno) if problem.errno and problem.errno > 0 else problem
        raise InputError(
            f"cannot listen at {host}, port {port} ({why}): choose another --host or --port"
        ) from None


def _token(file: Path | None) -> str | None:
    """The token from a file or the environment; the command line is visible to all users."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"cannot read the token file {file}: {problem}") from None
    if not token:
        raise InputError(f"the token file {file} is empty")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
