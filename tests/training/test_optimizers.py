"""The local optimiser against PyTorch's own, alone and inside the methods that add a pull."""

import pytest
import torch

from pfedseq.federation import MethodConfig
from pfedseq.methods.apple import AppleClient, AppleConfig
from pfedseq.methods.ditto import DittoClient, DittoConfig
from pfedseq.methods.fedrep import FedRepClient, FedRepConfig
from pfedseq.methods.per_fedavg import PerFedAvgClient, PerFedAvgConfig
from pfedseq.methods.perada import PerAdaClient, PerAdaConfig
from pfedseq.methods.pfedme import PFedMeClient, PFedMeConfig
from pfedseq.params import Params
from pfedseq.training.config import LocalTraining, Units
from pfedseq.training.optimizer import LocalOptimizer
from tests.toys import QuadraticTask, ScatteredTask, random_centers, trained

LR, HEAD_LR = 0.1, 0.03
CENTER, GLOBAL, OWN = random_centers(3)
DOWN = GLOBAL.tensors()

SGD = {
    "plain": ({}, {}),
    "momentum": ({"momentum": 0.9}, {"momentum": 0.9}),
    "nesterov": ({"momentum": 0.8, "nesterov": True}, {"momentum": 0.8, "nesterov": True}),
    "decay": ({"weight_decay": 0.3}, {"weight_decay": 0.3}),
    "all": (
        {"momentum": 0.7, "nesterov": True, "weight_decay": 0.2},
        {"momentum": 0.7, "nesterov": True, "weight_decay": 0.2},
    ),
}
ADAMW = {
    "defaults": ({}, {"weight_decay": 0.0}),
    "decay": ({"weight_decay": 0.4}, {"weight_decay": 0.4}),
    "betas": (
        {"betas": (0.5, 0.8), "epsilon": 0.01, "weight_decay": 0.1},
        {"betas": (0.5, 0.8), "eps": 0.01, "weight_decay": 0.1},
    ),
}
CASES = [
    *(
        pytest.param(ours, torch.optim.SGD, theirs, id=f"sgd-{n}")
        for n, (ours, theirs) in SGD.items()
    ),
    *(
        pytest.param({"optimizer": "adamw"} | ours, torch.optim.AdamW, theirs, id=f"adamw-{n}")
        for n, (ours, theirs) in ADAMW.items()
    ),
]
every_optimizer = pytest.mark.parametrize(("ours", "optimizer", "theirs"), CASES)
stateful = pytest.mark.parametrize(("ours", "optimizer", "theirs"), CASES[1:])


class Reference:
    """PyTorch's optimizer on leaves, with a group for adapters and one for heads."""

    def __init__(self, phi, optimizer, options, lr=LR, head_lr=HEAD_LR):
        self.leaves = [x.clone().requires_grad_() for x in (phi.adapter, phi.head)]
        groups = [
            {"params": [leaf], "lr": rate}
            for leaf, rate in zip(self.leaves, (lr, head_lr), strict=True)
        ]
        self.optimizer = optimizer(groups, **options)

    @property
    def phi(self):
        return Params(*(leaf.detach().clone() for leaf in self.leaves))

    def flat(self):
        return torch.cat([leaf.flatten() for leaf in self.leaves])

    def step(self, loss, clip=None):
        self.optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.leaves, clip)
        self.optimizer.step()


def assert_close(a: Params, b: Params) -> None:
    torch.testing.assert_close(a.flat(), b.flat(), rtol=1e-5, atol=1e-6)


def scattered(seed=1):
    return ScatteredTask(CENTER, 12, order=torch.Generator().manual_seed(seed))


def half_square(flat, points):
    return 0.5 * (flat - points).square().sum(1).mean()


@every_optimizer
@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
def test_training_is_pytorchs(ours, optimizer, theirs, clip):
    """Two epochs of six batches, adapters and heads at rates of their own."""
    options = {"clip_norm": clip} if clip else {}
    moved = trained(scattered(), GLOBAL, lr=LR, head_lr=HEAD_LR, local_epochs=2, **ours, **options)
    task, reference = scattered(), Reference(GLOBAL, optimizer, theirs)
    for batch in task.batches(2):
        reference.step(half_square(reference.flat(), task.points()[batch]), clip)
    assert (moved - GLOBAL).flat().abs().max() > 0.05
    assert_close(moved, reference.phi)


def test_a_clipped_step_has_the_length_of_its_bound():
    """From a gradient (3, 0 …, 4) of length 5, clipped to 1: a step of η in its direction."""
    gradient = Params(torch.zeros_like(GLOBAL.adapter), torch.zeros_like(GLOBAL.head))
    gradient.adapter[0, 0], gradient.head[2] = 3.0, 4.0
    optimizer = LocalOptimizer(LocalTraining(lr=0.5, clip_norm=1.0))
    step = optimizer.step(GLOBAL, gradient) - GLOBAL
    torch.testing.assert_close(step.adapter[0, 0], torch.tensor(-0.3))
    torch.testing.assert_close(step.head[2], torch.tensor(-0.4))
    assert not (gradient.adapter[0, 0] - 3.0)  # what was handed in stays what it was


@pytest.mark.parametrize(
    ("options", "part", "factor"),
    [
        # (3 · 4, 4 · 2) in units (4, 2) is (3, 4): length 5
        ({"clip_norm": 1.0}, "both", 1 / 5),
        ({"clip_norm": 1.0}, "adapter", 1 / 3),
        ({"clip_norm": 1.0}, "head", 1 / 4),
        ({"clip_norm": 6.0}, "both", 1),
        ({"clip_norm": 1.0, "rate_units": "plain"}, "both", 1 / 208**0.5),
        ({"clip_norm": 0.0}, "both", 1),
        # the step at rates (1, 0.5) in units of the model is (3, 2): length √13
        ({"max_step": 1.0}, "both", 1 / 13**0.5),
        ({"max_step": 1.0}, "adapter", 1 / 3),
        ({"max_step": 1.0}, "head", 1 / 2),
        ({"max_step": 4.0}, "both", 1),
        ({"max_step": 1.0, "rate_units": "plain"}, "both", 1 / 160**0.5),
        # both bounds: the stricter one holds
        ({"clip_norm": 1.0, "max_step": 3.0}, "both", 1 / 5),
        ({"clip_norm": 3.0, "max_step": 1.0}, "both", 1 / 13**0.5),
    ],
)
def test_a_bound_is_in_the_units_of_the_rates(options, part, factor):
    """With α/r = 4 and |f| = 2, and rates that undo what the units do to them."""
    units = Units(adapter=4.0, feature=2.0, classes=9)
    gradient = Params(torch.zeros_like(GLOBAL.adapter), torch.zeros_like(GLOBAL.head))
    gradient.adapter[0, 0], gradient.head[2] = 12.0, 8.0
    config = LocalTraining(lr=1.0, head_lr=0.5, **options)
    adapter_rate, head_rate = config.rates(config.lr, units)
    step = LocalOptimizer(config, units=units).step(GLOBAL, gradient, part) - GLOBAL
    moves = (part != "head", part != "adapter")
    expected = -factor * torch.tensor([12.0 * adapter_rate * moves[0], 8.0 * head_rate * moves[1]])
    torch.testing.assert_close(torch.stack([step.adapter[0, 0], step.head[2]]), expected)


@pytest.mark.parametrize(("lr", "length"), [(0.1, 0.5), (0.2, 1.0), (0.4, 1.0), (8.0, 1.0)])
def test_a_bounded_step_gets_no_longer_at_higher_rates(lr, length):
    gradient = Params(torch.zeros_like(GLOBAL.adapter), torch.zeros_like(GLOBAL.head))
    gradient.adapter[0, 0], gradient.head[2] = 3.0, 4.0
    step = LocalOptimizer(LocalTraining(lr=lr, max_step=1.0)).step(GLOBAL, gradient) - GLOBAL
    torch.testing.assert_close(step.flat().norm(), torch.tensor(length))


def test_a_step_is_measured_at_the_rate_of_its_round():
    """In round 1 of three warm-up rounds the rate 4 is 1, so a gradient of 0.5 is not bounded."""
    gradient = 0.5 * Params(torch.zeros_like(GLOBAL.adapter), torch.ones_like(GLOBAL.head))
    gradient = gradient * (1 / gradient.flat().norm() / 2)
    options = LocalTraining(lr=4.0, schedule_warmup=3, max_step=0.6)
    for t, length in [(1, 0.5), (4, 0.6)]:
        step = LocalOptimizer(options, t).step(GLOBAL, gradient) - GLOBAL
        torch.testing.assert_close(step.flat().norm(), torch.tensor(length))


def test_steps_of_adamw_are_as_long_as_its_rate_whatever_the_bound():
    gradient = Params(torch.ones_like(GLOBAL.adapter), torch.ones_like(GLOBAL.head))
    steps = [
        LocalOptimizer(LocalTraining(optimizer="adamw", lr=0.01, max_step=bound)).step(
            GLOBAL, gradient
        )
        for bound in (0.0, 1e-3)
    ]
    assert torch.equal(steps[0].flat(), steps[1].flat())


def test_steps_at_given_rates_follow_no_gradient_of_the_loss_and_are_not_bounded():
    gradient = 100.0 * Params(torch.ones_like(GLOBAL.adapter), torch.ones_like(GLOBAL.head))
    optimizer = LocalOptimizer(LocalTraining(clip_norm=1.0, max_step=1.0), rates=(0.5, 0.25))
    step = optimizer.step(GLOBAL, gradient) - GLOBAL
    assert torch.allclose(step.adapter, torch.tensor(-50.0))
    assert torch.allclose(step.head, torch.tensor(-25.0))


@every_optimizer
@pytest.mark.parametrize(
    ("client", "config", "pull"), [(DittoClient, DittoConfig, 2), (PerAdaClient, PerAdaConfig, 4)]
)
def test_a_pull_is_part_of_what_the_optimizer_sees(client, config, pull, ours, optimizer, theirs):
    """v_i by PyTorch on L + pull/2 ‖v − w‖² (λ = 2), w_i on L alone, over the same batches."""
    options = config(lr=LR, head_lr=HEAD_LR, proximal_weight=2.0, local_epochs=2, **ours)
    one = client(options, scattered(), OWN.tensors())
    reply = one.train(DOWN)
    task, received = scattered(), GLOBAL.flat()
    mine, shared = Reference(OWN, optimizer, theirs), Reference(GLOBAL, optimizer, theirs)
    for batch in task.batches(2):
        points = task.points()[batch]
        distance = (mine.flat() - received).square().sum()
        mine.step(half_square(mine.flat(), points) + 0.5 * pull * distance)
        shared.step(half_square(shared.flat(), points))
    assert_close(one.personal(DOWN), mine.phi)
    assert_close(Params.of(reply.tensors), shared.phi)


@stateful
def test_per_fedavgs_meta_step_takes_the_optimizer_and_its_inner_step_is_plain(
    ours, optimizer, theirs
):
    options = PerFedAvgConfig(lr=LR, head_lr=HEAD_LR, inner_lr=0.2, **ours)
    reply = PerFedAvgClient(options, scattered(), {}).train(DOWN)
    task, reference = scattered(), Reference(GLOBAL, optimizer, theirs)
    batches = list(task.batches(1))
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        phi = reference.phi
        gradient = phi - CENTER.unflat(task.points()[first].mean(0))
        inner = Params(phi.adapter - 0.2 * gradient.adapter, phi.head - 0.06 * gradient.head)
        slope = inner.flat() - task.points()[second].mean(0)
        reference.step(reference.flat() @ slope)  # whose gradient is the first-order meta-gradient
    assert_close(Params.of(reply.tensors), reference.phi)


@stateful
def test_pfedmes_draw_takes_the_optimizer_and_its_solve_is_plain(ours, optimizer, theirs):
    """The envelope's gradient is λ (w − θ); both parts of w have the rate η."""
    options = PFedMeConfig(
        outer_lr=LR,
        lr=0.1,
        head_lr=0.03,
        proximal_weight=3.0,
        inner_steps=2,
        inner_decay=0.0,
        local_epochs=3,
        **ours,
    )
    reply = PFedMeClient(options, QuadraticTask(CENTER), {}).train(DOWN)
    reference = Reference(GLOBAL, optimizer, theirs, lr=LR, head_lr=LR)
    inner = GLOBAL
    for _ in range(3):
        local = reference.phi
        for _ in range(2):
            slope = (inner - CENTER) + 3.0 * (inner - local)
            inner = Params(inner.adapter - 0.1 * slope.adapter, inner.head - 0.03 * slope.head)
        distance = (reference.flat() - inner.flat()).square().sum()
        reference.step(0.5 * 3.0 * distance)
    assert_close(Params.of(reply.tensors), reference.phi)


@stateful
def test_apples_core_takes_the_optimizer_with_its_own_scale(ours, optimizer, theirs):
    """Along N p_ii g; the relations stay at their own plain rate (here next to nothing)."""
    down = {
        "adapters": torch.stack([GLOBAL.adapter, OWN.adapter]),
        "heads": torch.stack([GLOBAL.head, OWN.head]),
        "prior": torch.tensor([0.25, 0.75]),
        "prior_pull": torch.tensor(0.0),
        "index": torch.tensor(1),
    }
    options = AppleConfig(lr=LR, head_lr=HEAD_LR, relation_lr=1e-12, local_epochs=4, **ours)
    reply = AppleClient(options, QuadraticTask(CENTER), {}).train(down)
    reference = Reference(OWN, optimizer, theirs)
    for _ in range(4):
        mixed = 0.25 * GLOBAL.flat() + 0.75 * reference.flat()
        reference.step(2 * half_square(mixed, CENTER.flat().unsqueeze(0)))  # N = 2
    assert_close(Params.of(reply.tensors), reference.phi)


@stateful
def test_fedreps_phases_move_one_part_and_leave_the_other_to_the_bit(ours, optimizer, theirs):
    """Neither decay nor momentum may move the part that a phase holds fixed."""
    options = FedRepConfig(lr=LR, head_lr=HEAD_LR, head_epochs=3, local_epochs=2, **ours)
    client = FedRepClient(options, QuadraticTask(CENTER), {"head": OWN.head})
    reply = client.train({"adapter": GLOBAL.adapter})
    heads, adapters = Reference(OWN, optimizer, theirs), Reference(GLOBAL, optimizer, theirs)
    for reference, passes in ((heads, 3), (adapters, 2)):
        for _ in range(passes):
            reference.step(half_square(reference.flat(), CENTER.flat().unsqueeze(0)))
    torch.testing.assert_close(client.state["head"], heads.phi.head)
    torch.testing.assert_close(reply.tensors["adapter"], adapters.phi.adapter)
    optimizer = LocalOptimizer(MethodConfig(lr=LR, **ours))
    for _ in range(3):
        moved = optimizer.step(GLOBAL, CENTER, "head")
        assert torch.equal(moved.adapter, GLOBAL.adapter)
        assert not torch.equal(moved.head, GLOBAL.head)
