"""A learner for other clients than before: those who stay keep what was learnt for them."""

import pytest
import torch

from pfedseq.learners.calibration import CalibrationLearner, LearnerConfig
from tests.toys import make_setup, random_centers

N, L = 4, 5
KEPT, GONE = [0, 3], [1, 2]
LEARNERS = {
    "Mamba": {},
    "one block of Mamba": {"num_blocks": 1},
    "Mamba as for language": {"signed": False},
    "one block as for language": {"signed": False, "num_blocks": 1},
    "LSTM": {"architecture": "lstm"},
    "MLP": {"architecture": "mlp"},
    "linear": {"architecture": "linear"},
}
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}
"""A product over more channels adds up in another order; of RMSNorm's ε the scale is another."""


def learnt(num_clients=N, **options):
    """A learner all of whose numbers have moved, its optimizer, and what it was told."""
    config = LearnerConfig(max_sequence_length=L, **options)
    setup = make_setup(random_centers(num_clients), (1,) * num_clients)
    learner = CalibrationLearner(config, setup)
    optimizer = learner.optimizer()
    torch.manual_seed(1)
    for parameter in learner.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return learner, optimizer, setup


def some_updates(num_clients=N):
    """(L, N, K, D)."""
    return torch.randn(L, num_clients, 2, 5, generator=torch.Generator().manual_seed(0))


def calibrations(learner, deltas):
    """Of a window in which clients without an update are not known."""
    known = (deltas != 0).any(0).flatten(1).any(1)
    with torch.no_grad():
        return learner(deltas.permute(2, 3, 0, 1), known)


def grown(learner, optimizer, setup, newcomers, kept=None):
    kept = range(setup.num_clients) if kept is None else kept
    now = setup.reseated(kept, dict.fromkeys(range(90, 90 + newcomers), 1))
    return (*learner.reseated(kept, now, optimizer), now)


@pytest.mark.parametrize("zero_projections", [True, False])
@pytest.mark.parametrize("which", LEARNERS)
def test_newcomers_change_nothing_for_those_who_are_there(which, zero_projections):
    """Until the next training: newcomers without a trajectory are not read, and get nothing."""
    learner, optimizer, setup = learnt(**LEARNERS[which], zero_projections=zero_projections)
    deltas = some_updates()
    before = calibrations(learner, deltas)
    larger, _, now = grown(learner, optimizer, setup, newcomers=2)
    more = torch.cat([deltas, torch.zeros(L, 2, 2, 5)], dim=1)
    after = calibrations(larger, more)
    assert (now.num_clients, now.clients) == (6, (0, 1, 2, 3, 90, 91))
    assert len(after) == 6
    assert before.abs().min() > 0
    torch.testing.assert_close(after[:N], before, **ROUNDING)
    assert after[N:].abs().max() == 0


def test_a_rank_more_changes_nothing_either():
    """The step size's projection has one for every sixteen clients."""
    learner, optimizer, setup = learnt(16)
    larger, *_ = grown(learner, optimizer, setup, newcomers=1)
    assert [model.sizes()["rank"] for model in (learner.model, larger.model)] == [1, 2]
    deltas = some_updates(16)
    more = torch.cat([deltas, torch.zeros(L, 1, 2, 5)], dim=1)
    after = calibrations(larger, more)
    torch.testing.assert_close(after[:16], calibrations(learner, deltas), **ROUNDING)


@pytest.mark.parametrize("which", LEARNERS)
def test_a_newcomer_is_read_and_learns(which):
    """Its updates reach the others, and a step along its own update gives it a calibration."""
    learner, optimizer, setup = learnt(**LEARNERS[which])
    larger, memory, _ = grown(learner, optimizer, setup, newcomers=1)
    more = torch.cat([some_updates(), torch.randn(L, 1, 2, 5)], dim=1)
    window = more.permute(2, 3, 0, 1)
    without = more.clone()
    without[:, N] = 0
    differ = calibrations(larger, more)[:N] - calibrations(larger, without)[:N]
    assert differ.abs().max() > 1e-3 or which == "linear"  # all its numbers are output weights
    memory.zero_grad()
    target = torch.zeros(N + 1, 2, 5)
    target[N] = 1
    larger(window).backward(-target)
    memory.step()
    assert (larger(window)[N] * target[N]).sum() > 0


def owned(name, axes, parameter, places):
    """Where a parameter's numbers of the clients at `places` stand, by the names of its axes."""
    of_client = [d for d, axis in enumerate(axes[name]) if axis and "client" in axis]
    mask = torch.ones_like(parameter, dtype=torch.bool)
    for d in of_client:
        along = torch.zeros(parameter.shape[d], dtype=torch.bool)
        for place in places:
            along[place :: parameter.shape[d] // len(axes[name][d])] = True
        mask &= along.view([-1 if e == d else 1 for e in range(mask.dim())])
    return mask


@pytest.mark.parametrize("which", LEARNERS)
def test_those_who_stay_keep_their_numbers_and_the_hidden_ones(which):
    learner, optimizer, setup = learnt(**LEARNERS[which])
    smaller, memory, now = grown(learner, optimizer, setup, newcomers=0, kept=KEPT)
    assert (now.num_clients, now.width) == (2, N)
    axes, scale = learner.model.axes(), (N / 2) ** 0.5
    olds = dict(learner.model.named_parameters())
    for name, new in smaller.model.named_parameters():
        mask = owned(name, axes, olds[name], KEPT)
        expected = olds[name][mask].view_as(new)
        if name.endswith("norm") and not learner.config.signed:
            expected = expected * scale
        assert torch.equal(new, expected), name
        for key in ("exp_avg", "exp_avg_sq"):
            remembered = optimizer.state[olds[name]][key][mask].view_as(new)
            assert torch.equal(memory.state[new][key], remembered), name
        assert memory.state[new]["step"] == 1


@pytest.mark.parametrize(
    "which", [name for name in LEARNERS if name not in ("Mamba", "Mamba as for language")]
)
def test_without_the_leavers_in_the_window_the_others_calibrations_stay(which):
    learner, optimizer, setup = learnt(**LEARNERS[which])
    deltas = some_updates()
    deltas[:, GONE] = 0
    smaller, *_ = grown(learner, optimizer, setup, newcomers=0, kept=KEPT)
    after = calibrations(smaller, deltas[:, KEPT])
    torch.testing.assert_close(after, calibrations(learner, deltas)[KEPT], **ROUNDING)


def test_a_second_block_loses_only_what_the_first_wrote_into_the_channels():
    """With nothing written there by the first block, the others stay as they were."""
    learner, optimizer, setup = learnt()
    deltas = some_updates()
    deltas[:, GONE] = 0
    with torch.no_grad():
        learner.model.blocks[0].out_proj[:, GONE] = 0
    smaller, *_ = grown(learner, optimizer, setup, newcomers=0, kept=KEPT)
    after = calibrations(smaller, deltas[:, KEPT])
    torch.testing.assert_close(after, calibrations(learner, deltas)[KEPT], **ROUNDING)


def test_who_comes_and_goes_leaves_the_others_as_they_were():
    learner, optimizer, setup = learnt()
    larger = grown(learner, optimizer, setup, newcomers=2)
    again, memory, now = grown(*larger, newcomers=0, kept=range(N))
    deltas = some_updates()
    torch.testing.assert_close(
        calibrations(again, deltas), calibrations(learner, deltas), **ROUNDING
    )
    assert again.model.sizes() == {"client": N, "hidden": 2 * 6, "rank": 1}
    grown_again = grown(again, memory, now, newcomers=2)[0].model.sizes()
    assert grown_again["hidden"] == 2 * 6, "those who came get the channels of those who left"


def test_what_adam_remembers_of_new_numbers():
    """No direction; the size of the gradients is the mean of the others' in that layer."""
    learner, optimizer, setup = learnt()
    larger, memory, _ = grown(learner, optimizer, setup, newcomers=1)
    old, new = (dict(model.named_parameters()) for model in (learner.model, larger.model))
    for name in ("blocks.0.in_proj", "blocks.1.out_proj"):
        before, after = optimizer.state[old[name]], memory.state[new[name]]
        assert after["exp_avg"][..., -1].abs().max() == 0
        mean = before["exp_avg_sq"].mean((1, 2), keepdim=True)
        last = after["exp_avg_sq"][..., -1:]
        torch.testing.assert_close(last, mean.expand_as(last))


def test_a_learner_that_does_not_tell_clients_apart_stays_as_it_is():
    learner, optimizer, setup = learnt(ablation="no_cross_client")
    assert grown(learner, optimizer, setup, newcomers=2)[:2] == (learner, optimizer)


def test_all_known_is_as_if_nothing_was_said_of_it():
    learner, *_ = learnt()
    window = some_updates().permute(2, 3, 0, 1)
    with torch.no_grad():
        everyone = learner(window, torch.ones(N, dtype=torch.bool))
        assert torch.equal(everyone, learner(window))
