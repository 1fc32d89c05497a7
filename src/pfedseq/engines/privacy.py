"""[privacy]: clipped and noisy updates, and the guarantee they give.

The whole update of a client in a round, all its tensors together, is clipped to the length C and
gets Gaussian noise of standard deviation σ C on every number before it leaves the client. The
sequence of a client's updates over T rounds is (ε, δ)-differentially private against every
observer, including the server; the unit of privacy is the client's whole data set. Partial
participation does not amplify privacy: the server knows whom it asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import Field

from pfedseq.base_config import BaseConfig
from pfedseq.errors import InputError
from pfedseq.federation import Tensors
from pfedseq.seeding import torch_generator

_ORDERS = (
    [1 + k / 100 for k in range(1, 10)]
    + [1 + tenth / 10 for tenth in range(1, 100)]
    + list(range(11, 64))
    + [2**k for k in range(6, 13)]
)
"""Orders of the Rényi divergences among which the accountant takes the best bound."""


class PrivacyConfig(BaseConfig):
    """[privacy]: differentially private updates; off unless `noise` is given."""

    noise: float | None = Field(
        None, gt=0, description="σ, the noise in units of `clip`; default: no noise, no clipping"
    )
    clip: float = Field(1.0, gt=0, description="C, clipping length of an update")
    delta: float = Field(
        1e-5, gt=0, lt=1, description="δ, probability that the bound ε does not hold"
    )

    def epsilon(self, rounds: int, *, replace_one: bool = False) -> float | None:
        """ε of a client's updates over this many rounds; None without noise.

        The neighbour of a client's data set is no data at all, which moves an update by C at most;
        with `replace_one` it is any other data set, which moves it by 2 C.
        """
        if self.noise is None:
            return None
        try:
            from opacus.accountants.analysis import rdp
        except ImportError:
            raise InputError(
                "privacy.noise needs the accountant of Opacus: pip install 'pfedseq[privacy]'"
            ) from None
        noise = self.noise / 2 if replace_one else self.noise
        spent = rdp.compute_rdp(q=1.0, noise_multiplier=noise, steps=rounds, orders=_ORDERS)
        epsilon, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=self.delta)
        return float(epsilon)

    def spent(self, rounds: int, methods: int) -> dict[str, float] | None:
        """ε of one method, of all methods of a run together, and both with data replaced."""
        if self.noise is None:
            return None
        found = {
            "method": self.epsilon(rounds),
            "all_methods": self.epsilon(rounds * methods),
            "method_replace_one": self.epsilon(rounds, replace_one=True),
            "all_methods_replace_one": self.epsilon(rounds * methods, replace_one=True),
        }
        return {name: value for name, value in found.items() if value is not None}


Draw = Callable[[int, int, Tensors], torch.Generator]
"""Gives the source of a client's noise: by round, client, and what the client was sent."""


@dataclass(frozen=True)
class Privacy:
    """Clips an update and adds noise before it leaves the client."""

    config: PrivacyConfig
    draw: Draw

    @classmethod
    def simulated(cls, config: PrivacyConfig, seed: int, method: str) -> Privacy | None:
        """Noise derived from the run's seed, so that a run can be repeated and resumed.

        It measures the cost of privacy; it does not protect, since the server knows the seed.
        """

        def draw(t: int, i: int, down: Tensors) -> torch.Generator:
            return torch_generator(seed, "privacy", method, t, i)

        return cls(config, draw) if config.noise is not None else None

    def applied(self, step: str, t: int, i: int, tensors: Tensors, down: Tensors) -> Tensors:
        """What client i sends in place of its reply's tensors."""
        if not tensors:
            return tensors
        unknown = set(tensors) - {"delta", *down}
        if step != "train" or unknown:
            raise InputError(
                "[privacy] noise cannot be added with this method: what its clients send is not an "
                "update of what they were sent; choose another method, or leave privacy.noise out"
            )
        assert self.config.noise is not None
        updates = {
            name: tensor - down[name] if name != "delta" else tensor
            for name, tensor in tensors.items()
        }
        length = math.sqrt(sum(float(part.double().square().sum()) for part in updates.values()))
        factor = self.config.clip / max(self.config.clip, length)
        deviation = self.config.noise * self.config.clip
        rng = self.draw(t, i, down)
        sent: Tensors = {}
        for name in sorted(updates):
            part = updates[name]
            noise = deviation * torch.randn(part.shape, generator=rng).to(part)
            base = down[name] if name != "delta" else 0.0
            sent[name] = base + factor * part + noise
        return sent
