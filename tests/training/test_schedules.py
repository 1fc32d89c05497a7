"""Rates over rounds, against PyTorch's schedulers and in closed form through a whole run."""

import warnings

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.params import Params
from pfedseq.training.config import LocalTraining
from pfedseq.training.schedules import rate_factor
from tests.toys import personal_models, play, random_centers

ROUNDS = 12


def pytorchs(scheduler, **options):
    """The factors of twelve rounds."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule, rates = scheduler(optimizer, **options), []
    for _ in range(ROUNDS):
        rates.append(optimizer.param_groups[0]["lr"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no step of the optimizer is made
            schedule.step()
    return rates


@pytest.mark.parametrize(
    ("options", "scheduler", "theirs"),
    [
        (
            {"schedule": "cosine", "schedule_floor": 0.1},
            torch.optim.lr_scheduler.CosineAnnealingLR,
            {"T_max": ROUNDS, "eta_min": 0.1},
        ),
        (
            {"schedule": "linear", "schedule_floor": 0.2},
            torch.optim.lr_scheduler.LinearLR,
            {"start_factor": 1.0, "end_factor": 0.2, "total_iters": ROUNDS},
        ),
        (
            {"schedule": "step", "schedule_every": 5, "schedule_factor": 0.3},
            torch.optim.lr_scheduler.StepLR,
            {"step_size": 5, "gamma": 0.3},
        ),
        ({"schedule": "constant"}, torch.optim.lr_scheduler.ConstantLR, {"factor": 1.0}),
    ],
)
def test_schedules_are_pytorchs(options, scheduler, theirs):
    config = LocalTraining(schedule_rounds=ROUNDS, **options)
    ours = [rate_factor(config, t) for t in range(1, ROUNDS + 1)]
    assert ours == pytest.approx(pytorchs(scheduler, **theirs))


def test_a_warm_up_rises_in_equal_steps_and_the_schedule_begins_after_it():
    """W = 3, T = 7: ¼, ½, ¾, then 1 − k / 4 for k = 0 … 3; a longer run stays at the floor."""
    config = LocalTraining(schedule="linear", schedule_rounds=7, schedule_warmup=3)
    factors = [rate_factor(config, t) for t in range(1, 10)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25, 0, 0])


@pytest.mark.parametrize("name", ["local", "fedavg", "fedrep"])
def test_each_round_trains_at_its_own_rate(name):
    """One client, one step a round: φ^T − c = Π_t (1 − η f_t) (φ^0 − c), by part."""
    (center,) = random_centers(1)
    method = METHODS[name]
    config = method.config(
        lr=0.4, head_lr=0.2, schedule="cosine", schedule_rounds=4, schedule_warmup=1
    )
    server, clients = play(method, config, [center], [1], rounds=4)
    (phi,) = personal_models(clients, 4, {0: server.payload(0)}).values()
    left = Params(center.adapter.clone(), center.head.clone()) * -1.0
    for factor in (0.5, 1.0, 0.75, 0.25):  # ½, then (1 + cos(π k / 3)) / 2
        left = Params(left.adapter * (1 - 0.4 * factor), left.head * (1 - 0.2 * factor))
    torch.testing.assert_close(phi.flat(), (center + left).flat())


def test_a_schedule_lasts_as_long_as_the_run_unless_it_says_otherwise():
    values = {
        "run": {"rounds": 30, "methods": ["local", "fedavg"]},
        "training": {"schedule": "cosine"},
        "methods": {"fedavg": {"schedule_rounds": 50}},
    }
    config = make_config(values)
    assert config.method_config("local").schedule_rounds == 30
    assert config.method_config("fedavg").schedule_rounds == 50
    longer = make_config(config.model_dump(exclude_none=True), ["run.rounds=40"])
    assert longer.method_config("local").schedule_rounds == 40
    assert make_config({}).method_config("pfedseq").schedule_rounds is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["training.schedule=triangle"], "choose one of constant, cosine, linear, step"),
        (["training.optimizer=lion"], "choose one of sgd, adamw"),
        (["training.optimizer=adamw", "training.momentum=0.9"], "AdamW has betas"),
        (["training.nesterov=true"], "nesterov needs a momentum"),
        (["training.optimizer_state=keep"], "nothing to keep"),
        (["training.optimizer_state=average"], "is for optimizer = 'adamw'"),
        (["training.betas=[0.9, 1.0]"], "less than 1"),
        (["training.schedule_warmup=4", "run.rounds=4"], "leaves no round of 4"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        make_config({}, options)
