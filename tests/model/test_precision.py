"""Products in bfloat16: what is rounded and what is not, alone and in company."""

import copy

import pytest
import torch
from torch import nn

from pfedseq.config import load_config
from pfedseq.engines.rendezvous import Question
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import merged_weights
from pfedseq.model.backbone import load_backbone
from pfedseq.model.task import ExampleTask
from pfedseq.model.text_encoder import load_text_encoder
from pfedseq.runs.world import World
from tests.model.some_models import some_phi

KINDS = [
    AdapterConfig(rank=2, alpha=6.0),
    AdapterConfig(rank=1, alpha=3.0, targets=("key", "output", "mlp_in", "mlp_out"), layers=(1, 3)),
    AdapterConfig(kind="dora", rank=2, alpha=6.0, targets=("query", "mlp_out")),
    AdapterConfig(kind="ia3", targets=("key", "value", "mlp_in", "mlp_out"), layers="last 2"),
]


def both_precisions(adapter):
    backbone = load_backbone("demo")
    return [
        AdaptedModel(backbone, adapter, 5, seed=0, precision=precision)
        for precision in ("float32", "bfloat16")
    ]


def some_inputs(model, count=6):
    images = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return model.inputs(images)


def distance(one, other):
    return float((one - other).norm() / other.norm())


def rounded(x):
    return x.bfloat16().to(x.dtype)


@torch.no_grad()
def with_rounded_products(model, adapter, inputs):
    """The plain float32 modules with a rounding before and after every product, and after GELU."""
    tower = copy.deepcopy(model._plain)
    weights = dict(tower.named_parameters())
    for name, weight in merged_weights(
        model.adapter_config, model.layout.unflatten(adapter), weights
    ).items():
        weights[name].data = weight
    for module in tower.layers.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = rounded(module.weight)
            module.bias.data = rounded(module.bias)
            module.register_forward_pre_hook(lambda _, given: (rounded(given[0]), *given[1:]))
        if isinstance(module, nn.Linear) or "GELU" in type(module).__name__:
            module.register_forward_hook(lambda *made: rounded(made[-1]))
    return tower(inputs)


@pytest.mark.parametrize("adapter", KINDS, ids=lambda c: f"{c.kind}-{'+'.join(c.targets)}")
def test_products_are_rounded_and_nothing_else(adapter):
    exact, fast = both_precisions(adapter)
    phi, inputs = some_phi(exact, scale=0.1), some_inputs(exact)
    features = fast.features(phi.adapter, inputs)
    reference = with_rounded_products(exact, phi.adapter, inputs)
    lost = distance(reference, exact.features(phi.adapter, inputs))
    assert 1e-3 < lost < 3e-2, "the reference itself is not float32, and near it"
    # Sums in another order tip single roundings over; independent ones would be √2 lost apart.
    assert distance(features, reference) < 0.6 * lost
    assert features.dtype == torch.float32
    assert torch.equal(fast.merged(phi.adapter)(inputs), features), "tested as it is trained"


@pytest.mark.parametrize("adapter", KINDS, ids=lambda c: f"{c.kind}-{'+'.join(c.targets)}")
def test_gradients_are_float32_and_near_the_exact_ones(adapter):
    gradients = []
    for model in both_precisions(adapter):
        theta = some_phi(model, scale=0.1).adapter.requires_grad_()
        features = model.features(theta, some_inputs(model))
        weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
        gradients += torch.autograd.grad((features * weights).sum(), theta)
    exact, fast = gradients
    assert fast.dtype == torch.float32
    assert 1e-4 < distance(fast, exact) < 5e-2


OPTIONS = (
    "run.methods=['fedavg']",
    "run.rounds=1",
    "data.num_clients=3",
    "model.precision=bfloat16",
    "engine.threads=1",
)


def test_in_company_as_alone():
    """Gradients and scores of a group are those of each client alone, but for roundings."""
    tasks = [site.task(1, "train") for site in World.build(load_config("demo", OPTIONS)).sites]
    batches = [torch.arange(n) for n in (4, 2, 3)]
    phis = [some_phi(task.model, seed, scale=0.1) for seed, task in enumerate(tasks)]
    asked = [
        Question(task, "grad", (phi, batch, "both"))
        for task, phi, batch in zip(tasks, phis, batches, strict=True)
    ]
    for question, together in zip(asked, ExampleTask.answer_together(asked), strict=True):
        alone = question.answer()
        assert distance(together.adapter, alone.adapter) < 2e-2
        assert distance(together.head, alone.head) < 2e-2
        assert alone.adapter.norm() > 0


def test_a_run_computes_as_its_config_says():
    def gradient(*options):
        site = World.build(load_config("demo", [*OPTIONS, *options])).sites[0]
        task = site.task(1, "train")
        return task.grad(some_phi(task.model, scale=0.1), torch.arange(4)).adapter

    exact = gradient("model.precision=float32")
    assert 1e-4 < distance(gradient(), exact) < 5e-2
    assert torch.equal(gradient("model.precision=float32"), exact)


def test_where_it_cannot_be_done_it_is_refused():
    with pytest.raises(InputError, match="'bfloat16' needs a ViT and an adapter without"):
        AdaptedModel(
            load_backbone("demo"), AdapterConfig(dropout=0.1), 5, seed=0, precision="bfloat16"
        )
    encoder = load_text_encoder("random:bert-tiny")
    with pytest.raises(InputError, match="set it to 'float32'"):
        AdaptedModel(encoder, AdapterConfig(), 5, seed=0, precision="bfloat16")
