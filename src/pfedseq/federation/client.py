"""The client half of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pfedseq.federation.messages import Reply, Split, Tensors
from pfedseq.federation.task import Task
from pfedseq.measures import Score
from pfedseq.params import Params, Part
from pfedseq.training.optimizer import LocalOptimizer, bounded


class Client(ABC):
    """The client half of a method.

    An engine may rebuild it for every call: what it must remember goes into `state`, a dict of
    tensors that the engine stores.
    """

    reading_steps: ClassVar[tuple[str, ...]] = (
        *("hello", "evaluate", "evaluate_mean", "assess", "export"),
    )
    """Steps that a message may name and that do not change the client's state."""
    steps: ClassVar[tuple[str, ...]] = (*reading_steps, "train", "keep")
    """All steps that a message may name."""
    sent_model: ClassVar[str | None] = "model"
    """The model whose optimiser moments the server can average; None if there is none."""

    sends_updates: ClassVar[bool] = True
    """Whether all it sends is an update of what it was sent, to which noise can be added."""

    def __init__(self, config: Any, task: Task, state: Tensors) -> None:
        self.config, self.task, self.state = config, task, state

    def fit(self, phi: Params, epochs: int | None = None, part: Part = "both") -> Params:
        """Train `part` of φ for the round's passes over the training data; return the new φ.

        A method whose step is more than a gradient of the loss writes the loop itself, with an
        `optimizer` for each model that it trains.
        """
        optimizer = self.optimizer()
        for batch in self.task.batches(self.config.local_epochs if epochs is None else epochs):
            phi = optimizer.step(phi, self.task.grad(phi, batch, part), part)
        return phi

    def optimizer(
        self, model: str = "model", rates: tuple[float, float] | None = None
    ) -> LocalOptimizer:
        """The local optimiser of one of the client's models in this round.

        A client that trains several models names them. `rates` sets the rates of adapter and head
        for steps that do not follow a gradient of the loss.
        """
        return LocalOptimizer(
            self.config, self.task.round, self.state, model, self.task.units, rates
        )

    def rates(self, lr: float) -> tuple[float, float]:
        """The rates of adapter and head for a method's own plain gradient step at rate `lr`."""
        rates: tuple[float, float] = self.config.rates(lr, self.task.units)
        return rates

    def descend(self, phi: Params, gradient: Params, lr: float) -> Params:
        """φ after a method's own plain gradient step at rate `lr`, with the optimiser's bounds."""
        gradient = bounded(gradient, self.config, lr, self.task.units)
        return phi.descend(gradient, *self.rates(lr))

    def hello(self, down: Tensors) -> Reply:
        """Return what the server may know before round 1; see `Hello`."""
        return self.task.hello().reply()

    @abstractmethod
    def train(self, down: Tensors) -> Reply:
        """Train locally from what the server sent."""

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
        """The adapter's distance from its initial value, relative to the norm of that value."""
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
        """Score the mean model on the validation data."""
        score = self.task.score(self.mean_model(down), "validation")
        return Reply(metrics={f"mean_validation_{name}": v for name, v in score.values.items()})

    def mean_model(self, down: Tensors) -> Params:
        """The mean model; with the client's own head if no head was sent."""
        own = {"head": self.state.get("head", self.task.initial.head)}
        return Params.of(own | down)

    def export(self, down: Tensors) -> Reply:
        """Save the personal model at the client's own site: a private head is not sent up."""
        self.task.save(self.kept(down))
        return Reply()
