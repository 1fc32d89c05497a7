"""The client half of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pfedseq.federation.messages import Reply, Split, Tensors
from pfedseq.federation.task import Task
from pfedseq.measures import Score
from pfedseq.params import Params, Part
from pfedseq.training.optimizer import LocalOptimizer


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

    sends_updates: ClassVar[bool] = True
    """Whether all it sends is an update of what it was sent, to which noise can be added."""

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
