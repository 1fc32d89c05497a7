"""FlexLoRA: the server averages the products BA and truncates the mean to each client's rank.

Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources", NeurIPS 2024.

Sent down and up: θ and ω. Evaluated: the client's θ, of its rank, and ω.

The mean ΔW = Σ_i p_i B_i A_i has a rank of at most N r. Its singular value decomposition U S Vᵀ
comes from QR decompositions of [p_1 B_1, …, p_N B_N] and [A_1; …; A_N]ᵀ, so that no matrix of
W's size is formed. Client i gets B = U_r S_r and A = V_rᵀ of the r largest singular values.

Deviations: a client whose rank is below `adapter.rank` has zeros in the rows of A and columns of B
beyond it; since both factors are zero, so are their gradients, and they stay zero. The zeros are
sent as well. α/r is the same for every rank.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.federation import Method, MethodConfig, Reply, Setup, Tensors
from pfedseq.lora import Matrices, factors_needed
from pfedseq.methods.fedavg import FedAvgClient, FedAvgServer


class FlexLoRAConfig(MethodConfig):
    """Options of FlexLoRA."""

    ranks: tuple[int, ...] | dict[str, int] = Field(
        (),
        description="the clients' ranks in order of client number, repeated when there are more "
        "clients, or by client or site name, such as {clinic-a = 4}; adapter.rank for clients that "
        "are not named, and for all by default",
    )


class FlexLoRAServer(FedAvgServer):
    """ΔW = Σ_i |D_i| / |D| · B_i A_i; ω is averaged."""

    config: FlexLoRAConfig

    def __init__(self, config: FlexLoRAConfig, setup: Setup) -> None:
        self.factors = factors_needed(setup.factors, "FlexLoRA", alone=True)
        if setup.aggregation != "mean":
            raise InputError(
                "FlexLoRA averages products of factors and supports no median: set "
                "federation.aggregation to 'mean'"
            )
        given = config.ranks
        ranks = tuple(given.values()) if isinstance(given, dict) else given
        if any(not 1 <= rank <= self.factors.rank for rank in ranks):
            raise InputError(
                f"methods.flexlora.ranks = {list(ranks)} must lie between 1 and "
                f"adapter.rank = {self.factors.rank}"
            )
        super().__init__(config, setup)

    def payload(self, i: int) -> Tensors:
        """θ truncated to the client's rank, and ω."""
        return {"adapter": self._of_rank(self.adapter, self._rank(i)), "head": self.head}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """The mean product, as A and B; the mean head."""
        adapters, present = self.setup.stack(replies, "adapter")
        heads, _ = self.setup.stack(replies, "head")
        weights = self.setup.weights(present).to(adapters)
        weights = weights / weights.sum()
        found = [truncated_mean(m, weights, self.factors.rank) for m in self._matrices(adapters)]
        self.adapter = self.factors.adapter(found)
        self.head = self.setup.aggregate(heads, present)

    def _matrices(self, adapters: Tensor) -> list[Matrices]:
        return self.factors.matrices(adapters)

    def _rank(self, i: int) -> int:
        ranks, number = self.config.ranks, self.setup.clients[i]
        if isinstance(ranks, dict):
            return ranks.get(self.setup.name_of(number), self.factors.rank)
        return ranks[number % len(ranks)] if ranks else self.factors.rank

    def _of_rank(self, adapter: Tensor, rank: int) -> Tensor:
        if rank == self.factors.rank:
            return adapter
        kept = (torch.arange(self.factors.rank, device=adapter.device) < rank).to(adapter)
        cut = [Matrices(m.down * kept[:, None], m.up * kept) for m in self._matrices(adapter)]
        return self.factors.adapter(cut)


def truncated_mean(clients: Matrices, weights: Tensor, rank: int) -> Matrices:
    """A = V_rᵀ (K, r, in) and B = U_r S_r (K, out, r) of U S Vᵀ = Σ_i w_i B_i A_i.

    `clients` has A (N, K, r, in) and B (N, K, out, r).
    """
    down = clients.down.transpose(0, 1).flatten(1, 2)  # (K, N r, in)
    weighted = clients.up * weights[:, None, None, None]
    up = weighted.permute(1, 2, 0, 3).flatten(2)  # (K, out, N r)
    q_up, r_up = torch.linalg.qr(up)
    q_down, r_down = torch.linalg.qr(down.transpose(1, 2))
    u, s, v = torch.linalg.svd(r_up @ r_down.transpose(1, 2), full_matrices=False)
    found_up = (q_up @ u * s.unsqueeze(1))[..., :rank]
    return Matrices((v @ q_down.transpose(1, 2))[:, :rank], found_up)


class FlexLoRAClient(FedAvgClient):
    """FedAvg's client; θ arrives in different coordinates each round."""

    sent_model = None


METHOD = Method(
    name="flexlora",
    server=FlexLoRAServer,
    client=FlexLoRAClient,
    config=FlexLoRAConfig,
    title="FlexLoRA",
    summary="averages LoRA's products and truncates the mean to each client's rank",
    training="apply to every local step; optimizer_state = 'average' is refused: the factors "
    "change their coordinates each round",
    adapters=("lora",),
)
