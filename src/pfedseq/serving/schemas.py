"""The bodies of the service's responses."""

from __future__ import annotations

from pydantic import BaseModel


class ClassShare(BaseModel):
    """A class and its probability."""

    name: str
    probability: float


class Answer(BaseModel):
    """The prediction of the client's model and, on request, of the global model."""

    client: str
    prediction: list[ClassShare]
    """The likeliest class first."""
    global_prediction: list[ClassShare] | None = None


class ClientList(BaseModel):
    """The clients that have a model."""

    clients: list[str]
    method: str | None
    class_names: list[str]
    global_is: str
    unit: str
    """The content of a request: `image` or `text`."""


class Readiness(BaseModel):
    """Whether requests can be answered now, and if not, why."""

    ready: bool
    why: str | None = None


class Health(BaseModel):
    """The service's health and load."""

    status: str
    clients: int
    waiting: int
    answered: int
    passes: int
