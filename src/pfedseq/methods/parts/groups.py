"""Groups of clients whose adapters are drawn the same way share a mean of their own.

After local training, d_i = θ̃_i − θ̃_g is client i's deviation from the mean adapter of Eq. (1). What
a few examples of one client happen to ask for points anywhere; what a scanner or a domain asks for
points the same way at every client that has it. The directions d_i / ‖d_i‖ of the first rounds, in
which all clients start from the mean adapter (pFedSeq's, after a shorter warm-up, from it plus ξ),
are added up to a heading. Then clusters of clients are joined (average linkage) while the mean
cosine between their members' headings is at least `group_cosine`. From then on a client in a group
of two or more gets its group's mean deviation on top of the mean adapter; any other client gets the
mean adapter alone. A group in which nobody answers stays where it is.

Clustered federated learning (Sattler, Müller and Samek, "Clustered Federated Learning", IEEE TNNLS
2020) compares single updates in the same way and splits the federation for good.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.federation import Setup
from pfedseq.methods.parts.server_steps import AveragingConfig

MOST_CLIENTS = 100
"""Clients at the start of a run up to which there are groups: their cost grows with N²."""
WATCHED = 8
"""Rounds after which headings are told from noise; later ones would show the groups themselves."""


class GroupingConfig(AveragingConfig):
    """Options of methods that average adapters under private heads."""

    group_cosine: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="clients whose adapters deviate from the mean in similar directions, with a "
        "mean cosine of at least this, share a mean adapter; 0 (paper): one mean for all",
    )


class Groups:
    """Which clients are alike, and how far each client's group is from the mean adapter."""

    def __init__(
        self, config: GroupingConfig, setup: Setup, warmup: int = 0, *, used: bool = True
    ) -> None:
        """The first `warmup` rounds at least are watched; without `used` there are no groups."""
        self.least, self.watched = config.group_cosine, max(WATCHED, warmup)
        self.active = (
            used
            and self.least > 0
            and setup.num_clients <= MOST_CLIENTS
            and setup.aggregation == "mean"  # one bad client could lead a group of two astray
        )
        like, rows = setup.initial.adapter, setup.num_clients if self.active else 0
        self.headings = like.new_zeros(rows, *like.shape)  # Σ_t d_i / ‖d_i‖ (N, K, D)
        self.offsets = self.headings  # of the groups' means from the mean adapter (N, K, D)
        self._same: Tensor | None = None  # (N, N), of the headings
        self.labels: list[float] = []
        """The smallest place in each client's group; empty where every client is alone."""

    def take(
        self,
        t: int,
        updated: Tensor,
        shared: Tensor,
        mean: Tensor,
        present: Tensor,
        sizes: Tensor,
    ) -> None:
        """Take the adapters θ̃_i (N, K, D) that the clients `present` trained in round t.

        In the first rounds their directions are added to the headings; later, a group's offset is
        the mean of its d_i, weighted by `sizes` (N,). The mean goes from `shared` to those who
        answered: a group in which nobody did stays where it was.
        """
        if not self.active:
            return
        deviations = updated - mean
        if t <= self.watched:
            self.headings = self.headings + _unit(deviations) * present[:, None, None]
            self._same = None
            return
        if self._same is None:
            self._same = alike(self.headings, self.least)
        same = self._same
        member = same.to(deviations.dtype)  # (N, N)
        shares = member * sizes
        totals = shares.sum(1)
        means = torch.einsum("ij,jkd->ikd", shares / totals.clamp_min(1e-12)[:, None], deviations)
        grouped, answered = member.sum(1) > 1, totals > 0
        kept = torch.where(answered[:, None, None], means, self.offsets + (shared - mean))
        self.offsets = torch.where(grouped[:, None, None], kept, 0.0)
        self.labels = same.cpu().double().argmax(1).double().tolist() if grouped.any() else []

    def around(self, shared: Tensor) -> Tensor:
        """The mean adapter plus every client's offset (N, K, D); (K, D) without groups."""
        return shared + self.offsets if self.active else shared

    def of(self, place: int, shared: Tensor) -> Tensor:
        """The mean adapter of the group of one client (K, D)."""
        return shared + self.offsets[place] if self.active else shared

    def figures(self) -> dict[str, list[float]]:
        """For the log: each client's group, if there are any."""
        return {"group": self.labels} if self.labels else {}

    def reseat(self, kept: Sequence[int], newcomers: int) -> None:
        """Newcomers have no heading yet; later than the watched rounds, they never get one."""
        if self.active:
            rows = list(kept)
            self.headings, self.offsets = (
                torch.cat([x[rows], x.new_zeros(newcomers, *x.shape[1:])])
                for x in (self.headings, self.offsets)
            )
            self._same = None

    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"headings": self.headings, "offsets": self.offsets}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state_dict`."""
        self.headings, self.offsets = state["headings"], state["offsets"]
        self._same = None


def alike(headings: Tensor, least: float) -> Tensor:
    """(N, N): whether two clients are in the same cluster; a client without a heading is alone."""
    from scipy.cluster.hierarchy import fcluster, linkage

    num_clients = len(headings)
    directions = _unit(headings).flatten(1).cpu().double()  # some devices have no float64
    cosines = directions @ directions.T
    if num_clients < 2:
        return torch.ones_like(cosines, dtype=torch.bool)
    one, other = torch.triu_indices(num_clients, num_clients, offset=1)
    distances = (1 - cosines[one, other]).clamp_min(0)  # rounding gives cosines above 1
    tree = linkage(distances.numpy(), method="average")
    cluster = torch.from_numpy(fcluster(tree, 1 - least, criterion="distance"))
    return (cluster[:, None] == cluster[None, :]).to(headings.device)


def _unit(x: Tensor) -> Tensor:
    """Each client's (K, D) divided by its length; zeros stay zeros."""
    lengths = x.flatten(1).norm(dim=1)
    return x / torch.where(lengths > 0, lengths, 1.0)[:, None, None]
