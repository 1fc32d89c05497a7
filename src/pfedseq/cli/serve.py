"""`pfedseq serve`: all clients' models behind one address."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
import sys
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedseq.cli.options import Plugins, load_plugins
from pfedseq.errors import InputError
from pfedseq.words import count

TOKEN_VARIABLE = "PFEDSEQ_TOKEN"


def _variable(name: str) -> dict[str, Any]:
    """An option's environment variable; the docs list them, as they would widen every line."""
    return {"envvar": f"PFEDSEQ_SERVE_{name}", "show_envvar": False}


def serve(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            **_variable("RUN"),
            help="Folder of a finished run, of an export, or of a PEFT adapter.",
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            **_variable("METHOD"),
            help="Method whose models are used. Default: the run's first.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(**_variable("HOST"), help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            **_variable("PORT"),
            metavar="N",
            min=0,
            max=65535,
            help="Port; 0 picks a free one.",
        ),
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            **_variable("TOKEN_FILE"),
            help=f"File with the bearer token to require; or set {TOKEN_VARIABLE}.",
        ),
    ] = None,
    max_megabytes: Annotated[
        float,
        typer.Option(
            **_variable("MAX_MEGABYTES"),
            metavar="N",
            min=0.001,
            help="Largest request, in megabytes.",
        ),
    ] = 10,
    timeout: Annotated[
        float,
        typer.Option(
            **_variable("TIMEOUT"),
            metavar="N",
            min=0.1,
            help="Seconds until a request times out.",
        ),
    ] = 30,
    max_batch: Annotated[
        int,
        typer.Option(
            **_variable("MAX_BATCH"),
            metavar="N",
            min=1,
            help="Largest number of examples in a pass.",
        ),
    ] = 64,
    max_connections: Annotated[
        int,
        typer.Option(
            **_variable("MAX_CONNECTIONS"),
            metavar="N",
            min=1,
            help="Open connections; a further one replaces the one that has been idle longest.",
        ),
    ] = 512,
    head_timeout: Annotated[
        float,
        typer.Option(
            **_variable("HEAD_TIMEOUT"),
            metavar="N",
            min=0.1,
            help="Seconds within which a request's head must arrive.",
        ),
    ] = 10,
    models_in_memory: Annotated[
        int,
        typer.Option(
            **_variable("MODELS_IN_MEMORY"),
            metavar="N",
            min=1,
            help="Clients' models kept in memory; beyond that, the least recently used is dropped.",
        ),
    ] = 1000,
    log_requests: Annotated[
        bool,
        typer.Option(
            **_variable("LOG_REQUESTS"),
            help="Log each request as a line of JSON on standard error.",
        ),
    ] = True,
    plugin: Plugins = None,
) -> None:
    """Serve every client's personal model over HTTP, all on one backbone.

    The address shows a page to try it; /docs describes the API. Requests for different clients
    share passes through the backbone. SIGHUP reloads the models. Every option can also be set by an
    environment variable: PFEDSEQ_SERVE_PORT for --port, PFEDSEQ_SERVE_RUN for the folder.

    Examples:

    - `pfedseq serve runs/tiles`

    - `curl --data-binary @photo.jpg 'localhost:8000/predict?client=mill'`

    - `curl -H 'Content-Type: text/plain' -d 'More salt.' 'localhost:8000/predict?client=anna'`
    """
    if not all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn")):
        raise InputError("serving needs more packages: pip install 'pfedseq[serve]'")
    import uvicorn

    from pfedseq.report.progress import StepDisplay
    from pfedseq.serving.connections import allow_files, limited
    from pfedseq.serving.loading import load_served
    from pfedseq.serving.metrics import Metrics
    from pfedseq.serving.service import Limits, make_service
    from pfedseq.serving.watching import log_nothing, log_to_stderr

    load_plugins(plugin)
    token = _token(token_file)
    allow_files(max_connections)
    with StepDisplay() as display:
        served = load_served(run, method, models_in_memory, display.report)
    limits = Limits(body_bytes=int(1e6 * max_megabytes), seconds=timeout, batch=max_batch)
    if token is None and not _is_loopback(host):
        print(
            f"pfedseq: warning: anyone who reaches {host} can use these models; set a token",
            file=sys.stderr,
        )
    listening = _listen(host, port)
    place = f"[{host}]" if ":" in host else host
    address = f"http://{place}:{listening.getsockname()[1]}/"
    print(f"{count(len(served.clients), 'client')} at {address} (Ctrl-C stops it)", flush=True)
    metrics = Metrics()
    app = make_service(
        served,
        limits,
        token,
        partial(load_served, run, method, models_in_memory),
        metrics,
        log_to_stderr if log_requests else log_nothing,
    )
    connections = limited(max_connections, head_timeout, metrics.closed)
    config = uvicorn.Config(
        app,
        http=connections,
        log_level="warning",
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=ceil(timeout),
    )
    uvicorn.Server(config).run([listening])


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
