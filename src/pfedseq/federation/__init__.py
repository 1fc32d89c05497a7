"""The two halves of a federated method and what passes between them.

A method is a `Server` and a `Client`. They meet only in messages: a dict of named tensors goes
down, a `Reply` comes up. An engine carries the messages (`Clients.call`); a `Task` is what a
client can ask of its private data. None of the four depends on the others' internals, so one
method file runs in one process, over a wire, or on many machines.
"""

from pfedseq.federation.client import Client
from pfedseq.federation.messages import SPLITS, Hello, Reply, Split, Tensors
from pfedseq.federation.method import RATES, Method, MethodConfig
from pfedseq.federation.server import Clients, HearsOfRefusals, Server, TrainsAhead
from pfedseq.federation.setup import Aggregation, Setup
from pfedseq.federation.task import AuxiliaryTask, Batch, Site, Task
from pfedseq.params import Part

__all__ = [
    "RATES",
    "SPLITS",
    "Aggregation",
    "AuxiliaryTask",
    "Batch",
    "Client",
    "Clients",
    "HearsOfRefusals",
    "Hello",
    "Method",
    "MethodConfig",
    "Part",
    "Reply",
    "Server",
    "Setup",
    "Site",
    "Split",
    "Task",
    "Tensors",
    "TrainsAhead",
]
