"""The HTTP service: many clients' models behind one backbone; needs the extra `serve`."""

from __future__ import annotations

import asyncio
import hmac
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.serving.batching import Batcher, TooManyWaiting
from pfedseq.serving.budget import Budget, Tally
from pfedseq.serving.generations import Generation, Generations, Served
from pfedseq.serving.metrics import CONTENT_TYPE, Metrics
from pfedseq.serving.model_cache import NotYet
from pfedseq.serving.prediction import most_likely
from pfedseq.serving.schemas import Answer, ClassShare, ClientList, Health, Readiness
from pfedseq.serving.together import ModelsTogether
from pfedseq.serving.watching import VITAL, Log, Watched, log_nothing
from pfedseq.words import as_number, short
from pfedseq.workloads import find_kind
from pfedseq.workloads.kinds import Kind
from pfedseq.workloads.uploads import Refused, Upload

PAGE = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs.js": ("docs.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class Limits:
    """Limits for one request and for all requests together."""

    body_bytes: int = 10_000_000
    seconds: float = 30.0
    """Time limit from the first byte to the response."""
    batch: int = 64
    """Maximum rows per pass."""
    waiting: int = 1024
    """Maximum number of requests in the queue."""
    pixels: int = 64_000_000
    """Maximum pixels being decoded by all requests together."""
    bodies_bytes: int = 256_000_000
    """Maximum bytes of bodies in memory for all requests together."""


def make_service(
    served: Served,
    limits: Limits,
    token: str | None = None,
    reload: Callable[[], Served] | None = None,
    metrics: Metrics | None = None,
    log: Log = log_nothing,
) -> FastAPI:
    """The application; a `token` is required for predictions, clients' names and metrics if given.

    SIGHUP replaces the models by the result of `reload`.
    """
    counted = metrics or Metrics()

    def start(models: Served) -> Batcher:
        answer = models.together.probabilities
        return Batcher(answer, limits.batch, limits.waiting, counted.batch)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.generations = Generations(served, start, counted, log)
        if reload is not None:
            _reload_on_signal(app.state.generations, reload)
        yield
        await app.state.generations.close()

    app = FastAPI(
        title="pfedseq",
        description="Predictions by the personal models of many clients.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    paths = frozenset([*PAGE, *VITAL, "/clients", "/predict", "/openapi.json"])
    app.add_middleware(Watched, paths=paths, metrics=counted, log=log)
    app.state.metrics = counted
    guard = [Depends(_guard(token))]
    kind = find_kind(served.together.unit)
    pixels, bodies = Budget(limits.pixels), Tally(limits.bodies_bytes)
    _add_page(app)
    _add_vitals(app, limits, guard, pixels, bodies)

    @app.get("/clients", dependencies=guard)
    async def clients() -> ClientList:
        """The clients, in the order of their numbers, and the classes."""
        now: Served = app.state.generations.current.served
        return ClientList(
            clients=list(now.clients),
            method=now.method,
            class_names=list(now.together.class_names),
            global_is=now.global_is,
            unit=kind.unit,
        )

    @app.post(
        "/predict",
        dependencies=guard,
        openapi_extra={"requestBody": kind.body},
        responses=_PROBLEMS,
    )
    async def predict(
        request: Request,
        client: Annotated[str, Query(description="A client's name, or its number from 0.")],
        top: Annotated[int, Query(ge=1, description="How many classes to name.")] = 3,
        compare: Annotated[bool, Query(description="Also ask the global model.")] = False,
    ) -> Answer:
        """Predict the class of the example in the request's body."""
        async with app.state.generations.use() as generation:
            now: Served = generation.served
            number = _number(now, client)
            request.state.client = now.clients[number]
            rows = [number, len(now.clients)] if compare else [number]
            try:
                async with (
                    asyncio.timeout(limits.seconds),
                    _body(request, limits.body_bytes, bodies, kind.unit) as content,
                ):
                    upload = await run_in_threadpool(_upload, kind, request, content)
                    async with pixels.take(upload.pixels):
                        example = await run_in_threadpool(_read, kind, now.together, rows, upload)
                    shares = await _ask(generation, rows, example)
            except TimeoutError:
                raise Refused(504, f"no answer within {limits.seconds:g} s: try again") from None
            counted.prediction(now.clients[number])
            listed = [_listed(one, now.together.class_names, top) for one in shares]
            return Answer(
                client=now.clients[number],
                prediction=listed[0],
                global_prediction=listed[1] if compare else None,
            )

    @app.exception_handler(Refused)
    async def refused(request: Request, problem: Refused) -> JSONResponse:
        return JSONResponse({"detail": problem.sentence}, problem.status)

    @app.exception_handler(RequestValidationError)
    async def wrong_query(request: Request, problem: RequestValidationError) -> JSONResponse:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse({"detail": f"{where}: {first['msg']}"}, 422)

    @app.exception_handler(Exception)
    async def failed(request: Request, problem: Exception) -> JSONResponse:
        known = request.state.request_id
        return JSONResponse({"detail": f"the service failed: its log says why at {known}"}, 500)

    return app


def _reload_on_signal(generations: Generations, load: Callable[[], Served]) -> None:
    """Reload the models on SIGHUP, on systems that have it."""
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()  # a task without a reference may be garbage-collected

    def begin() -> None:
        task = loop.create_task(generations.reload(load))
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGHUP, begin)


def _add_vitals(
    app: FastAPI, limits: Limits, guard: list[Any], pixels: Budget, bodies: Tally
) -> None:
    """Add the endpoints for supervisors and monitoring."""
    counted: Metrics = app.state.metrics

    @app.get("/healthz")
    async def healthz() -> Health:
        """Whether the process works; if not, restart it."""
        now: Generation = app.state.generations.current
        return Health(
            status="ok",
            clients=len(now.served.clients),
            waiting=now.batcher.waiting,
            answered=counted.answered,
            passes=counted.passes,
        )

    @app.get("/readyz", responses={503: {"model": Readiness}})
    async def readyz() -> JSONResponse:
        """Whether requests are answered now; if not, send none."""
        batcher: Batcher = app.state.generations.current.batcher
        why = None
        if not batcher.alive:
            why = "the thread that owns the model has ended"
        elif batcher.waiting >= limits.waiting:
            why = "too many requests are waiting"
        answer = Readiness(ready=why is None, why=why)
        return JSONResponse(answer.model_dump(), 503 if why else 200)

    @app.get("/metrics", dependencies=guard, include_in_schema=False)
    async def metrics() -> Response:
        now: Generation = app.state.generations.current
        gauges = {
            "pfedseq_clients": ("Clients with a model.", len(now.served.clients)),
            "pfedseq_models_in_memory": ("Clients' models in memory.", now.served.in_memory),
            "pfedseq_waiting": ("Requests in the queue.", now.batcher.waiting),
            "pfedseq_pixels_decoding": ("Pixels being decoded.", pixels.used),
            "pfedseq_body_bytes": ("Bytes of bodies in memory.", bodies.used),
        }
        return Response(counted.text(gauges), media_type=CONTENT_TYPE)


def _upload(kind: Kind, request: Request, content: bytes) -> Upload:
    """The example in a request's body, not yet decoded."""
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.upload(content, stated)


def _read(kind: Kind, together: ModelsTogether, rows: list[int], upload: Upload) -> Any:
    """Read the example for the models, and load the models that are not in memory."""
    try:
        example = together.read(f"the {kind.unit}", upload.content)
    except InputError as problem:
        raise Refused(400, str(problem)) from None
    try:
        for row in rows:
            together.models[row]
    except NotYet as problem:
        raise Refused(503, str(problem)) from None
    except InputError as problem:
        raise Refused(500, f"the client's model cannot be loaded: {problem}") from None
    return example


async def _ask(generation: Generation, rows: list[int], example: Any) -> Tensor:
    try:
        return await asyncio.wrap_future(generation.batcher.ask(rows, example))
    except TooManyWaiting:
        raise Refused(503, "too many requests are waiting: try again in a while") from None


@asynccontextmanager
async def _body(request: Request, most: int, bodies: Tally, unit: str) -> AsyncIterator[bytes]:
    """The request's body; refuses one that is too long before reading it to the end."""
    too_long = Refused(413, f"the {unit} is larger than {most:,} bytes: send a smaller one")
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and (len(stated) > 18 or int(stated) > most):
        raise too_long
    content = bytearray()
    held = 0
    try:
        async for chunk in request.stream():
            if len(content) + len(chunk) > most:
                raise too_long
            if not bodies.add(len(chunk)):
                raise Refused(503, "too many large requests at once: try again in a while")
            held += len(chunk)
            content += chunk
        request.state.bytes = len(content)
        yield bytes(content)
    finally:
        bodies.give_back(held)


def _number(served: Served, wanted: str) -> int:
    if (known := served.numbers.get(wanted)) is not None:
        return known
    if (number := as_number(wanted)) is not None and number < len(served.clients):
        return number
    raise Refused(404, f"there is no client {short(wanted)!r}: /clients lists them")


def _listed(shares: Tensor, names: tuple[str, ...], top: int) -> list[ClassShare]:
    best = most_likely("", shares, names, top)
    return [
        ClassShare(name=name, probability=share)
        for name, share in zip(best.classes, best.probabilities, strict=True)
    ]


def _guard(token: str | None) -> Any:
    async def check(
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> None:
        if token is None:
            return
        if given is None or not hmac.compare_digest(given.credentials.encode(), token.encode()):
            raise HTTPException(
                401, "this service needs its bearer token", {"WWW-Authenticate": "Bearer"}
            )

    return check


def _add_page(app: FastAPI) -> None:
    folder = resources.files("pfedseq.serving") / "page"

    def add(path: str, file: str, kind: str) -> None:
        content = (folder / file).read_bytes()

        async def get() -> Response:
            return Response(content, media_type=kind, headers=HEADERS)

        app.get(path, include_in_schema=False)(get)

    for path, (file, kind) in PAGE.items():
        add(path, file, kind)


_BEARER = HTTPBearer(auto_error=False)
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The example cannot be read."},
    401: {"description": "The bearer token is missing or wrong."},
    404: {"description": "There is no such client."},
    413: {"description": "The example is too large."},
    415: {"description": "The body is of another type."},
    503: {"description": "Too many requests are waiting."},
    500: {"description": "The service failed; its log has the request's id."},
    504: {"description": "The answer took too long."},
}
