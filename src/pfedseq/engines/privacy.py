"""[privacy]: clients that clip what they send and add noise to it, and what that guarantees.

The whole update of a client in a round, all its tensors together, is shortened to the length C and
gets Gaussian noise of standard deviation σ C on every number before it leaves the client. Whoever
sees all of a client's updates over T rounds, the server included, learns of its data set no more
than (ε, δ)-differential privacy allows; the unit is the client's data set as a whole. Nothing is
gained from a round that leaves clients out: the server knows whom it asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import Field

from pfedseq.base_config import BaseConfig
from pfedseq.engines.passing import PassingClients
from pfedseq.errors import InputError
from pfedseq.federation import Client, Clients, Reply, Tensors
from pfedseq.seeding import torch_generator

_ORDERS = (
    [1 + k / 100 for k in range(1, 10)]
    + [1 + tenth / 10 for tenth in range(1, 100)]
    + list(range(11, 64))
    + [2**k for k in range(6, 13)]
)
"""Of the Rényi divergences among which the accountant takes the best bound."""


class PrivacyConfig(BaseConfig):
    """[privacy]: differentially private updates; off unless `noise` is given."""

    noise: float | None = Field(
        None, gt=0, description="σ, the noise in units of `clip`; default: no noise, no clipping"
    )
    clip: float = Field(1.0, gt=0, description="C, the longest update that is sent as it is")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ, chance that the bound ε does not hold")

    def epsilon(self, rounds: int) -> float | None:
        """ε of a client's updates over so many rounds; none without noise."""
        if self.noise is None:
            return None
        try:
            from opacus.accountants.analysis import rdp
        except ImportError:
            raise InputError(
                "privacy.noise needs the accountant of Opacus: pip install 'pfedseq[privacy]'"
            ) from None
        spent = rdp.compute_rdp(q=1.0, noise_multiplier=self.noise, steps=rounds, orders=_ORDERS)
        epsilon, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=self.delta)
        return float(epsilon)


class PrivateClients(PassingClients):
    """The clients of an engine, whose updates are clipped and noised before anyone sees them.

    The noise is drawn from the run's seed, so that a run can be repeated and resumed: this
    simulates private clients and measures what privacy costs; it protects nobody whose server
    knows the seed.
    """

    def __init__(self, clients: Clients, config: PrivacyConfig, seed: int) -> None:
        super().__init__(clients)
        self.config, self.seed = config, seed

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Pass the call on; what comes back of it is clipped and noised."""
        replies = super().call(step, t, down)
        if step in Client.reading_steps:
            return replies
        return {i: self._private(step, t, i, reply, down[i]) for i, reply in replies.items()}

    def _private(self, step: str, t: int, i: int, reply: Reply, down: Tensors) -> Reply:
        if not reply.tensors:
            return reply
        unknown = set(reply.tensors) - {"delta", *down}
        if step != "train" or unknown:
            raise InputError(
                "[privacy] noise cannot be added with this method: what its clients send is not an "
                "update of what they were sent; choose another method, or leave privacy.noise out"
            )
        assert self.config.noise is not None
        updates = {
            name: tensor - down[name] if name != "delta" else tensor
            for name, tensor in reply.tensors.items()
        }
        length = math.sqrt(sum(float(part.double().square().sum()) for part in updates.values()))
        factor = self.config.clip / max(self.config.clip, length)
        deviation = self.config.noise * self.config.clip
        rng = torch_generator(self.seed, "privacy", t, i)
        sent: Tensors = {}
        for name in sorted(updates):
            part = updates[name]
            noise = deviation * torch.randn(part.shape, generator=rng).to(part)
            base = down[name] if name != "delta" else 0.0
            sent[name] = base + factor * part + noise
        return Reply(sent, reply.metrics)
