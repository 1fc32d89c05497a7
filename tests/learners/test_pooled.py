"""The pooled learner against a loop in float64, and what its form promises."""

import math

import pytest
import torch
from pydantic import ValidationError

from pfedseq.federation import Reply, Setup
from pfedseq.learners import pooled
from pfedseq.learners.calibration import DENSE_UP_TO, CalibrationLearner, LearnerConfig
from pfedseq.learners.running_sums import Past, RunningSums
from pfedseq.methods.pfedseq import PFedSeqConfig, PFedSeqServer
from pfedseq.params import Params
from pfedseq.runs.checkpoint import restore_server, server_state

N, K, D, S, E = 5, 2, 7, 4, 6


def make_past(clients: int = N, dtype: torch.dtype = torch.float32, seed: int = 0) -> Past:
    rng = torch.Generator().manual_seed(seed)
    sums = torch.randn(S, clients, K, D, generator=rng, dtype=torch.float64).to(dtype)
    rms = torch.rand(K, D, generator=rng, dtype=torch.float64).to(dtype) + 0.5
    return Past(sums, sums.mean(1), rms)


def make_learner(dtype: torch.dtype = torch.float32) -> pooled.PooledLearner:
    torch.manual_seed(0)
    return pooled.PooledLearner(K, S, E).to(dtype)


def by_hand(learner: pooled.PooledLearner, past: Past, factor: torch.Tensor) -> torch.Tensor:
    """The module's formulas, number by number."""
    sums, means, scale = past
    outputs = []
    for i in range(sums.shape[1]):
        for k in range(K):
            for d in range(D):
                u = [*(sums[:, i, k, d] / scale[k, d]), *(means[:, k, d] / scale[k, d])]
                total = torch.zeros((), dtype=sums.dtype)
                for e in range(E):
                    x = sum(w * v for w, v in zip(learner.in_proj[k, e], u, strict=True))
                    z = sum(w * v for w, v in zip(learner.in_proj[k, E + e], u, strict=True))
                    z = z + learner.gate_bias[k, e]
                    total = total + learner.out_proj[k, e] * x * z / (1 + torch.exp(-z))
                outputs.append(factor[k, d] * total)
    return torch.stack(outputs).view(-1, K, D)


@pytest.mark.parametrize("numbers_at_once", [1, 2 * D, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_the_loop(monkeypatch, numbers_at_once, dtype):
    monkeypatch.setattr(pooled, "_CHUNK_NUMBERS", numbers_at_once)
    direction = torch.randn(N, K, D, generator=torch.Generator().manual_seed(1)).double()
    reference, exact = make_learner(torch.float64), make_past(dtype=torch.float64)
    expected = by_hand(reference, exact, exact.rms + 2)
    expected.backward(direction)
    learner, past = make_learner(dtype), make_past(dtype=dtype)
    found = learner(past, past.rms, past.rms + 2)
    found.backward(direction.to(dtype))
    with torch.no_grad():
        assert torch.equal(learner(past, past.rms, past.rms + 2), found)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(found, expected.to(dtype), **tolerance)
    for mine, theirs in zip(learner.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad.to(dtype), **tolerance)


def test_permuting_the_clients_permutes_the_calibrations():
    past, order = make_past(), torch.tensor([3, 0, 4, 1, 2])
    learner = make_learner()
    with torch.no_grad():
        straight = learner(past, past.rms, past.rms)
        mixed = learner(past._replace(sums=past.sums[:, order]), past.rms, past.rms)
    torch.testing.assert_close(mixed, straight[order])


def test_a_client_hears_of_the_others_by_their_mean():
    learner, past = make_learner(), make_past()
    with torch.no_grad():
        before = learner(past, past.rms, past.rms)
        after = learner(past._replace(means=past.means + 1), past.rms, past.rms)
    assert not torch.isclose(before, after).any()


def server_of(clients: int, **options) -> PFedSeqServer:
    config = PFedSeqConfig(warmup_rounds=1, **{"mixing": "pooled", **options})
    initial = Params(torch.zeros(K, D), torch.zeros(1))
    return PFedSeqServer(config, Setup(initial, (1,) * clients, 20, seed=0))


def answers(clients: int, t: int, absent: tuple[int, ...] = ()) -> dict[int, Reply]:
    """Each client drifts in a direction of its own."""
    rng = torch.Generator().manual_seed(7)
    drift = torch.randn(50, K, D, generator=rng)
    noise = torch.randn(50, K, D, generator=rng.manual_seed(t))
    deltas = 1e-3 * (drift + 0.1 * noise)
    return {i: Reply({"delta": deltas[i]}) for i in range(clients) if i not in absent}


def test_what_was_learnt_with_some_clients_serves_more():
    """A newcomer needs no new weights, and gets a calibration as soon as it has sent an update."""
    server = server_of(4)
    for t in range(1, 9):
        server.update(t, answers(4, t))
    weights = [p.detach().clone() for p in server.learner.parameters()]
    server.reseat([0, 1, 2, 3], {9: 1})
    assert all(map(torch.equal, weights, server.learner.parameters()))
    assert torch.equal(server.payload(4)["adapter"], server.shared), "nothing is known of it yet"
    server.update(9, answers(5, 9))
    own = server.adapters - server.shared
    assert (own[4] * answers(5, 9)[4].tensors["delta"]).sum() > 0, "along its own update"


def test_it_learns_to_follow_what_a_client_keeps_asking_for():
    server = server_of(6)
    for t in range(1, 16):
        server.update(t, answers(6, t))
    calibrations = server.adapters - server.shared
    deltas = torch.stack([r.tensors["delta"] for r in answers(6, 15).values()])
    along = (calibrations * deltas).sum((1, 2)) / deltas.square().sum((1, 2))
    assert (along > 0.1).all()


@pytest.mark.parametrize("gap", ["zero", "last", "decayed"])
def test_who_is_absent_still_gets_a_calibration(gap):
    server = server_of(4, history_gap=gap)
    for t in range(1, 7):
        server.update(t, answers(4, t, absent=(2,) if t > 3 else ()))
    assert not torch.equal(server.adapters[2], server.shared)
    share = {"zero": 0, "last": 1, "decayed": 1 / 8}[gap]
    last = answers(4, 3)[2].tensors["delta"]
    assert torch.equal(server.history.newest()[2], share * last)


def test_a_server_put_back_from_a_checkpoint_goes_on_alike():
    """With newcomers, an absent client and rows that are redrawn each round."""
    options = {"row_share": 0.5}
    straight = server_of(4, **options)
    for t in range(1, 5):
        straight.update(t, answers(4, t))
    straight.reseat([0, 2, 3], {9: 1})
    memory = {name: x.clone() for name, x in server_state(straight).items()}
    resumed = server_of(4, **options)
    restore_server(resumed, memory)
    for server in (straight, resumed):
        for t in range(5, 9):
            server.update(t, answers(4, t, absent=(1,)))
    for name, found in server_state(resumed).items():
        assert torch.equal(found, server_state(straight)[name]), name


def test_at_the_start_it_is_silent_and_forgetting_takes_its_output_weights():
    server = server_of(4, forgetting=0.25)
    server.update(1, answers(4, 1))
    server.update(2, {i: Reply({"delta": torch.zeros(K, D)}) for i in range(4)})
    assert torch.equal(server.adapters[0], server.shared), "zero projections, nothing to learn"
    with torch.no_grad():
        server.learner.model.out_proj.fill_(2.0)
    server.update(3, {i: Reply({"delta": torch.zeros(K, D)}) for i in range(4)})
    torch.testing.assert_close(server.learner.model.out_proj, torch.full((K, 16), 1.5))


def test_calibrations_scale_with_the_updates():
    learner = server_of(N, zero_projections=False).learner
    sums = RunningSums(20), RunningSums(20)
    for t in range(3):
        deltas = torch.randn(N, K, D, generator=torch.Generator().manual_seed(t))
        sums[0].append(deltas)
        sums[1].append(1e-3 * deltas)
    with torch.no_grad():
        large, small = (learner(one.inputs()) for one in sums)
    torch.testing.assert_close(1e3 * small, large, rtol=1e-4, atol=1e-6)


def test_a_past_of_zeros_gives_zeros():
    history = RunningSums(20)
    history.append(torch.zeros(N, K, D))
    with torch.no_grad():
        found = server_of(N, zero_projections=False).learner(history.inputs())
    assert torch.equal(found, torch.zeros(N, K, D))


def setup_of(clients: int, dim: int = D) -> Setup:
    return Setup(Params(torch.zeros(K, dim), torch.zeros(1)), (1,) * clients, 9, seed=3)


def test_the_form_is_chosen_by_the_clients_at_the_start_and_said():
    few, many = (CalibrationLearner(LearnerConfig(), setup_of(n)) for n in (2, DENSE_UP_TO + 1))
    assert (few.mixing, many.mixing) == ("dense", "pooled")
    assert few.notes(setup_of(2)) == []
    (note,) = many.notes(setup_of(DENSE_UP_TO + 1))
    assert 'mixing = "pooled" for 101 clients' in note
    assert LearnerConfig(mixing="dense").mixing_of(5000) == "dense"
    assert LearnerConfig(architecture="lstm").mixing_of(5000) == "dense"
    assert LearnerConfig(ablation="no_cross_client").mixing_of(5000) == "dense"
    grown, _ = few.reseated([0, 1], setup_of(DENSE_UP_TO + 1), few.optimizer())
    assert grown.mixing == "dense", "what was learnt is not thrown away"


@pytest.mark.parametrize(
    "other", [{"architecture": "mlp"}, {"signed": False}, {"ablation": "no_cross_client"}]
)
def test_the_pooled_form_is_refused_with_what_it_does_not_do(other):
    with pytest.raises(ValidationError, match="use mixing = "):
        LearnerConfig(mixing="pooled", **other)


def test_its_weights_do_not_grow_with_the_clients():
    sizes = [
        sum(p.numel() for p in CalibrationLearner(LearnerConfig(), setup_of(n)).parameters())
        for n in (101, 3000)
    ]
    assert sizes[0] == sizes[1] == K * (32 * 8 + 16 + 16)


def test_the_rows_of_a_round():
    """A tenth of D, other rows in other rounds, the same again when a run is resumed."""
    config, setup = LearnerConfig(row_share=0.1), setup_of(2, dim=1000)
    first, again, second = (config.training_rows(setup, t) for t in (1, 1, 2))
    assert len(first.unique()) == len(first) == 100
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert LearnerConfig(row_share=1.0).training_rows(setup, 1) is None
    assert LearnerConfig(row_share=1e-9).num_rows(1000, 2) == 1


@pytest.mark.parametrize(
    ("clients", "dim", "rows"),
    [(10, 6144, 6144), (100, 6144, 6144), (1000, 6144, 614), (10_000, 6144, 256), (10_000, 64, 64)],
)
def test_the_automatic_share(clients, dim, rows):
    assert LearnerConfig().num_rows(dim, clients) == rows


@pytest.mark.parametrize("mixing", ["dense", "pooled"])
def test_the_gradient_of_some_rows_is_that_of_all_on_average(mixing):
    """Over all (D choose R) draws of two rows, the mean of Δψ is exactly the full one."""
    clients, rows_of = 3, [(a, b) for a in range(D) for b in range(a)]
    server = server_of(clients, mixing=mixing, zero_projections=False)
    for t in range(1, 4):
        server.history.append(torch.stack([r.tensors["delta"] for r in answers(3, t).values()]))
    deltas = answers(clients, 4)

    def gradient(rows: torch.Tensor | None) -> torch.Tensor:
        object.__setattr__(server.config, "training_rows", lambda setup, t: rows)
        kept = [p.detach().clone() for p in server.learner.parameters()]
        optimizer, server.optimizer = (
            server.optimizer,
            torch.optim.SGD(server.learner.parameters(), lr=1.0),
        )
        history, server.history = server.history, Unchanged(server.history)
        server.update(1, deltas)
        moved = [p.detach() - k for p, k in zip(server.learner.parameters(), kept, strict=True)]
        with torch.no_grad():
            for parameter, value in zip(server.learner.parameters(), kept, strict=True):
                parameter.copy_(value)
        server.optimizer, server.history = optimizer, history
        return torch.cat([m.flatten() for m in moved]).double()

    full = gradient(None)
    assert math.comb(D, 2) == len(rows_of)
    mean = torch.stack([gradient(torch.tensor(sorted(r))) for r in rows_of]).mean(0)
    assert full.norm() > 0
    assert (mean - full).norm() < 2e-3 * full.norm()
    assert torch.equal(gradient(torch.arange(D)), full), "all rows, drawn, are all rows"


class Unchanged:
    """A history that takes nothing in."""

    def __init__(self, history: object) -> None:
        self._history = history

    def __getattr__(self, name: str) -> object:
        return getattr(self._history, name)

    def __len__(self) -> int:
        return 3

    def append(self, deltas: torch.Tensor, present: torch.Tensor) -> None:
        """Nothing."""
