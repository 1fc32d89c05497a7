"""Answering one message at one client, the same in every engine."""

from __future__ import annotations

from pfedseq.engines.payload import PayloadKind, bases, pack, take_residuals
from pfedseq.engines.privacy import Privacy
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors
from pfedseq.training.moments import give_moments, take_moments

ALIGNMENT = 64
"""Alignment in bytes of PyTorch's own tensors on a CPU."""

DIVERGED = "diverged"
"""Metric by which a client reports that its training diverged to NaN or infinity."""
ROUND, CLIENT = "answered_round", "answered_client"
"""Metrics that identify the message a reply answers: its round and its client."""


def answer(
    client: type[Client],
    config: MethodConfig,
    site: Site,
    state: Tensors,
    step: str,
    t: int,
    i: int,
    down: Tensors,
    payload: PayloadKind = "float32",
    privacy: Privacy | None = None,
) -> Reply:
    """Build the client around its data and its memory, and run one of its steps.

    `step` may come from a message, so it must be one that the client's class lists. The client's
    memory is in `state` afterwards. All tensors are made contiguous and aligned, whether they came
    over a wire, from a file or by a call: a matrix product may round differently on a strided view
    of the same numbers, or at another alignment. The reply is privatised by `privacy`, packed by
    `payload`, and names the round and the client that were addressed.
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
        state.clear()  # as if it had not trained, so that the next round starts from finite numbers
        state.update(before)
        return Reply({}, {DIVERGED: 1.0, ROUND: t, CLIENT: i})
    state.update(in_order(state))
    return Reply(in_order(sent), {**reply.metrics, ROUND: t, CLIENT: i})


def in_order(tensors: Tensors) -> Tensors:
    """The same tensors, contiguous and aligned as PyTorch would allocate them."""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return {
        name: tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
        for name, tensor in plain.items()
    }
