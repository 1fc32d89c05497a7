"""A client's channel made as new: the others keep what was learnt for them."""

import pytest
import torch

from pfedseq.learners.calibration import CalibrationLearner, LearnerConfig
from tests.toys import make_setup, random_centers

N, L, GONE = 4, 5, 1
OTHERS = [i for i in range(N) if i != GONE]
CENTERS = random_centers(N)
EXACT = {
    "one block of Mamba": {"num_blocks": 1},
    "Mamba as for language": {"num_blocks": 1, "signed": False},
    "LSTM": {"architecture": "lstm"},
    "MLP": {"architecture": "mlp"},
    "linear": {"architecture": "linear"},
}


def learnt(**options):
    """A learner all of whose numbers have moved, one fresh from the start, and Adam's memory."""
    config = LearnerConfig(max_sequence_length=L, **options)
    setup = make_setup(CENTERS, (1,) * N)
    learner, initial = (CalibrationLearner(config, setup) for _ in range(2))
    optimizer = learner.optimizer()
    torch.manual_seed(1)
    for parameter in learner.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return learner, initial, optimizer


def window_without(gone):
    """Nothing of that client is in it."""
    deltas = torch.randn(L, N, 2, 5, generator=torch.Generator().manual_seed(0))
    deltas[:, gone] = 0
    return deltas.permute(2, 3, 0, 1)


@pytest.mark.parametrize("which", EXACT)
def test_the_others_calibrations_stay_as_they_were(which):
    learner, initial, optimizer = learnt(**EXACT[which])
    window = window_without(GONE)
    with torch.no_grad():
        before = learner(window)
        learner.start_anew(GONE, initial, optimizer)
        after = learner(window)
    assert torch.equal(before[OTHERS], after[OTHERS])
    assert before[GONE].abs().max() > 0
    assert after[GONE].abs().max() == 0, "a newcomer starts as everybody did"


@pytest.mark.parametrize("which", EXACT)
def test_a_clients_own_numbers_are_those_that_the_others_can_do_without(which):
    """Without it in the window the others' ξ depend on all numbers but these."""
    learner, _, optimizer = learnt(**EXACT[which])
    optimizer.zero_grad()
    learner(window_without(GONE))[OTHERS].square().sum().backward()
    for name, parameter in learner.named_parameters():
        own = torch.zeros_like(parameter, dtype=torch.bool)
        for owned, where in learner.model.of_client(GONE):
            if owned is parameter:
                own[where] = True
        idle = parameter.grad == 0
        if which == "MLP":  # units that no row wakes are idle, too
            idle &= own
        assert torch.equal(idle, own), name


def test_a_second_block_loses_only_what_the_first_wrote_into_the_channel():
    """With nothing written there by the first block, the others stay as they were."""
    learner, initial, optimizer = learnt()
    window = window_without(GONE)
    with torch.no_grad():
        learner.model.blocks[0].out_proj[:, GONE] = 0
        before = learner(window)
        learner.start_anew(GONE, initial, optimizer)
        after = learner(window)
    assert torch.equal(before[OTHERS], after[OTHERS])
    assert after[GONE].abs().max() == 0


@pytest.mark.parametrize("options", [*EXACT.values(), {}])
def test_all_that_reads_or_writes_the_channel_is_as_at_the_start_and_nothing_else(options):
    """A number belongs to a client if it moves that client's output alone, or reads it alone."""
    learner, initial, optimizer = learnt(**options)
    moved = [p.detach().clone() for p in learner.parameters()]
    sizes = [optimizer.state[p]["exp_avg_sq"].clone() for p in learner.parameters()]
    learner.start_anew(GONE, initial, optimizer)
    changed = 0
    for parameter, first, former, size in zip(
        learner.parameters(), initial.parameters(), moved, sizes, strict=True
    ):
        reset = parameter != former
        assert torch.equal(parameter[reset], first[reset])
        assert torch.equal(optimizer.state[parameter]["exp_avg"] == 0, reset)
        assert torch.equal(optimizer.state[parameter]["exp_avg_sq"], size)
        assert not reset.any() or reset.sum() < parameter.numel()
        changed += int(reset.sum())
    assert changed == sum(
        first[where].numel() for first, where in initial.model.of_client(GONE)
    ) - (2 if options.get("architecture") == "linear" else 0), "its diagonal is in row and column"


def test_with_a_learner_that_does_not_tell_clients_apart_nothing_is_lost():
    learner, initial, optimizer = learnt(ablation="no_cross_client")
    before = [p.detach().clone() for p in learner.parameters()]
    learner.start_anew(GONE, initial, optimizer)
    assert all(map(torch.equal, before, learner.parameters()))
