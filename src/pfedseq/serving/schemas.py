"""The bodies of the service's answers."""

from __future__ import annotations

from pydantic import BaseModel


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


class Readiness(BaseModel):
    """Whether requests can be answered now, and if not, why."""

    ready: bool
    why: str | None = None


class Health(BaseModel):
    """That the service works, and how busy it is."""

    status: str
    clients: int
    waiting: int
    answered: int
    passes: int
