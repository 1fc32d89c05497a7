"""Computes several clients' task calls together, in shared passes through the backbone.

Each result equals, up to rounding, what the client's task alone would return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pfedseq.federation import Batch, Part, Split
from pfedseq.measures import Score
from pfedseq.params import Params
from pfedseq.training.loss import NO_LABEL, mean_losses

if TYPE_CHECKING:
    from pfedseq.model.adapted import AdaptedModel
    from pfedseq.model.task import ExampleTask

ENOUGH_ALONE = 16
"""With this many examples, a pass for one client is as fast per example as a shared pass."""
AT_ONCE = 8
"""Clients per shared pass, so at most 8 · 15 examples are in memory at once."""

Asked = tuple["ExampleTask", str, tuple[Any, ...]]
"""A task, the name of its method (`grad`, `loss` or `score`), and the arguments."""
Together = Callable[..., Sequence[Any]]


def answers(questions: Sequence[Asked]) -> list[Any]:
    """The results of all calls: equal methods together, or one by one if nothing is stacked."""
    groups: dict[Together | None, list[int]] = {}
    for place, question in enumerate(questions):
        groups.setdefault(_way_to_answer(question), []).append(place)
    found: dict[int, Any] = {}
    for together, places in groups.items():
        some = [questions[place] for place in places]
        if together is None:
            alone = [getattr(task, kind)(*arguments) for task, kind, arguments in some]
            found.update(zip(places, alone, strict=True))
        else:
            asked = [(task, *arguments) for task, _, arguments in some]
            found.update(zip(places, together(asked), strict=True))
    return [found[place] for place in range(len(questions))]


def _way_to_answer(question: Asked) -> Together | None:
    task, kind, arguments = question
    if task.model.stacked is None:
        return None
    if kind == "grad":
        phi, _, part = arguments
        if part == "head":
            return head_gradients if phi.head.numel() else None
        return gradients
    ways: dict[str, Together] = {"loss": losses, "score": scores}
    return ways[kind]


def gradients(asked: Sequence[tuple[ExampleTask, Params, Batch, Part]]) -> list[Params]:
    """∇_φ for calls that need the adapter's gradient."""
    tasks, phis, batches, parts = zip(*asked, strict=True)
    adapters = torch.stack([phi.adapter for phi in phis]).detach().requires_grad_()
    heads = torch.stack([phi.head for phi in phis]).detach().requires_grad_()
    loss = _losses_of_batches(tasks, adapters, heads, batches).sum()
    found = torch.autograd.grad(
        loss, (adapters, heads), materialize_grads=True
    )  # heads may be empty
    slopes = zip(*found, parts, strict=True)
    return [
        Params(own, torch.zeros_like(head) if part == "adapter" else head)
        for own, head, part in slopes
    ]


def head_gradients(asked: Sequence[tuple[ExampleTask, Params, Batch, Part]]) -> list[Params]:
    """∇_ω for fixed adapters, whose features the tasks compute once and keep."""
    tasks, phis, batches, _ = zip(*asked, strict=True)
    kept = _train_features(tasks, [phi.adapter for phi in phis])
    features = [own[batch.to(own.device)] for own, batch in zip(kept, batches, strict=True)]
    labels = [task.labels(batch) for task, batch in zip(tasks, batches, strict=True)]
    heads = torch.stack([phi.head for phi in phis]).detach().requires_grad_()
    loss = _mean_losses(tasks, heads, features, labels).sum()
    (slopes,) = torch.autograd.grad(loss, (heads,))
    return [
        Params(torch.zeros_like(phi.adapter), own) for phi, own in zip(phis, slopes, strict=True)
    ]


@torch.no_grad()
def losses(asked: Sequence[tuple[ExampleTask, Params, Batch]]) -> list[float]:
    """The mean loss over each task's batch."""
    tasks, phis, batches = zip(*asked, strict=True)
    adapters, heads = (torch.stack([getattr(phi, x) for phi in phis]) for x in ("adapter", "head"))
    found: list[float] = _losses_of_batches(tasks, adapters, heads, batches).tolist()
    return found


@torch.no_grad()
def scores(asked: Sequence[tuple[ExampleTask, Params, Split, bool]]) -> list[Score]:
    """The measures on each task's split."""
    indices = [getattr(task.data, split) for task, _, split, _ in asked]
    tasks, adapters = [task for task, *_ in asked], [phi.adapter for _, phi, *_ in asked]
    return [
        task.scored(phi.head, own, some, full)
        for (task, phi, _, full), own, some in zip(
            asked, _features(tasks, adapters, indices), indices, strict=True
        )
    ]


def _losses_of_batches(
    tasks: Sequence[ExampleTask], adapters: Tensor, heads: Tensor, batches: Sequence[Batch]
) -> Tensor:
    """(clients,) mean losses, in one pass; differentiable in adapters and heads."""
    model = tasks[0].model
    read = [task.examples(batch) for task, batch in zip(tasks, batches, strict=True)]
    features = _pass(model, adapters, [inputs for inputs, _ in read])
    return _mean_losses(tasks, heads, features, [labels for _, labels in read])


def _mean_losses(
    tasks: Sequence[ExampleTask],
    heads: Tensor,
    features: Sequence[Tensor],
    labels: Sequence[Tensor],
) -> Tensor:
    """(clients,), by one batched product with all heads (clients, H); short batches are padded."""
    padded = pad_sequence(list(features), batch_first=True)  # (clients, n, F)
    logits = tasks[0].model.readout.stacked_logits(heads, padded)  # (clients, n, C)
    wanted = pad_sequence(list(labels), batch_first=True, padding_value=NO_LABEL)
    return mean_losses([task.criterion for task in tasks], logits, wanted)


def _train_features(tasks: Sequence[ExampleTask], adapters: Sequence[Tensor]) -> list[Tensor]:
    """Each task's features of its round's examples, computed if the task has not kept them."""
    asked = list(zip(tasks, adapters, strict=True))
    missing = [(task, own) for task, own in asked if task.kept_features(own) is None]
    computed = _features(
        [task for task, _ in missing],
        [own for _, own in missing],
        [task.round_examples for task, _ in missing],
        training=True,
    )
    for (task, own), features in zip(missing, computed, strict=True):
        task.keep_features(own, features)
    return [task.train_features(own) for task, own in asked]


@torch.no_grad()
def _features(
    tasks: Sequence[ExampleTask],
    adapters: Sequence[Tensor],
    indices: Sequence[NDArray[Any]],
    training: bool = False,
) -> list[Tensor]:
    """Features (n, F) of each task's examples, without gradients.

    Only tasks with few examples share passes; the others would gain nothing.
    """
    found: dict[int, Tensor] = {}
    few = [place for place, own in enumerate(indices) if 0 < len(own) < ENOUGH_ALONE]
    for start in range(0, len(few), AT_ONCE):
        some = few[start : start + AT_ONCE]
        inputs = [tasks[place].inputs(indices[place], training) for place in some]
        own = torch.stack([adapters[place] for place in some])
        found.update(zip(some, _pass(tasks[0].model, own, inputs), strict=True))
    return [
        found[place] if place in found else task.features(adapters[place], indices[place], training)
        for place, task in enumerate(tasks)
    ]


def _pass(model: AdaptedModel, adapters: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Each client's features, in one pass for all clients."""
    assert model.stacked is not None
    counts = [len(own) for own in inputs]
    features = model.stacked.features(adapters, model.encoder.join(inputs), counts)
    return torch.split(features, [model.readout.count(own) for own in inputs])
