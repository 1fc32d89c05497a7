"""A saved personal model: transformers and PEFT alone, and we ourselves, get the same logits."""

import json
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTForImageClassification,
)

from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.peft_folder import read_peft_folder
from pfedseq.params import Params
from pfedseq.workloads import personal
from pfedseq.workloads.images.published import write_backbone, write_merged
from pfedseq.workloads.personal import PersonalModel
from tests.model.some_models import NAMES, personal_model, some_phi
from tests.model.timm_vit import timm_tensors
from tests.model.whole_model import load_with_peft

ADAPTERS = [
    AdapterConfig(),
    AdapterConfig(rank=1, alpha=3.0, targets=("query",)),
    AdapterConfig(rank=5, alpha=16.0, targets=("key", "value", "output")),
    AdapterConfig(rank=3, alpha=2.0, targets=("mlp_out", "mlp_in"), dropout=0.1),
    AdapterConfig(layers="last 2", rank=4, alpha=8.0),
    AdapterConfig(layers=(0, 2), targets=("query", "mlp_out")),
    AdapterConfig(kind="dora", rank=2, alpha=6.0),
    AdapterConfig(kind="dora", rank=3, targets=("output", "mlp_in"), layers=(1, 3)),
    AdapterConfig(kind="ia3", targets=("key", "value", "mlp_out")),
    AdapterConfig(kind="ia3", targets=("query", "mlp_in"), layers="last 1"),
]


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("demo")


@pytest.fixture(scope="module")
def base(backbone, tmp_path_factory):
    folder = tmp_path_factory.mktemp("backbone") / "vit"
    write_backbone(backbone, folder)
    return folder


def some_pixels(size=32):
    return torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(1))


def described(config):
    return f"{config.kind}-{config.rank}-{'+'.join(config.targets)}-{config.layers}"


@pytest.mark.parametrize("config", ADAPTERS, ids=described)
def test_peft_gives_the_logits_of_our_own_evaluation(config, backbone, base, tmp_path):
    model = AdaptedModel(backbone, config, len(NAMES), seed=0)
    phi, pixels = some_phi(model), some_pixels()
    personal_model(model, phi, NAMES).save(tmp_path / "a")
    own = model.classify(phi.head, model.merged(phi.adapter)(model.inputs(pixels)))
    with torch.no_grad():
        theirs = load_with_peft(base, tmp_path / "a", len(NAMES))(pixel_values=pixels).logits
    torch.testing.assert_close(theirs, own, rtol=1e-4, atol=1e-4)
    initial = Params(model.initial.adapter, phi.head)
    without = model.classify(initial.head, model.merged(initial.adapter)(model.inputs(pixels)))
    assert not torch.allclose(own, without, rtol=1e-2, atol=1e-2), "the adapter matters"


@pytest.mark.parametrize("config", ADAPTERS, ids=described)
def test_loading_gives_back_every_number(config, backbone, tmp_path):
    model = AdaptedModel(backbone, config, len(NAMES), seed=0)
    phi = some_phi(model)
    personal_model(model, phi, NAMES, (3.0, 900.0), client="mill", number=2).save(tmp_path / "a")
    loaded = PersonalModel.load(tmp_path / "a")
    assert torch.equal(loaded.phi.adapter, phi.adapter)
    assert torch.equal(loaded.phi.head, phi.head)
    assert loaded.class_names == NAMES
    assert loaded.reader.window == (3.0, 900.0)
    assert loaded.about == {"client": "mill", "number": 2}
    pixels = some_pixels()
    torch.testing.assert_close(
        loaded.logits(pixels), personal_model(model, phi, NAMES).logits(pixels), rtol=0, atol=0
    )
    again = PersonalModel.load(tmp_path / "a", loaded.model)
    assert again.model is loaded.model, "the backbone is loaded once"


def test_merged_checkpoint_gives_the_same_logits(backbone, tmp_path):
    for config in ADAPTERS[4], ADAPTERS[6], ADAPTERS[8]:
        model = AdaptedModel(backbone, config, len(NAMES), seed=0)
        one = personal_model(model, some_phi(model), NAMES)
        write_merged(one, tmp_path / "merged")
        theirs = AutoModelForImageClassification.from_pretrained(tmp_path / "merged").eval()
        with torch.no_grad():
            logits = theirs(some_pixels()).logits
        torch.testing.assert_close(logits, one.logits(some_pixels()), rtol=1e-4, atol=1e-4)
        assert theirs.config.id2label == dict(enumerate(NAMES))
        assert theirs.config.label2id["eel"] == 4


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_a_timm_file_at_another_size_is_written_for_transformers(qkv_bias, tmp_path):
    """Heads of another width, interpolated positions: all that others could not guess."""
    save_file(timm_tensors(qkv_bias=qkv_bias), tmp_path / "vit.safetensors")
    source = load_backbone(str(tmp_path / "vit.safetensors"), 48, num_heads=4, mean="imagenet")
    model = AdaptedModel(source, AdapterConfig(rank=3), len(NAMES), seed=0)
    one, pixels = personal_model(model, some_phi(model), NAMES), some_pixels(48)
    one.save(tmp_path / "out" / "mill", base="../vit")
    write_backbone(source, tmp_path / "out" / "vit")
    with torch.no_grad():
        theirs = load_with_peft(tmp_path / "out" / "vit", tmp_path / "out" / "mill", len(NAMES))
        logits = theirs(pixel_values=pixels).logits
    torch.testing.assert_close(logits, one.logits(pixels), rtol=1e-4, atol=1e-4)
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "out", moved)
    (tmp_path / "vit.safetensors").unlink()
    loaded = PersonalModel.load(moved / "mill")
    assert loaded.model.encoder.mean == source.mean
    torch.testing.assert_close(loaded.logits(pixels), one.logits(pixels), rtol=1e-6, atol=1e-6)


def test_the_processor_makes_the_pixels_that_the_model_was_tuned_on(tmp_path):
    source = load_backbone("demo", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    model = AdaptedModel(source, AdapterConfig(), len(NAMES), seed=0)
    one = personal_model(model, model.initial, NAMES)
    one.save(tmp_path / "a")
    shades = np.random.default_rng(0).integers(0, 256, (50, 41, 3), dtype=np.uint8)
    Image.fromarray(shades).save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png")
    theirs = AutoImageProcessor.from_pretrained(tmp_path / "a")(image, return_tensors="pt")
    own = one.inputs([one.read(("a.png", (tmp_path / "a.png").read_bytes()))])
    torch.testing.assert_close(own, theirs["pixel_values"], rtol=1e-5, atol=1e-5)


def test_predictions_are_probabilities_over_several_batches(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(personal, "PREDICTION_BATCH", 2)
    model = AdaptedModel(backbone, AdapterConfig(), len(NAMES), seed=0)
    one = personal_model(model, some_phi(model), NAMES)
    rng = np.random.default_rng(0)
    images = list(rng.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8))
    shares = one.predict(images)
    assert shares.shape == (5, len(NAMES))
    torch.testing.assert_close(shares.sum(1), torch.ones(5))
    torch.testing.assert_close(shares[4:], one.logits(one.inputs(images[4:])).softmax(1))
    assert one.predict([]).shape == (0, len(NAMES))


def test_other_peoples_adapters_are_read(backbone, base, tmp_path):
    """Trained and saved by PEFT itself: √-scaled, on two layers chosen by a pattern."""
    theirs = ViTForImageClassification.from_pretrained(base, num_labels=3)
    config = LoraConfig(
        r=4,
        lora_alpha=6,
        use_rslora=True,
        target_modules=r".*layers\.[13]\.(attention\.q_proj|mlp\.fc1)",
        modules_to_save=["classifier"],
        init_lora_weights=False,
    )
    wrapped = get_peft_model(theirs, config).eval()
    wrapped.save_pretrained(tmp_path / "theirs")
    loaded = PersonalModel.load(tmp_path / "theirs")
    adapter = loaded.model.adapter_config
    assert (adapter.layers, adapter.targets, adapter.rank) == ((1, 3), ("query", "mlp_in"), 4)
    assert adapter.alpha == pytest.approx(12)
    with torch.no_grad():
        expected = wrapped(pixel_values=some_pixels()).logits
    torch.testing.assert_close(loaded.logits(some_pixels()), expected, rtol=1e-4, atol=1e-4)
    assert loaded.class_names == ("0", "1", "2")


def test_names_before_transformers_5_are_known(backbone, tmp_path):
    config = AdapterConfig(targets=("query", "key", "value", "output", "mlp_in", "mlp_out"))
    model = AdaptedModel(backbone, config, len(NAMES), seed=0)
    phi = some_phi(model)
    personal_model(model, phi, NAMES).save(tmp_path / "a")
    old = {
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    renamed = {}
    for name, tensor in load_file(tmp_path / "a/adapter_model.safetensors").items():
        for new, former in old.items():
            name = name.replace(f".{new}.", f".{former}.")
        renamed[name.replace("vit.layers.", "vit.encoder.layer.")] = tensor
    assert "base_model.model.vit.encoder.layer.0.output.dense.lora_A.weight" in renamed
    save_file(renamed, tmp_path / "a/adapter_model.safetensors")
    assert torch.equal(PersonalModel.load(tmp_path / "a").phi.adapter, phi.adapter)


@pytest.fixture
def saved(backbone, tmp_path):
    model = AdaptedModel(backbone, AdapterConfig(), len(NAMES), seed=0)
    personal_model(model, some_phi(model), NAMES).save(tmp_path / "a")
    return tmp_path / "a"


def change(path, **values):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | values))


def rewrite(saved, change_tensors):
    file = saved / "adapter_model.safetensors"
    tensors = load_file(file)
    change_tensors(tensors)
    save_file(tensors, file)


HEAD = "base_model.model.classifier."
QUERY = "base_model.model.vit.layers.0.attention.q_proj.lora_A.weight"


def test_bad_folders_get_a_sentence(saved, tmp_path):
    config, weights = saved / "adapter_config.json", saved / "adapter_model.safetensors"
    before = {path: path.read_bytes() for path in saved.iterdir()}

    def refused(pattern):
        with pytest.raises(InputError, match=pattern):
            PersonalModel.load(saved)
        for path, content in before.items():
            path.write_bytes(content)

    config.unlink()
    refused("is not a PEFT adapter: it has no adapter_config.json")
    config.write_text("[1]")
    refused("should hold a JSON object, not a list")
    change(config, peft_type="VERA")
    refused("of type 'VERA': only LORA and IA3 are supported")
    change(config, rank_pattern={"x": 3})
    refused(r"rank_pattern = \{'x': 3\}: every layer must carry the same")
    change(config, bias="all")
    refused("bias = 'all'")
    weights.unlink()
    refused("has no adapter_model.safetensors: save the adapter with safe_serialization")
    weights.write_bytes(before[weights][:-100])
    refused("is not a complete safetensors file")
    rewrite(saved, lambda t: t.pop(HEAD + "bias"))
    refused("only the weight or only the bias of a classifier")
    rewrite(saved, lambda t: [t.pop(HEAD + "bias"), t.pop(HEAD + "weight")])
    refused("has no head, without which an adapter cannot predict classes")
    pooler = "base_model.model.vit.pooler.dense.lora_A.weight"
    rewrite(saved, lambda t: t.update({pooler: t[QUERY].clone()}))
    refused(f"'{pooler}' that belongs to no adapter")
    rewrite(saved, lambda t: t.update({QUERY: t[QUERY][:, :7].contiguous()}))
    refused("has shape")
    rewrite(saved, lambda t: t.pop(QUERY))
    refused("adapter weights are missing|differs from layer")
    change(saved / "personal_model.json", class_names=["only one"])
    refused("1 class names for a head of 5 classes")
    (saved / "personal_model.json").write_text("{")
    refused("personal_model.json is not readable")
    change(saved / "personal_model.json", backbone={"name": "no/such/folder/anywhere"})
    refused("is neither an existing folder nor a hub id")
    assert PersonalModel.load(saved).class_names == NAMES


def test_an_adapter_for_another_backbone_is_refused(saved, tmp_path):
    change(saved / "personal_model.json", backbone={"name": "random:vit-tiny"})
    with pytest.raises(InputError, match=r"adapter weight.*(missing|shape)"):
        PersonalModel.load(saved)


def test_reading_tells_layers_and_targets_from_the_weights(saved):
    read = read_peft_folder(saved)
    assert read.adapter.layers == (0, 1, 2, 3)
    assert read.adapter.targets == ("query", "value")
    assert read.base == "demo"


def test_a_photo_is_answered_alike_as_bytes_and_as_floats(backbone):
    model = AdaptedModel(backbone, AdapterConfig(), len(NAMES), seed=0)
    own = personal_model(model, some_phi(model), NAMES)
    photos = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    expected = own.predict(list(photos))
    for kind in (np.float32, np.float64):
        torch.testing.assert_close(own.predict(list((photos / 255).astype(kind))), expected)
    assert not torch.allclose(own.predict(list(photos // 255)), expected), "pixels matter"


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (np.full((3, 32, 32), 200.0), "floats from 200 to 200"),
        (np.full((3, 32, 32), -0.5), "between 0 and 1"),
        (np.full((3, 32, 32), np.nan), "between 0 and 1"),
        (np.zeros((3, 32, 32), dtype=np.int64), "images of int64"),
        (np.zeros((32, 32, 3), dtype=np.uint8), r"\(3, 32, 32\) is needed"),
    ],
)
def test_other_pixels_are_refused_in_a_sentence(pixels, said, backbone):
    model = AdaptedModel(backbone, AdapterConfig(), len(NAMES), seed=0)
    with pytest.raises(InputError, match=said):
        personal_model(model, some_phi(model), NAMES).predict([pixels])
