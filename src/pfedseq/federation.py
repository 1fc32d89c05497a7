"""The two halves of a federated method and what passes between them.

A method is a `Server` and a `Client`. They meet only in messages: a dict of named tensors goes
down, a `Reply` comes up. An engine carries the messages (`Clients.call`); a `Task` is what a
client can ask of its private data. None of the four knows the others' inside, so one method file
runs in one process, over a wire, or on many machines.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.lora import Factors
from pfedseq.measures import Score
from pfedseq.params import Params, trimmed_mean, weighted_mean
from pfedseq.params import Part as Part
from pfedseq.training.config import LocalTraining, Units
from pfedseq.training.moments import Moments, shapes
from pfedseq.training.optimizer import LocalOptimizer

Tensors = dict[str, Tensor]
Batch = Tensor
"""What `Task.batches` yields and `Task.grad` understands: indices of training examples."""
Aggregation = Literal["mean", "median", "trimmed_mean"]
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Hello:
    """What a client says of itself before round 1: counts and class names, no example."""

    train_examples: int
    """|D_i|: the client's aggregation weight in Eq. (1)."""
    validation_examples: int
    test_examples: int
    class_names: tuple[str, ...]

    def reply(self) -> Reply:
        """As a message: the names are the bytes of a JSON list."""
        counts = {f"{split}_examples": getattr(self, f"{split}_examples") for split in SPLITS}
        names = torch.tensor(list(json.dumps(self.class_names).encode()), dtype=torch.uint8)
        return Reply({"class_names": names}, counts)

    @classmethod
    def of(cls, reply: Reply) -> Hello:
        """What `reply` gave; anything else is refused."""
        try:
            train, validation, test = (int(reply.metrics[f"{s}_examples"]) for s in SPLITS)
            names = json.loads(bytes(reply.tensors["class_names"].tolist()))
            if min(train, validation, test) < 0 or not all(isinstance(n, str) for n in names):
                raise ValueError(f"{train}, {validation}, {test} examples of {names}")
        except (KeyError, ValueError, TypeError) as problem:
            raise InputError(f"a client's hello is not readable: {problem}") from None
        return cls(train, validation, test, tuple(names))


class Task(Protocol):
    """Client i's objective L(D_i; φ), bound to one round; the data behind it stays at the client.

    Every random choice is a function of (seed, client, round, step), never of the engine.
    """

    @property
    def initial(self) -> Params:
        """φ^0, the same at every client."""

    @property
    def round(self) -> int:
        """t, from 1; 0 before the first."""

    @property
    def num_examples(self) -> int:
        """|D_i|, the number of training examples."""

    @property
    def units(self) -> Units:
        """What the rates of its model are measured in."""

    @property
    def factors(self) -> Factors | None:
        """Where LoRA's A and B lie in θ; none for an adapter without them."""

    @property
    def label_counts(self) -> Tensor:
        """(C,) how many training examples the client has of each class."""

    def hello(self) -> Hello:
        """What the server may know of the client's data."""

    def batches(self, epochs: int) -> Iterator[Batch]:
        """Minibatches of `epochs` passes over the training data, each pass in a fresh order."""

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        """∇_φ of the mean loss over `batch`; zero outside `part`, which then costs less."""

    def loss(self, phi: Params, batch: Batch) -> float:
        """The mean loss over `batch`, of which `grad` is the gradient."""

    def score(self, phi: Params, split: Split, full: bool = False) -> Score:
        """The measures of every evaluation, of φ on a split of the client's data.

        With `full` all measures there are, and the counts that may be sent.
        """

    def sketches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch itself, made small, and labels (B,).

        Of images (B, 3, 32, 32), of texts the mean (B, F) of their words' frozen embeddings.
        """

    def save(self, phi: Params) -> None:
        """Keep φ as the client's personal model, in a place of its own."""


class Site(Protocol):
    """The place where a client's data lies."""

    def task(self, t: int, step: str) -> Task:
        """The client's objective, bound to round t and to the step it is used in."""


Answer = Params | Score | float


class Question(NamedTuple):
    """What a client asks of its task and could be answered together with others' questions.

    A task may offer `answer_together(questions) -> answers`, faster than one by one and equal to
    it up to rounding.
    """

    task: Task
    kind: str
    """`grad`, `loss` or `score`: the task's method."""
    arguments: tuple[Any, ...]

    def answer(self) -> Answer:
        """Answer this question alone."""
        answer: Answer = getattr(self.task, self.kind)(*self.arguments)
        return answer


class AuxiliaryTask(Protocol):
    """Unlabelled images that the server may see, and the shared model on them (PerAda)."""

    def batches(self, t: int, count: int, size: int) -> Iterator[Tensor]:
        """`count` minibatches of `size` images for round t; every image comes equally often."""

    def logits(self, phis: Sequence[Params], batch: Tensor) -> Tensor:
        """(…, B, C) of several φ on a minibatch."""

    def distillation_grad(self, phi: Params, batch: Tensor, teacher: Tensor) -> Params:
        """∇_φ of the mean over the batch of KL(softmax(teacher) ‖ softmax(logits(φ)))."""


@dataclass(frozen=True)
class Reply:
    """What a client sends up: tensors for the server, numbers for the log."""

    tensors: Tensors = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def checked(self, client: int, key: str, like: Tensor) -> Tensor:
        """Tensor `key` of client `client`'s reply, refused unless finite and shaped as `like`."""
        tensor = self.tensors.get(key)
        if tensor is None:
            raise InputError(f"client {client}'s reply has no tensor {key!r}")
        if tensor.shape != like.shape:
            raise InputError(
                f"client {client}'s tensor {key!r} has shape {tuple(tensor.shape)} where "
                f"{tuple(like.shape)} is expected: is its adapter configured as the server's?"
            )
        if not tensor.isfinite().all():
            raise InputError(
                f"client {client}'s tensor {key!r} holds NaN or infinity: its local training "
                "diverged; lower the learning rate (training.lr)"
            )
        return tensor


@dataclass(frozen=True)
class Setup:
    """All that a server is told before round 1, and when its clients change.

    A server knows its N clients by their places, 0 … N − 1: the rows of what it keeps of them.
    """

    initial: Params
    num_examples: tuple[int, ...]
    """|D_i| by place: the aggregation weights of Eq. (1)."""
    num_rounds: int
    seed: int
    num_classes: int | None = None
    """C, for a server that must know it (PeFLL)."""
    auxiliary: AuxiliaryTask | None = None
    """For a server that distils (PerAda)."""
    aggregation: Aggregation = "mean"
    """What stands for Eq. (1)."""
    trim: float = 0.1
    """Share of the clients that `trimmed_mean` leaves out at each end."""
    numbers: tuple[int, ...] = ()
    """The clients' numbers in the run by place; none: as the places."""
    most_clients: int = 0
    """How many there have been at most, where that is more than now."""
    sketch_shape: tuple[int, ...] = (3, 32, 32)
    """Of one example in `Task.sketches`, for a server that must know it (PeFLL)."""
    factors: Factors | None = None
    """Where LoRA's A and B lie in θ; none for an adapter without them."""

    @property
    def clients(self) -> tuple[int, ...]:
        """By place, the number of the client that has it."""
        return self.numbers or tuple(range(self.num_clients))

    @property
    def width(self) -> int:
        """The most places there have been."""
        return max(self.most_clients, self.num_clients)

    def reseated(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> Setup:
        """With the clients at the places `kept`, and after them newcomers: |D_i| by number."""
        return replace(
            self,
            num_examples=(*(self.num_examples[p] for p in kept), *newcomers.values()),
            numbers=(*(self.clients[p] for p in kept), *newcomers),
            most_clients=self.width,
        )

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return len(self.num_examples)

    def weights(self, present: Tensor) -> Tensor:
        """|D_i| of the clients that answered, zero for the others."""
        return present * torch.tensor(self.num_examples, device=present.device)

    def aggregate(self, stacked: Tensor, present: Tensor, *, weighted: bool = True) -> Tensor:
        """Eq. (1) over the present clients of `stacked` (N, …), or what stands in its place."""
        if self.aggregation == "mean":
            return weighted_mean(stacked, self.weights(present) if weighted else present)
        rows = stacked[present]
        all_but_the_middle = (len(rows) - 1) // 2
        median = self.aggregation == "median"
        return trimmed_mean(rows, all_but_the_middle if median else int(self.trim * len(rows)))

    def like(self, key: str) -> Tensor:
        """A tensor shaped as `adapter`, `delta`, `head` or `head_change` is in a message."""
        adapter, head = self.initial.adapter, self.initial.head
        names = {"adapter": adapter, "delta": adapter, "head": head, "head_change": head}
        return names[key]

    def stack(
        self, replies: Mapping[int, Reply], key: str, like: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tensor `key` of all clients as (N, *shape), zero for the absent; and who is present.

        The shape is φ^0's for `adapter`, `delta` and `head`; for any other key, that of `like`.
        Refuses a reply whose tensor is missing, has another shape, or holds a NaN: one such
        client would otherwise spoil everyone's model.
        """
        if not replies:
            raise InputError("no client answered this round; nothing was changed")
        like = self.like(key) if like is None else like
        stacked = like.new_zeros((self.num_clients, *like.shape))
        present = torch.zeros(self.num_clients, dtype=torch.bool, device=like.device)
        for i, reply in replies.items():
            stacked[i] = reply.checked(i, key, like)
            present[i] = True
        return stacked, present


class Client(ABC):
    """The client half of a method.

    An engine may build it anew for every call: what it must remember goes into `state`, a dict
    of tensors that the engine keeps for it.
    """

    reading_steps: ClassVar[tuple[str, ...]] = (
        *("hello", "evaluate", "evaluate_mean", "assess", "export"),
    )
    """Methods that a message may name and that leave the client's memory as it is."""
    steps: ClassVar[tuple[str, ...]] = (*reading_steps, "train", "keep")
    """All methods that a message may name."""
    sent_model: ClassVar[str | None] = "model"
    """Whose optimiser's moments the server can average: the model that is sent; none: no one's."""

    def __init__(self, config: Any, task: Task, state: Tensors) -> None:
        self.config, self.task, self.state = config, task, state

    def fit(self, phi: Params, epochs: int | None = None, part: Part = "both") -> Params:
        """φ after the round's passes over the training data, of which `part` alone moves.

        A method whose step is more than the gradient of the loss makes the loop itself, with an
        `optimizer` for each model that it trains.
        """
        optimizer = self.optimizer()
        for batch in self.task.batches(self.config.local_epochs if epochs is None else epochs):
            phi = optimizer.step(phi, self.task.grad(phi, batch, part), part)
        return phi

    def optimizer(
        self, model: str = "model", rates: tuple[float, float] | None = None
    ) -> LocalOptimizer:
        """What steps one of the client's models through this round.

        A client that trains several names them. `rates` of adapters and heads: for steps that are
        not along a gradient of the loss.
        """
        return LocalOptimizer(
            self.config, self.task.round, self.state, model, self.task.units, rates
        )

    def rates(self, lr: float) -> tuple[float, float]:
        """Of adapters and heads, for a plain gradient step of the method's own at rate `lr`."""
        rates: tuple[float, float] = self.config.rates(lr, self.task.units)
        return rates

    def hello(self, down: Tensors) -> Reply:
        """Say what the server may know before round 1; see `Hello`."""
        return self.task.hello().reply()

    @abstractmethod
    def train(self, down: Tensors) -> Reply:
        """Local training from what the server sent."""

    @abstractmethod
    def personal(self, down: Tensors) -> Params:
        """The model that is tested and deployed; writes no state."""

    def evaluate(self, down: Tensors) -> Reply:
        """Score `personal(down)` on the test and validation data."""
        phi = self.personal(down)
        return Reply(metrics=self._scored(phi, "test") | self._scored(phi, "validation"))

    def keep(self, down: Tensors) -> Reply:
        """Remember `personal(down)` as the model to export: the best so far."""
        phi = self.personal(down)
        self.state.update(kept_adapter=phi.adapter, kept_head=phi.head)
        return Reply()

    def kept(self, down: Tensors) -> Params:
        """The model to export: what `keep` remembered, else `personal(down)`."""
        if "kept_adapter" in self.state:
            return Params(self.state["kept_adapter"], self.state["kept_head"])
        return self.personal(down)

    def assess(self, down: Tensors) -> Reply:
        """All measures of the model to export, and the counts of its predictions on test data."""
        phi = self.kept(down)
        test = self.task.score(phi, "test", full=True)
        counts = test.counts.tensors() if test.counts is not None else {}
        scores = self._named("test", test) | self._scored(phi, "validation")
        return Reply(counts, scores | self._moved(phi))

    def _moved(self, phi: Params) -> dict[str, float]:
        """How far the adapter is from where all started, in lengths of that start."""
        start = self.task.initial.adapter
        length = float(start.norm())
        return {"adapter_moved": float((phi.adapter - start).norm()) / length} if length else {}

    def _scored(self, phi: Params, split: Split) -> dict[str, float]:
        return self._named(split, self.task.score(phi, split))

    @staticmethod
    def _named(split: Split, score: Score) -> dict[str, float]:
        values = {f"{split}_{name}": value for name, value in score.values.items()}
        return {**values, f"{split}_examples": score.num_examples}

    def evaluate_mean(self, down: Tensors) -> Reply:
        """Score the mean of all on the validation data."""
        score = self.task.score(self.mean_model(down), "validation")
        return Reply(metrics={f"mean_validation_{name}": v for name, v in score.values.items()})

    def mean_model(self, down: Tensors) -> Params:
        """The mean of all as a model; under the client's own head if none was sent."""
        own = {"head": self.state.get("head", self.task.initial.head)}
        return Params.of(own | down)

    def export(self, down: Tensors) -> Reply:
        """Save the personal model at the client's own site: a private head is not sent up."""
        self.task.save(self.kept(down))
        return Reply()


class Clients(Protocol):
    """The clients as the server sees them; each engine implements this once."""

    @property
    def ids(self) -> Sequence[int]:
        """Numbers of all clients of the engine."""

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """Those that have a place from round t on: of those with one `before`, and who has come."""

    def participants(self, t: int) -> Sequence[int]:
        """Those that are asked to train in round t."""

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run method `step` of each addressed client in round t; replies by client.

        A client that did not answer is missing from the result.
        """


class Server(ABC):
    """The server half of a method: may own networks and optimizers; sees no data."""

    persistent: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the server's memory: tensors, modules or optimizers."""
    takes: ClassVar[tuple[str, ...]] = ()
    """What a reply to `train` must hold, of `adapter`, `delta` and `head`, shaped as φ^0's."""
    needs_everyone: ClassVar[str] = ""
    """Why clients can neither join nor leave in the course of a run, where that is so."""

    def __init__(self, config: Any, setup: Setup) -> None:
        self.config, self.setup = config, setup
        self.figures: Mapping[str, Sequence[float]] = {}
        """What the server measured in the last round, for the log: names and numbers by layer."""
        self.notes: Sequence[str] = ()
        """What a person should know before round 1, in sentences."""
        self.moments = Moments()
        """What clients' optimisers begin the next round with, where that is averaged."""
        self.silent_rounds = torch.zeros(setup.num_clients, dtype=torch.int64)
        """By place, the rounds since its client was last heard of."""

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Clients leave and join for good: keep the places `kept`, in that order, and add some.

        `newcomers` has |D_i| by the client's number. A server that remembers more of its clients
        than this extends it.
        """
        self.setup = self.setup.reseated(kept, newcomers)
        joined = torch.zeros(len(newcomers), dtype=torch.int64)
        self.silent_rounds = torch.cat([self.silent_rounds[list(kept)], joined])

    @abstractmethod
    def payload(self, i: int) -> Tensors:
        """What client i gets now: evaluated at once, trained from in the next round."""

    @abstractmethod
    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Take in the replies of round t (counted from 1)."""

    def mean(self) -> Tensors | None:
        """The mean adapter, and the mean head if it is shared: what is personalised for a client.

        None where a method makes no mean, or its personal models are just that.
        """
        return None

    def run_round(self, t: int, clients: Clients) -> None:
        """One round: send, train, take in. Methods with more exchanges override it."""
        down = {i: self.payload(i) for i in clients.participants(t)}
        if replies := clients.call("train", t, down):
            self.update(t, replies)

    def expected(self, step: str) -> Tensors:
        """Tensors of the names, shapes and types that a reply to `step` must have."""
        return {key: self.setup.like(key) for key in self.takes} if step == "train" else {}

    def expected_moments(self, step: str) -> Tensors:
        """The same of the optimisers' moments that come with it."""
        if step != "train" or self.config.optimizer_state != "average":
            return {}
        return shapes(self.expected(step))


class MethodConfig(LocalTraining):
    """Options that every method has; a method's own options extend it."""

    def advice(self, rounds: int) -> list[str]:
        """Sentences about options that are allowed but hardly meant, in a run of `rounds`."""
        return []

    @property
    def rank_blocks(self) -> int:
        """How many LoRAs of the configured rank, side by side, the method's θ consists of."""
        return 1


RATES: Mapping[str, Sequence[float]] = {"lr": (0.001, 0.005, 0.01, 0.05)}
"""What is searched where a method names no other options: the paper's grid of rates."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A registered method: its name, its two halves, its options, and what it is."""

    name: str
    server: type[Server]
    client: type[Client]
    config: type[MethodConfig]
    title: str
    """As the paper's tables write it."""
    summary: str
    """One line for `pfedseq methods`."""
    training: str = "every local step takes them"
    """What the method does with the options of local training, for `pfedseq methods --verbose`."""
    needs_auxiliary: bool = False
    """Whether the server must be given `Setup.auxiliary`."""
    grid: Mapping[str, Sequence[float]] = field(default_factory=lambda: RATES)
    """The values of each option that `pfedseq tune` goes through."""
