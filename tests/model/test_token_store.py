"""The frozen layers below the first adapter: computed once, and the same bits as from pixels."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from pfedseq.config import make_config
from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.encoders.vit.tower import Tower
from pfedseq.model.task import ExampleSite
from pfedseq.model.token_store import AT_ONCE, Prefix, spoken
from pfedseq.params import Params
from pfedseq.runs.run import run
from pfedseq.workloads.images.auxiliary import auxiliary_images
from pfedseq.workloads.images.published import write_backbone
from pfedseq.workloads.images.source import ImageSource, with_tokens
from tests.model.some_models import personal_model
from tests.model.whole_model import load_with_peft

NUM_IMAGES = 12
USED = ClientData("0", np.array([1, 4, 5, 7]), np.array([8]), np.array([10, 2, 11]))


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("random:demo", 32, seed=3)


@pytest.fixture(scope="module")
def model(backbone):
    return AdaptedModel(backbone, AdapterConfig(layers="last 2", alpha=8.0), 5, seed=0)


@pytest.fixture
def source(backbone):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (NUM_IMAGES, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 5, NUM_IMAGES)
    images = ImageSet("noise", pixels, labels, tuple("abcde"), fingerprint="first")
    return ImageSource(images, backbone.mean, backbone.std, torch.device("cpu"))


def phi_of(model):
    rng = torch.Generator().manual_seed(3)
    initial = model.initial
    return Params(
        initial.adapter + 0.3 * torch.randn(initial.adapter.shape, generator=rng),
        initial.head + 0.3 * torch.randn(initial.head.shape, generator=rng),
    )


def kept(source, model, store, storage="float32", clients=(USED,), calls=None):
    def report(stage, done, total):
        if calls is not None:
            calls.append((done, total))

    return with_tokens(source, model.prefix, clients, storage, store, report)


def files(store, name):
    return sorted(store.glob(f"tokens/*/{name}"))


@pytest.mark.parametrize(
    ("layers", "depth", "expected"),
    [("all", 3, (0, 1, 2)), ("last 1", 3, (2,)), ("last 3", 3, (0, 1, 2)), ((0, 2), 3, (0, 2))],
)
def test_which_layers_are_adapted(layers, depth, expected):
    assert AdapterConfig(layers=layers).layers_of(depth) == expected


@pytest.mark.parametrize("layers", ["last 4", [0, 3]])
def test_layers_that_the_backbone_does_not_have_are_refused(layers):
    with pytest.raises(InputError, match=r"adapter.layers.*3 layers \(0 to 2\)"):
        AdapterConfig(layers=layers).layers_of(3)


@pytest.mark.parametrize("layers", ["last", "last 0", "first 2", [], [2, 1], [1, 1], [-1, 0]])
def test_layers_that_name_nothing_are_refused(layers):
    with pytest.raises(InputError, match=r"adapter.*'last N'"):
        make_config({"adapter": {"layers": layers}})


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
@pytest.mark.parametrize("layers", ["last 2", (1,), (0, 3), (2, 3)])
def test_features_are_those_of_peft_on_the_whole_backbone(kind, layers, backbone, source, tmp_path):
    """The same adapter saved and loaded by PEFT into a whole ViT; K is the number of layers."""
    targets = ("key", "value", "mlp_out")
    config = AdapterConfig(kind=kind, layers=layers, targets=targets, alpha=6.0)
    model = AdaptedModel(backbone, config, 5, seed=0)
    phi, pixels = phi_of(model), source.pixels(np.arange(4))
    assert len(phi.adapter) == (1 if layers == (1,) else 2)
    personal_model(model, phi, tuple("abcde")).save(tmp_path / "c")
    write_backbone(backbone, tmp_path / "base")
    peft_model = load_with_peft(tmp_path / "base", tmp_path / "c", 5).base_model.model
    expected = peft_model.vit(pixels).last_hidden_state[:, 0]
    actual = model.features(phi.adapter, model.inputs(pixels))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    merged = model.merged(phi.adapter)(model.inputs(pixels))
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-4)
    plain = backbone.model(pixels).last_hidden_state[:, 0]
    assert not torch.allclose(expected, plain, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("stored", ["on disk", "in memory"])
def test_stored_tokens_are_the_bits_that_come_from_the_pixels(stored, model, source, tmp_path):
    if stored == "in memory":
        source = replace(source, images=replace(source.images, fingerprint=None))
    fast, slow = kept(source, model, tmp_path), kept(source, model, tmp_path, "none")
    assert bool(files(tmp_path, "tokens.npy")) == (stored == "on disk")
    for batch in ([1, 4, 5, 7], [7, 2], [10]):
        expected = slow.inputs(np.array(batch))
        assert torch.equal(fast.inputs(np.array(batch)), expected)
        together = model.inputs(source.pixels(np.array(batch)))
        torch.testing.assert_close(expected, together, rtol=1e-4, atol=1e-5)
    assert not torch.equal(fast.inputs(np.array([1])), fast.inputs(np.array([4])))


def test_tokens_are_the_bits_that_each_image_has_alone(model, source, tmp_path):
    fast = kept(source, model, tmp_path)
    for index in USED.train:
        alone = model.prefix(source.pixels(np.array([index])))
        assert torch.equal(fast.inputs(np.array([index])), alone)


class RoundingLayers:
    """Frozen layers that round the place `unlike` of a batch differently: -1 is all, 99 none."""

    def __init__(self, unlike):
        self.unlike, self.sizes = unlike, []

    def __call__(self, pixels):
        self.sizes.append(len(pixels))
        tokens = pixels.flatten(2) + 1
        places = torch.arange(len(pixels))
        differ = (places == self.unlike) | torch.tensor(self.unlike == -1 and len(pixels) > 1)
        return tokens * (1 + 1e-6 * differ.view(-1, 1, 1))


@pytest.mark.parametrize(("unlike", "at_once"), [(9, 1), (-1, 1), (99, AT_ONCE)])
def test_images_share_a_batch_only_where_it_changes_no_bit(unlike, at_once):
    """37 images that share one shape: the last batch is filled up; else one by one."""
    tower = RoundingLayers(unlike)
    pixels = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    prefix = Prefix(tower, lambda some: pixels[some], torch.device("cpu"))
    assert prefix.at_once == at_once
    wanted = np.random.default_rng(0).permutation(40)[:37]
    tower.sizes.clear()
    streamed = list(prefix.stream(wanted))
    assert tower.sizes == [at_once] * -(-37 // at_once)
    assert [index for index, _ in streamed] == wanted.tolist()
    for (index, tokens), other in zip(streamed, prefix.each(wanted), strict=True):
        assert torch.equal(tokens, tower(pixels[index : index + 1])[0])
        assert torch.equal(tokens, other)


def test_half_precision_rounds(model, source, tmp_path):
    exact, half = kept(source, model, tmp_path), kept(source, model, tmp_path, "float16")
    expected = exact.inputs(USED.train).half().float()
    assert torch.equal(half.inputs(USED.train), expected)
    assert not torch.equal(expected, exact.inputs(USED.train))


def test_what_is_there_is_not_computed_again(model, source, tmp_path):
    calls = []
    kept(source, model, tmp_path, calls=calls)
    assert calls[-1] == (8, 8)
    calls.clear()
    kept(source, model, tmp_path, calls=calls)
    assert calls == []
    more = replace(USED, train=np.array([0, 1]))
    grown = kept(source, model, tmp_path, clients=(more,), calls=calls)
    assert calls == [(1, 1)]
    fresh = kept(source, model, tmp_path, "none")
    assert torch.equal(grown.inputs(np.array([0, 1])), fresh.inputs(np.array([0, 1])))


def test_damaged_tokens_are_computed_again(model, source, tmp_path):
    expected = kept(source, model, tmp_path).inputs(USED.train)
    (file,) = files(tmp_path, "tokens.npy")
    rows = np.load(file, mmap_mode="r+")
    rows[4, 0, 0] += 1
    rows.flush()
    calls = []
    assert torch.equal(kept(source, model, tmp_path, calls=calls).inputs(USED.train), expected)
    assert calls == [(1, 1)]
    for name in ("checksums.npy", "tokens.npy"):
        (file,) = files(tmp_path, name)
        file.write_bytes(file.read_bytes()[:50])
        calls.clear()
        again = kept(source, model, tmp_path, calls=calls)
        assert torch.equal(again.inputs(USED.train), expected)
        assert calls[-1] == (8, 8)


def test_everything_that_tokens_depend_on_has_a_store_of_its_own(backbone, model, source, tmp_path):
    kept(source, model, tmp_path)
    others = [
        replace(source, mean=(0.4, 0.5, 0.5)),
        replace(source, std=(0.4, 0.5, 0.5)),
        replace(source, images=replace(source.images, fingerprint="second")),
    ]
    for count, other in enumerate(others, 2):
        kept(other, model, tmp_path)
        assert len(files(tmp_path, "tokens.npy")) == count
    deeper = AdaptedModel(backbone, AdapterConfig(layers=(3,)), 5, seed=0)
    same = AdaptedModel(backbone, AdapterConfig(layers=(2,), rank=4), 3, seed=1)
    kept(source, deeper, tmp_path)
    assert len(files(tmp_path, "tokens.npy")) == 5
    kept(source, same, tmp_path)
    assert len(files(tmp_path, "tokens.npy")) == 5, "the adapter itself changes nothing below it"


def test_every_weight_of_the_frozen_layers_is_in_the_fingerprint(backbone):
    vit = copy.deepcopy(backbone.model)
    first = Tower(vit, 0, 2).checksum()
    assert Tower(copy.deepcopy(vit), 0, 2).checksum() == first
    for name, weight in Tower(vit, 0, 2).named_parameters():
        with torch.no_grad():
            weight.view(-1)[-1] += 1e-3
        assert Tower(vit, 0, 2).checksum() != first, name
        with torch.no_grad():
            weight.copy_(dict(Tower(backbone.model, 0, 2).named_parameters())[name])
    vit.config.layer_norm_eps *= 2
    assert Tower(vit, 0, 2).checksum() != first


def test_two_that_fill_at_the_same_time_end_with_the_same(model, source, tmp_path):
    clients = [replace(USED, train=np.array(train)) for train in ([0, 1, 2], [2, 3, 4, 5])]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda c: kept(source, model, tmp_path, clients=(c,)), clients))
    slow = kept(source, model, tmp_path, "none")
    for result, client in zip(both, clients, strict=True):
        assert torch.equal(result.inputs(client.train), slow.inputs(client.train))
    calls = []
    kept(source, model, tmp_path, clients=clients, calls=calls)
    assert calls == []


def test_a_full_disk_is_said_before_it_is_full(model, source, tmp_path, monkeypatch):
    from pfedseq.model import token_store

    monkeypatch.setattr(
        token_store.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})
    )
    with pytest.raises(InputError, match=r"GB free.*model.tokens"):
        kept(source, model, tmp_path)


def test_a_task_starts_from_the_tokens(model, source, tmp_path):
    """Gradients, losses, scores, the head phase; sketches still come from pixels."""
    fast, slow = (
        ExampleSite(0, model, s, USED, batch_size=3, seed=0).task(1, "train")
        for s in (kept(source, model, tmp_path), kept(source, model, tmp_path, "none"))
    )
    phi, batch = phi_of(model), torch.tensor([3, 0, 2])
    for part in ("both", "adapter", "head"):
        a, b = fast.grad(phi, batch, part), slow.grad(phi, batch, part)
        assert torch.equal(a.adapter, b.adapter)
        assert torch.equal(a.head, b.head)
    assert fast.loss(phi, batch) == slow.loss(phi, batch)
    assert fast.score(phi, "test") == slow.score(phi, "test")
    pixels, labels = fast.sketches(batch)
    assert torch.equal(pixels, source.pixels(USED.train[[3, 0, 2]]))
    assert torch.equal(labels, source.labels(USED.train[[3, 0, 2]]))


def test_auxiliary_images_go_through_the_frozen_layers_once(model, source):
    auxiliary = auxiliary_images(model, source, 32, seed=0)
    (batch,) = auxiliary.batches(1, 1, 4)
    assert batch.shape == (4, 65, 96)
    phi = phi_of(model)
    whole = auxiliary_images(
        AdaptedModel(load_backbone("random:demo", 32, seed=3), AdapterConfig(), 5, 0), source, 32, 0
    )
    (pixels,) = whole.batches(1, 1, 4)
    expected = model.classify(phi.head, model.features(phi.adapter, model.inputs(pixels)))
    torch.testing.assert_close(auxiliary.logits([phi], batch)[0], expected)


@pytest.mark.parametrize("name", ["pfedseq", "pefll", "perada", "fedrep"])
def test_a_run_is_the_same_with_and_without_kept_tokens(name, tmp_path):
    def lines(tokens):
        config = make_config(
            {
                "run": {"methods": [name], "rounds": 2},
                "data": {"name": "digits", "num_clients": 3, "max_images_per_client": 24},
                "auxiliary": {"num_images": 8},
                "model": {"backbone": "random:demo", "tokens": tokens},
                "adapter": {"layers": "last 2", "alpha": 16},
                "training": {"lr": 0.05, "batch_size": 6},
                "engine": {"device": "cpu"},
                "methods": {"perada": {"distillation_steps": 2}} if name == "perada" else {},
            }
        )
        run(config, tmp_path / tokens)
        records = (tmp_path / tokens / "metrics.jsonl").read_text().splitlines()
        return [
            {k: v for k, v in json.loads(line).items() if not k.endswith("_seconds")}
            for line in records
        ]

    assert lines("float32") == lines("none")


def test_long_work_is_told_of(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pfedseq.model.token_store.time.monotonic", lambda: now[0])
    report = spoken()
    for second in range(30):
        now[0] = float(second)
        report("computing", second, 2000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "pfedseq: computing: 2 of 2,000 images"
    assert len(lines) == 3, "every ten seconds"
    now[0] = 0.0
    spoken()("computing", 1, 1)
    assert capsys.readouterr().err == ""
