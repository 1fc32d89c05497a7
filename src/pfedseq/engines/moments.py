"""The exchange of AdamW's second moments, alongside a method's own messages."""

from __future__ import annotations

from collections.abc import Mapping

from pfedseq.federation import Reply, Server, Tensors
from pfedseq.training.moments import is_moment


def with_moments(server: Server, step: str, down: Mapping[int, Tensors]) -> Mapping[int, Tensors]:
    """The messages plus the averages of the last round, if clients continue from them."""
    if not server.expected_moments(step):
        return down
    return {place: message | server.moments.tensors for place, message in down.items()}


def take_moments_in(server: Server, step: str, replies: dict[int, Reply]) -> dict[int, Reply]:
    """Average the replies' moments with the weights of Eq. (1); return the other tensors.

    A client that did not answer is left out.
    """
    expected = server.expected_moments(step)
    if not expected or not replies:
        return replies
    stacked = {key: server.setup.stack(replies, key, like) for key, like in expected.items()}
    server.moments.tensors = {
        key: server.setup.aggregate(values, present).clamp(min=0)
        for key, (values, present) in stacked.items()
    }
    return {
        place: Reply({k: v for k, v in reply.tensors.items() if not is_moment(k)}, reply.metrics)
        for place, reply in replies.items()
    }
