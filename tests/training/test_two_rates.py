"""Heads with a rate of their own: every gradient step on ω takes it, and every λ means the same.

On ½ ‖φ − c‖² adapters and heads do not see each other, so a run with the rates η and η' must be, in
θ, the run with η for both, and in ω the run with η' for both.
"""

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.methods.apple import AppleClient, AppleConfig
from pfedseq.methods.ditto import DittoClient, DittoConfig
from pfedseq.methods.perada import PerAdaClient, PerAdaConfig
from pfedseq.methods.pfedme import PFedMeClient, PFedMeConfig
from pfedseq.params import Params
from tests.every_method import OPTIONS
from tests.toys import QuadraticTask, ScatteredTask, personal_models, play, random_centers

LR, HEAD_LR = 0.1, 0.025
CENTERS, SIZES = random_centers(3, adapter_dim=10), (4, 2, 3)
CENTER, GLOBAL, OWN = CENTERS
DOWN = GLOBAL.tensors()

APART = {
    "perada": {"distillation_steps": 0},  # the logits of the distillation see all of φ
    "fedala": {"threshold": 1e9},  # the first ALA ends by the loss, which sees all of φ
}
TOGETHER = {
    "apple": "the relations see all of φ",
    "pfedme": "w is drawn towards θ at one rate for all of φ",
}


def assert_close(a: Params, b: Params) -> None:
    torch.testing.assert_close(a.flat(), b.flat())


def personal(name, **rates):
    """Each client's personal model after three rounds."""
    method = METHODS[name]
    config = method.config(**(OPTIONS.get(name, {}) | APART.get(name, {}) | rates))
    server, clients = play(method, config, CENTERS, SIZES, rounds=3, num_batches=2)
    return personal_models(clients, 3, {i: server.payload(i) for i in clients.ids})


@pytest.mark.parametrize("name", [name for name in METHODS if name not in TOGETHER])
def test_adapters_move_at_one_rate_and_heads_at_the_other(name):
    both = personal(name, lr=LR, head_lr=HEAD_LR)
    adapters, heads = personal(name, lr=LR), personal(name, lr=HEAD_LR)
    for i, phi in both.items():
        assert (adapters[i].head - heads[i].head).abs().max() > 0.01
        torch.testing.assert_close(phi.adapter, adapters[i].adapter)
        torch.testing.assert_close(phi.head, heads[i].head)


def contracted(start: Params, fixed: Params, factor: float, head_factor: float) -> Params:
    """The fixed point plus what is left of the way to it, by part."""
    away = start - fixed
    return fixed + Params(factor * away.adapter, head_factor * away.head)


@pytest.mark.parametrize(
    ("client", "config", "pull"), [(DittoClient, DittoConfig, 3), (PerAdaClient, PerAdaConfig, 6)]
)
def test_both_parts_are_pulled_to_the_global_model_by_the_same_weight(client, config, pull):
    """λ = 3, PerAda's 2λ = 6: v* = (c + pull · w) / (1 + pull) for both parts, and a step leaves
    1 − η (1 + pull) of the way to it in θ and 1 − η' (1 + pull) in ω; w_i is not pulled.
    """
    options = config(lr=LR, head_lr=HEAD_LR, proximal_weight=3.0)
    one = client(options, QuadraticTask(CENTER, 1, num_batches=2), OWN.tensors())
    reply = one.train(DOWN)
    fixed = (1 / (1 + pull)) * (CENTER + float(pull) * GLOBAL)
    factors = [(1 - rate * (1 + pull)) ** 2 for rate in (LR, HEAD_LR)]
    assert_close(one.personal(DOWN), contracted(OWN, fixed, *factors))
    assert_close(Params.of(reply.tensors), contracted(GLOBAL, CENTER, 0.9**2, 0.975**2))


def test_pfedmes_inner_steps_have_two_rates_and_its_draw_has_one():
    """λ = 3, μ = 0.5, η_p = 0.2 for θ and 0.05 for ω, K = 2: the solution (c + λ w) / 4.5 is that
    of both parts, 0.1² and 0.775² of the way to it are left, and w is drawn by η λ = 0.3 in both.
    """
    options = PFedMeConfig(
        outer_lr=LR, lr=0.2, head_lr=0.05, proximal_weight=3, inner_decay=0.5, inner_steps=2
    )
    one = PFedMeClient(options, QuadraticTask(CENTER), {})
    reply = one.train(DOWN)
    solution = (1 / 4.5) * (CENTER + 3.0 * GLOBAL)
    inner = contracted(GLOBAL, solution, 0.1**2, 0.775**2)
    assert_close(one.personal(DOWN), inner)
    assert_close(Params.of(reply.tensors), GLOBAL - 0.3 * (GLOBAL - inner))


def test_pfedmes_inner_rate_of_the_heads_may_not_overshoot_either():
    one = PFedMeClient(PFedMeConfig(lr=0.01, head_lr=0.2), QuadraticTask(CENTER), {})
    with pytest.raises(InputError, match="head_lr · proximal_weight is 3 and must not exceed 2"):
        one.train(DOWN)


def test_apples_core_moves_as_by_sgd_with_two_parameter_groups():
    """Autograd through Σ_j p_j c_j for core and relations together; the cores' rates are N η."""
    task = ScatteredTask(CENTER, 6, order=torch.Generator().manual_seed(1))
    down = {
        "adapters": torch.stack([c.adapter for c in CENTERS]),
        "heads": torch.stack([c.head for c in CENTERS]),
        "prior": torch.tensor([0.5, 0.2, 0.3]),
        "prior_pull": torch.tensor(0.05),
        "index": torch.tensor(1),
    }
    options = AppleConfig(lr=LR, head_lr=HEAD_LR, relation_lr=0.02)
    client = AppleClient(options, task, {})
    reply = client.train(down)

    adapter, head = (down[key][1].clone().requires_grad_() for key in ("adapters", "heads"))
    relations = down["prior"].clone().requires_grad_()
    sgd = torch.optim.SGD(
        [
            {"params": [adapter], "lr": 3 * LR},
            {"params": [head], "lr": 3 * HEAD_LR},
            {"params": [relations], "lr": 0.02},
        ]
    )
    points = task.points()
    task.order.manual_seed(1)
    for batch in task.batches(1):
        adapters, heads = down["adapters"].clone(), down["heads"].clone()
        adapters[1], heads[1] = adapter, head
        mixed = torch.cat(
            [torch.einsum("j,jkd->kd", relations, adapters).flatten(), relations @ heads]
        )
        loss = 0.5 * (mixed - points[batch]).square().sum(1).mean()
        loss = loss + 0.05 * (relations - down["prior"]).square().sum()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    torch.testing.assert_close(reply.tensors["adapter"], adapter.detach())
    torch.testing.assert_close(reply.tensors["head"], head.detach())
    torch.testing.assert_close(client.state["relations"], relations.detach())


def test_a_method_with_a_rate_of_its_own_keeps_the_ratio():
    values = {
        "run": {"methods": ["ditto", "fedavg", "local"]},
        "training": {"lr": 0.1, "head_lr": 0.02},
        "methods": {"ditto": {"lr": 0.5}, "local": {"lr": 0.5, "head_lr": 0.3}},
    }
    config = make_config(values)
    assert config.method_config("fedavg").head_lr == 0.02
    assert config.method_config("ditto").head_lr == pytest.approx(0.1)
    assert config.method_config("local").head_lr == 0.3
    written = config.model_dump(exclude_none=True)
    later = make_config(written, ["methods.ditto.lr=1.0"])  # of a saved config, as `tune` does
    assert later.method_config("ditto").head_lr == pytest.approx(0.2)
    assert make_config(written) == config
