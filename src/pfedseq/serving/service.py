"""The HTTP service: many clients' models behind one backbone; needs the extra `serve`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.serving.batching import Batcher, TooManyWaiting
from pfedseq.serving.prediction import most_likely
from pfedseq.serving.together import ModelsTogether
from pfedseq.workloads import find_kind
from pfedseq.workloads.kinds import Kind
from pfedseq.workloads.uploads import Refused

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
    """What one request, and all of them together, may take."""

    body_bytes: int = 10_000_000
    seconds: float = 30.0
    """From the first byte to the answer."""
    batch: int = 64
    """Rows in a pass."""
    waiting: int = 1024
    """Requests in the queue."""


@dataclass(frozen=True)
class Served:
    """The models of all clients, and last the global one."""

    together: ModelsTogether
    clients: tuple[str, ...]
    method: str | None
    global_is: str


class ClassShare(BaseModel):
    """A class and its probability."""

    name: str
    probability: float


class Answer(BaseModel):
    """What the client's model makes of an example, and on request the global one."""

    client: str
    prediction: list[ClassShare]
    """The likeliest class first."""
    global_prediction: list[ClassShare] | None = None


class ClientList(BaseModel):
    """Whose models there are."""

    clients: list[str]
    method: str | None
    class_names: list[str]
    global_is: str
    unit: str
    """What a request holds: `image` or `text`."""


class Health(BaseModel):
    """That the service works, and how busy it is."""

    status: str
    clients: int
    waiting: int
    answered: int
    passes: int


def make_service(served: Served, limits: Limits, token: str | None = None) -> FastAPI:
    """The application; with a `token`, predictions and clients' names need it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batcher = Batcher(served.together.probabilities, limits.batch, limits.waiting)
        yield
        await run_in_threadpool(app.state.batcher.close)

    app = FastAPI(
        title="pfedseq",
        description="Predictions by the personal models of many clients.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    guard = [Depends(_guard(token))]
    kind = find_kind(served.together.unit)
    _add_page(app)

    @app.get("/healthz")
    async def healthz() -> Health:
        """Whether the service works."""
        batcher: Batcher = app.state.batcher
        return Health(
            status="ok",
            clients=len(served.clients),
            waiting=batcher.waiting,
            answered=batcher.answered,
            passes=batcher.passes,
        )

    @app.get("/clients", dependencies=guard)
    async def clients() -> ClientList:
        """The clients, in the order of their numbers, and the classes."""
        return ClientList(
            clients=list(served.clients),
            method=served.method,
            class_names=list(served.together.class_names),
            global_is=served.global_is,
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
        """Name the class of the example that is the request's body."""
        number = _number(served.clients, client)
        rows = [number, len(served.clients)] if compare else [number]
        try:
            async with asyncio.timeout(limits.seconds):
                content = await _body(request, limits.body_bytes, kind.unit)
                example = await run_in_threadpool(_read, kind, served.together, request, content)
                shares = await _ask(app.state.batcher, rows, example)
        except TimeoutError:
            raise Refused(504, f"no answer within {limits.seconds:g} s: try again") from None
        names = served.together.class_names
        listed = [_listed(one, names, top) for one in shares]
        return Answer(
            client=served.clients[number],
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

    return app


def _read(kind: Kind, together: ModelsTogether, request: Request, content: bytes) -> Any:
    """The example in a request's body, as the models take it."""
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        return together.read(f"the {kind.unit}", kind.upload(content, stated))
    except InputError as problem:
        raise Refused(400, str(problem)) from None


async def _ask(batcher: Batcher, rows: list[int], example: Any) -> Tensor:
    try:
        return await asyncio.wrap_future(batcher.ask(rows, example))
    except TooManyWaiting:
        raise Refused(503, "too many requests are waiting: try again in a while") from None


async def _body(request: Request, most: int, unit: str) -> bytes:
    """The request's body; one that is too long is not read to its end."""
    too_long = Refused(413, f"the {unit} is larger than {most:,} bytes: send a smaller one")
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated) > most:
        raise too_long
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most:
            raise too_long
    return bytes(content)


def _number(clients: tuple[str, ...], wanted: str) -> int:
    if wanted in clients:
        return clients.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(clients):
        return int(wanted)
    raise Refused(404, f"there is no client {wanted!r}: /clients lists them")


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
    504: {"description": "The answer took too long."},
}
