"""One message, one client: all that happens at a client, in every engine."""

from __future__ import annotations

from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors


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
    client remembers is in `state` afterwards. All that passes is contiguous, as after any wire: a
    matrix product may round differently on a strided view of the same numbers.
    """
    if step not in client.steps:
        raise InputError(
            f"{client.__name__} has no step {step!r}; it has {', '.join(client.steps)}"
        )
    built = client(config, site.task(t, step), state)
    reply: Reply = getattr(built, step)(contiguous(down))
    state.update(contiguous(state))
    return Reply(contiguous(reply.tensors), reply.metrics)


def contiguous(tensors: Tensors) -> Tensors:
    """The same tensors without strides."""
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
