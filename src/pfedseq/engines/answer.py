"""One message, one client: all that happens at a client, in every engine."""

from __future__ import annotations

from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors

ALIGNMENT = 64
"""Bytes: where PyTorch lets its own tensors begin on a CPU."""

DIVERGED = "diverged"
"""The metric by which a client says that its training went to NaN or infinity."""


def answer(
    client: type[Client],
    config: MethodConfig,
    site: Site,
    state: Tensors,
    step: str,
    t: int,
    down: Tensors,
) -> Reply:
    """Build the client around its data and its memory, and run one of its steps.

    `step` may come out of a message, so it must be one that the client's class lists. What the
    client remembers is in `state` afterwards. All that passes is contiguous and aligned, whether it
    came over a wire, out of a file or by a call: a matrix product may round differently on a
    strided view of the same numbers, or where they begin elsewhere in memory.
    """
    if step not in client.steps:
        raise InputError(
            f"{client.__name__} has no step {step!r}; it has {', '.join(client.steps)}"
        )
    state.update(in_order(state))
    before = dict(state)
    built = client(config, site.task(t, step), state)
    reply: Reply = getattr(built, step)(in_order(down))
    if not all(tensor.isfinite().all() for tensor in (*state.values(), *reply.tensors.values())):
        state.clear()  # as if it had not trained: it starts the next round from sound numbers
        state.update(before)
        return Reply({}, {DIVERGED: 1.0})
    state.update(in_order(state))
    return Reply(in_order(reply.tensors), reply.metrics)


def in_order(tensors: Tensors) -> Tensors:
    """The same numbers without strides, each tensor beginning where PyTorch would put it."""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return {
        name: tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
        for name, tensor in plain.items()
    }
