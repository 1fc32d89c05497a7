"""Running sums against the explicit sum over all rounds, and what they hold of absent clients."""

import pytest
import torch

from pfedseq.learners.history import History
from pfedseq.learners.running_sums import RunningSums

N, K, D, L = 3, 2, 4, 20


def updates(rounds: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rounds, N, K, D, generator=torch.Generator().manual_seed(seed))


def filled(deltas: torch.Tensor, max_length: int = L) -> RunningSums:
    sums = RunningSums(max_length)
    for of_round in deltas:
        sums.append(of_round)
    return sums


def test_the_sums_by_hand():
    """L = 8: times 1, 2, 4, 8 and λ = 0, 1/2, 3/4, 7/8. Δ = 4, then 2, of the only number.

    h = √(1 − λ²) (λ·4 + 2): 2; √(3/4)·4; √(7/16)·5; √(15/64)·5.5.
    The mean square is (7/8·16 + 4) / (7/8 + 1) = 9.6.
    """
    history = RunningSums(8)
    assert not history
    assert history.newest() is None
    for delta in (4.0, 2.0):
        history.append(torch.full((1, 1, 1), delta))
    past = history.inputs()
    expected = [2, 0.75**0.5 * 4, (7 / 16) ** 0.5 * 5, (15 / 64) ** 0.5 * 5.5]
    assert past.sums.flatten().tolist() == pytest.approx(expected)
    assert past.rms.item() == pytest.approx(9.6**0.5)


def test_the_sums_are_the_explicit_ones_over_all_rounds():
    deltas = updates(30)
    history = filled(deltas)
    past = history.inputs()
    for time, found in zip(history.times, past.sums, strict=True):
        decay = 1 - 1 / time
        explicit = sum(decay ** (29 - j) * deltas[j] for j in range(30))
        torch.testing.assert_close(found, (1 - decay**2) ** 0.5 * explicit)
    torch.testing.assert_close(past.means, past.sums.mean(1))
    assert torch.equal(history.newest(), deltas[-1])
    assert len(history) == 30


def test_independent_updates_give_every_sum_the_variance_of_one():
    deltas = torch.randn(150, 1, 1, 4000, generator=torch.Generator().manual_seed(0))
    past = filled(deltas).inputs()
    torch.testing.assert_close(past.sums.std((1, 2, 3)), torch.ones(4), rtol=0.05, atol=0)
    torch.testing.assert_close(past.rms.square().mean(), torch.tensor(1.0), rtol=0.05, atol=0)


def test_without_cross_step_modelling_the_newest_update_is_all():
    deltas = updates(5)
    past = filled(deltas, max_length=1).inputs()
    assert torch.equal(past.sums, deltas[-1:])
    torch.testing.assert_close(past.rms, deltas[-1].square().mean(0).sqrt())


def test_rows_are_read_alone():
    history, rows = filled(updates(6)), torch.tensor([0, 3])
    whole, some = history.inputs(), history.inputs(rows)
    assert torch.equal(some.sums, whole.sums[..., rows])
    assert torch.equal(some.means, whole.means[..., rows])
    assert torch.equal(some.rms, whole.rms[..., rows])
    window = History(4)
    for of_round in updates(6):
        window.append(of_round)
    assert torch.equal(window.inputs(rows), window.window()[:, rows])


def test_who_sent_nothing_counts_in_no_mean():
    """Client 1 has never sent anything: mean and scale are those of the two others."""
    deltas = updates(4)
    deltas[:, 1] = 0
    some, others = filled(deltas), filled(deltas[:, [0, 2]])
    assert some.known().tolist() == [True, False, True]
    torch.testing.assert_close(some.inputs().means, others.inputs().means)
    torch.testing.assert_close(some.inputs().rms, others.inputs().rms)


def test_who_was_silent_for_l_rounds_is_not_known():
    history = filled(updates(1), max_length=3)
    for _ in range(2):
        history.append(torch.zeros(N, K, D))
    assert history.known().all()
    history.append(torch.zeros(N, K, D))
    assert not history.known().any()


def test_who_left_is_forgotten_and_who_came_is_unknown():
    deltas = updates(5)
    history = filled(deltas)
    history.reseat([2, 0], newcomers=1)
    past, others = history.inputs(), filled(deltas[:, [2, 0]]).inputs()
    assert torch.equal(past.sums[:, :2], others.sums)
    assert past.sums[:, 2].eq(0).all()
    assert history.known().tolist() == [True, True, False]
    torch.testing.assert_close(past.means, others.means)
    empty = RunningSums(L)
    empty.reseat([0], newcomers=2)
    assert not empty


def test_what_was_saved_goes_on_alike():
    deltas = updates(9)
    straight, before = filled(deltas), filled(deltas[:5])
    after = RunningSums(L)
    after.append(torch.ones(N, K, D))
    after.load_state_dict({name: x.clone() for name, x in before.state_dict().items()})
    for of_round in deltas[5:]:
        after.append(of_round)
    for mine, theirs in zip(after.inputs(), straight.inputs(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(after.known(), straight.known())
    assert len(after) == 9
    after.load_state_dict(RunningSums(L).state_dict())
    assert not after
    assert after.newest() is None


def test_the_newest_update_may_come_once_more():
    deltas = updates(3)
    once, again = filled(deltas), filled(torch.cat([deltas, deltas[-1:]]))
    once.append(once.newest())
    for mine, theirs in zip(once.inputs(), again.inputs(), strict=True):
        assert torch.equal(mine, theirs)


def test_memory_does_not_grow_with_the_rounds():
    """Four numbers for each of a client's, however long the run and however far it looks back."""
    sizes = {
        sum(x.numel() for x in filled(updates(rounds), max_length=length).state_dict().values())
        for rounds in (1, 40)
        for length in (2, 50)
    }
    assert sizes == {4 * N * K * D + K * D + N + 1}
