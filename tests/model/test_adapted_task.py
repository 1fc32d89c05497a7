"""The functional model against PEFT's own modules trained the ordinary way."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import inject_adapter_in_model
from torch import nn

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import SeededDropout, _OneProduct, peft_config
from pfedseq.model.backbone import load_backbone
from pfedseq.model.layout import AdapterLayout
from pfedseq.model.task import ExampleSite
from pfedseq.params import Params
from pfedseq.workloads.images.source import ImageSource
from tests.toys import trained

CLASSES = 5


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("random:vit-tiny", 32)


@pytest.fixture(scope="module")
def model(backbone):
    return AdaptedModel(backbone, AdapterConfig(rank=2), CLASSES, seed=0)


@pytest.fixture(scope="module")
def site(model, backbone):
    rng = np.random.default_rng(0)
    images = ImageSet(
        "noise",
        rng.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8),
        rng.integers(0, CLASSES, 40),
        tuple("abcde"),
    )
    everything = np.arange(40)
    client = ClientData("0", everything[:20], everything[20:24], everything[24:])
    source = ImageSource(images, backbone.mean, backbone.std, torch.device("cpu"))
    return ExampleSite(0, model, source, client, batch_size=8, seed=0)


def jittered(model: AdaptedModel) -> Params:
    """A model whose LoRA B is not zero, so that every gradient is alive."""
    rng = torch.Generator().manual_seed(3)
    initial = model.initial
    return Params(
        initial.adapter + 0.05 * torch.randn(initial.adapter.shape, generator=rng),
        initial.head + 0.05 * torch.randn(initial.head.shape, generator=rng),
    )


class OrdinaryModel(nn.Module):
    """PEFT's modules with a linear head, as anyone would train them."""

    def __init__(self, backbone, model: AdaptedModel, phi: Params) -> None:
        super().__init__()
        self.vit = copy.deepcopy(backbone.model)
        inject_adapter_in_model(peft_config(model.adapter_config, model.depth), self.vit)
        self.vit.eval()
        self.head = nn.Linear(model.feature_dim, CLASSES)
        with torch.no_grad():
            named = dict(self.vit.named_parameters())
            for name, value in model.layout.unflatten(phi.adapter).items():
                named[name].copy_(value)
            self.head.weight.copy_(phi.head[:-CLASSES].view(CLASSES, -1))
            self.head.bias.copy_(phi.head[-CLASSES:])

    def forward(self, pixels):
        return self.head(self.vit(pixels).last_hidden_state[:, 0])

    def params(self, model: AdaptedModel) -> Params:
        head = torch.cat([self.head.weight.reshape(-1), self.head.bias])
        return Params(model.layout.flatten(dict(self.vit.named_parameters())), head)


def test_training_equals_ordinary_peft_training(site, model, backbone):
    """Two epochs of SGD: functional φ − η∇ against nn.Modules with torch.optim.SGD."""
    start, lr = jittered(model), 0.005
    functional = trained(site.task(1, "train"), start, lr=lr, rate_units="plain", local_epochs=2)

    ordinary = OrdinaryModel(backbone, model, start)
    optimizer = torch.optim.SGD([p for p in ordinary.parameters() if p.requires_grad], lr=lr)
    task = site.task(1, "train")
    for batch in task.batches(2):
        indices = site.data.train[batch.numpy()]
        loss = nn.functional.cross_entropy(
            ordinary(site.source.pixels(indices)), site.source.labels(indices)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    reference = ordinary.params(model)
    moved = (reference.adapter - start.adapter).abs().max()
    assert (functional.adapter - reference.adapter).abs().max() < 1e-4 * moved
    torch.testing.assert_close(functional.head, reference.head)


def test_gradient_of_one_part_is_that_part_of_the_gradient(site, model):
    phi, task = jittered(model), site.task(1, "train")
    batch = next(task.batches(1))
    both = task.grad(phi, batch)
    adapter, head = task.grad(phi, batch, "adapter"), task.grad(phi, batch, "head")
    torch.testing.assert_close(adapter.adapter, both.adapter)
    torch.testing.assert_close(head.head, both.head, rtol=1e-4, atol=1e-6)
    assert not adapter.head.any()
    assert not head.adapter.any()


def test_cached_features_follow_the_adapter(site, model):
    """A changed θ must not be answered with the features of the old one."""
    task, phi = site.task(1, "train"), jittered(model)
    batch = next(task.batches(1))
    task.grad(model.initial, batch, "head")
    fresh = site.task(1, "train").grad(phi, batch, "head")
    assert torch.equal(task.grad(phi, batch, "head").head, fresh.head)


def test_batches_cover_everything_in_an_order_of_their_own(site):
    first = [b.tolist() for b in site.task(1, "train").batches(2)]
    assert [len(b) for b in first] == [8, 8, 4, 8, 8, 4], "the last, smaller batch is kept"
    assert sorted(i for batch in first[:3] for i in batch) == list(range(20))
    assert first == [b.tolist() for b in site.task(1, "train").batches(2)]
    assert first[:3] != first[3:], "each epoch has a fresh order"
    assert first != [b.tolist() for b in site.task(2, "train").batches(2)]


@pytest.mark.parametrize("of_another", ["seed", "client"])
def test_order_and_draw_depend_on_the_seed_and_the_client(site, of_another):
    short = replace(site, examples_per_round=8)
    other = replace(short, **{of_another: getattr(site, of_another) + 1})
    assert not torch.equal(short.drawn(1).sort().values, other.drawn(1).sort().values)
    other = replace(other, examples_per_round=None)
    for step in ("train", "evaluate"):
        orders = [torch.cat([*s.task(1, step).batches(1)]).tolist() for s in (site, other)]
        assert orders[0] != orders[1]
    trained, tested = (
        torch.cat([*site.task(1, step).batches(1)]) for step in ("train", "evaluate")
    )
    assert not torch.equal(trained, tested)


def test_score_counts_what_is_right(site, model):
    """Against a plain forward over the split, one image at a time."""
    phi, task = jittered(model), site.task(1, "evaluate")
    logits = torch.cat(
        [
            model.classify(phi.head, model.features(phi.adapter, site.source.pixels(np.array([i]))))
            for i in site.data.test
        ]
    )
    labels = site.source.labels(site.data.test)
    score = task.score(phi, "test")
    assert score.num_examples == 16
    assert score["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert score["loss"] == pytest.approx(
        float(nn.functional.cross_entropy(logits, labels)), rel=1e-4
    )


def test_pixels_are_normalised_by_the_backbone(site):
    raw = torch.from_numpy(site.source.images.images[:2]).double() / 255
    expected = (raw - 0.5) / 0.5
    torch.testing.assert_close(
        site.source.pixels(np.arange(2)).double(), expected, atol=1e-6, rtol=0
    )


def test_threads_share_one_backbone_and_do_not_disturb_each_other(site, model):
    phis = [jittered(model), model.initial] * 4

    def work(phi):
        return trained(site.task(1, "train"), phi, lr=0.1).adapter

    alone = [work(phi) for phi in phis[:2]]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, phis))
    for i, result in enumerate(together):
        assert torch.equal(result, alone[i % 2])
    skeletons = []
    with ThreadPoolExecutor(2) as pool:
        skeletons = list(pool.map(lambda _: model._skeleton("adapted"), range(2)))
    for skeleton in skeletons:
        mine, shared = dict(skeleton.named_parameters()), dict(model._adapted.named_parameters())
        assert all(mine[name] is shared[name] for name in shared)


KINDS = [
    AdapterConfig(rank=2, alpha=6.0),  # α ≠ r, so that a forgotten scale shows
    AdapterConfig(kind="dora", rank=2, alpha=6.0),
    AdapterConfig(kind="dora", rank=1, targets=("mlp_in", "mlp_out")),
    AdapterConfig(kind="ia3", targets=("key", "value", "mlp_in", "mlp_out")),
]


@pytest.fixture(params=KINDS, ids=lambda config: f"{config.kind}-{'+'.join(config.targets)}")
def other_model(request, backbone):
    return AdaptedModel(backbone, request.param, CLASSES, seed=0)


def test_merged_features_are_the_same_features(other_model, site):
    phi, pixels = jittered(other_model), site.source.pixels(np.arange(3))
    merged = other_model.merged(phi.adapter)(pixels)
    assert not torch.allclose(merged, other_model.merged(other_model.initial.adapter)(pixels))
    torch.testing.assert_close(
        merged, other_model.features(phi.adapter, pixels), rtol=1e-4, atol=1e-5
    )


def test_every_kind_trains_as_ordinary_peft_does(other_model, site, backbone):
    """One gradient of every adapter weight, against PEFT's own modules."""
    phi, site = jittered(other_model), replace(site, model=other_model)
    task = site.task(1, "train")
    batch = next(task.batches(1))
    gradient = task.grad(phi, batch)
    ordinary = OrdinaryModel(backbone, other_model, phi)
    indices = site.data.train[batch.numpy()]
    logits = ordinary(site.source.pixels(indices))
    nn.functional.cross_entropy(logits, site.source.labels(indices)).backward()
    named = dict(ordinary.vit.named_parameters())
    expected = other_model.layout.flatten(
        {name: named[name].grad for name in other_model.layout.names()}
    )
    torch.testing.assert_close(gradient.adapter, expected, rtol=1e-4, atol=1e-6)
    assert bool((expected != 0).any(0).all()), "every weight of a layer has a gradient"


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_dropout_is_in_training_alone_and_follows_the_seed(kind, backbone, site):
    config = AdapterConfig(kind=kind, rank=2, alpha=6.0, dropout=0.5)
    model = AdaptedModel(backbone, config, CLASSES, seed=0)
    kept = AdaptedModel(backbone, config.model_copy(update={"dropout": 0.0}), CLASSES, seed=0)
    phi, pixels = jittered(model), site.source.pixels(np.arange(3))
    dropping, keeping = replace(site, model=model), replace(site, model=kept)
    batch = next(site.task(1, "train").batches(1))

    def gradient(site: ExampleSite, t: int) -> torch.Tensor:
        return site.task(t, "train").grad(phi, batch).adapter

    first = gradient(dropping, 1)
    assert torch.equal(first, gradient(dropping, 1))
    assert not torch.allclose(first, gradient(dropping, 2), rtol=0.1)
    assert not torch.allclose(first, gradient(keeping, 1), rtol=0.1)
    torch.testing.assert_close(
        model.features(phi.adapter, pixels),
        kept.features(phi.adapter, pixels),
        rtol=1e-4,
        atol=1e-5,
    )
    score = dropping.task(1, "evaluate").score(phi, "test")
    assert score == keeping.task(1, "evaluate").score(phi, "test")


def test_one_product_by_finite_differences():
    """First and second derivatives in float64, without a bias too."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 4), (5, 4), (5,), (2, 4), (5, 2)]
    inputs, weight, bias, down, up = (
        torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes
    )
    tuned = tuple(x.requires_grad_() for x in (inputs, down, up))
    for b in (bias, None):

        def layer(x, a, c, b=b):
            return _OneProduct.apply(x, weight, b, a, c, 1.5)

        assert torch.autograd.gradcheck(layer, tuned)
        assert torch.autograd.gradgradcheck(layer, tuned)


def test_dropout_keeps_the_mean():
    dropout = SeededDropout(0.25)
    inputs = torch.full((400, 500), 3.0)
    assert torch.equal(dropout(inputs), inputs)
    dropout.generator = torch.Generator().manual_seed(0)
    outputs = dropout(inputs)
    assert set(outputs.unique().tolist()) == {0.0, 4.0}
    assert outputs.mean().item() == pytest.approx(3.0, abs=0.02)


def test_ia3_has_nothing_to_drop():
    with pytest.raises(ValueError, match="remove dropout"):
        AdapterConfig(kind="ia3", dropout=0.1)


def test_initial_adapter_changes_nothing_and_is_drawn_from_the_seed(backbone, model, site):
    pixels = site.source.pixels(np.arange(3))
    torch.testing.assert_close(
        model.features(model.initial.adapter, pixels),
        backbone.model(pixels).last_hidden_state[:, 0],
    )
    again = AdaptedModel(backbone, AdapterConfig(rank=2), CLASSES, seed=0).initial
    other = AdaptedModel(backbone, AdapterConfig(rank=2), CLASSES, seed=1).initial
    assert torch.equal(again.adapter, model.initial.adapter)
    assert not torch.equal(other.adapter, model.initial.adapter)
    assert not torch.equal(other.head, model.initial.head)


@pytest.mark.parametrize(
    ("targets", "rank"),
    [(("query",), 4), (("query", "key", "value", "output"), 1), (("mlp_in", "mlp_out"), 3)],
)
def test_any_targets_and_rank(backbone, targets, rank):
    layout = AdaptedModel(backbone, AdapterConfig(rank=rank, targets=targets), 3, 0).layout
    width, inner = backbone.feature_dim, backbone.model.config.intermediate_size
    per_target = {"mlp_in": width + inner, "mlp_out": width + inner}
    expected = rank * sum(per_target.get(target, 2 * width) for target in targets)
    assert (layout.num_layers, layout.adapter_dim) == (backbone.num_layers, expected)


def test_the_papers_communicated_parameters():
    """ViT-B/16 with rank 2 on query and value: 12 · 2 · 2 · (768 + 768) = 73,728."""
    with torch.device("meta"):
        vit = load_backbone_shape()
    layout = AdapterLayout.of(vit)
    assert layout.num_layers * layout.adapter_dim == 73_728


def load_backbone_shape():
    from transformers import ViTConfig, ViTModel

    vit = ViTModel(ViTConfig(), add_pooling_layer=False).requires_grad_(False)
    inject_adapter_in_model(peft_config(AdapterConfig(rank=2), 12), vit)
    return vit


def test_heads_with_a_rate_of_their_own_move_as_by_sgd_with_two_rates(model, site):
    """Against torch's SGD with a parameter group each."""
    lr, head_lr, start = 0.02, 0.004, model.initial
    adapter, head = (x.clone().requires_grad_() for x in (start.adapter, start.head))
    sgd = torch.optim.SGD([{"params": [adapter]}, {"params": [head], "lr": head_lr}], lr=lr)
    reference = site.task(1, "train")
    for batch in reference.batches(1):
        inputs, labels = reference.examples(batch)
        logits = model.classify(head, model.features(adapter, inputs))
        sgd.zero_grad()
        nn.functional.cross_entropy(logits, labels).backward()
        sgd.step()

    rates = {"lr": lr, "head_lr": head_lr, "rate_units": "plain"}
    moved = trained(site.task(1, "train"), start, **rates)

    assert (moved.adapter - start.adapter).abs().max() > 1e-3
    assert (moved.head - start.head).abs().max() > 1e-3
    torch.testing.assert_close(moved.adapter, adapter, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(moved.head, head, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.join_head(*model.split_head(moved.head)), moved.head)
