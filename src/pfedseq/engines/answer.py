"""One message, one client: all that happens at a client, in every engine."""

from __future__ import annotations

from pfedseq.engines.payload import Precision, bases, pack, take_residuals
from pfedseq.engines.privacy import Privacy
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors
from pfedseq.training.moments import give_moments, take_moments

ALIGNMENT = 64
"""Bytes: where PyTorch lets its own tensors begin on a CPU."""

DIVERGED = "diverged"
"""The metric by which a client says that its training went to NaN or infinity."""
ROUND, CLIENT = "answered_round", "answered_client"
"""The metrics by which a client says what it answers: a message of which round, to whom."""


def answer(
    client: type[Client],
    config: MethodConfig,
    site: Site,
    state: Tensors,
    step: str,
    t: int,
    i: int,
    down: Tensors,
    payload: Precision = "float32",
    privacy: Privacy | None = None,
) -> Reply:
    """Build the client around its data and its memory, and run one of its steps.

    `step` may come out of a message, so it must be one that the client's class lists. What the
    client remembers is in `state` afterwards. All that passes is contiguous and aligned, whether it
    came over a wire, out of a file or by a call: a matrix product may round differently on a
    strided view of the same numbers, or where they begin elsewhere in memory. The reply is made
    private as `privacy` says, packed for sending as `payload` says, and names the round and the
    client that were addressed.
    """
    if step not in client.steps:
        raise InputError(
            f"{client.__name__} has no step {step!r}; it has {', '.join(client.steps)}"
        )
    state.update(in_order(state))
    before = dict(state)
    residuals = take_residuals(state)
    task = site.task(t, step)
    averaged = client.sent_model if config.optimizer_state == "average" else None
    if averaged is not None:
        down = take_moments(down, state, averaged)
    reply: Reply = getattr(client(config, task, state), step)(in_order(down))
    sent = reply.tensors
    if averaged is not None and step == "train":
        sent = sent | give_moments(sent, state, averaged)
    if step not in client.reading_steps:
        if privacy is not None:
            sent = privacy.applied(step, t, i, sent, down)
        sent, residuals = pack(step, sent, bases(task.initial, down), payload, residuals)
    state.update(residuals)
    if not all(tensor.isfinite().all() for tensor in (*state.values(), *sent.values())):
        state.clear()  # as if it had not trained: it starts the next round from sound numbers
        state.update(before)
        return Reply({}, {DIVERGED: 1.0, ROUND: t, CLIENT: i})
    state.update(in_order(state))
    return Reply(in_order(sent), {**reply.metrics, ROUND: t, CLIENT: i})


def in_order(tensors: Tensors) -> Tensors:
    """The same numbers without strides, each tensor beginning where PyTorch would put it."""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return {
        name: tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
        for name, tensor in plain.items()
    }
