"""Every family of text encoders, by the generic path: what transformers and PEFT alone compute."""

import json
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import cross_entropy, linear
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.text_encoder import load_text_encoder
from pfedseq.workloads.personal import PersonalModel
from pfedseq.workloads.text.reader import TextReader
from tests.model.some_models import some_phi
from tests.model.tiny_text_models import COMMON, FAMILIES, SIZES, tokenizer, write_text_model

TEXTS = ["so goal", "bread soup so cheese salt moon", "star", "rain ball so so team"]
LABELS = torch.tensor([0, 1, 2, 0])
NAMES = ("food", "sky", "sport")


@pytest.fixture(scope="module", params=[*FAMILIES])
def folder(request, tmp_path_factory):
    return write_text_model(request.param, tmp_path_factory.mktemp(request.param))


def adapter(folder, **options):
    fused = "modernbert" in folder
    return AdapterConfig(targets=("qkv",) if fused else ("query", "value"), **options)


def every_adapter(folder):
    fused = ("qkv",) if "modernbert" in folder else ("query", "key")
    return [
        AdapterConfig(targets=(*fused, "output", "mlp_in", "mlp_out"), alpha=4.0),
        AdapterConfig(targets=fused, layers="last 1", rank=3),
        AdapterConfig(kind="dora", targets=(*fused, "mlp_out")),
        AdapterConfig(kind="ia3", targets=(*fused, "mlp_out"), layers=(1, 2)),
    ]


def inputs_of(encoder, texts=TEXTS):
    reader = TextReader(encoder, 12)
    return reader.inputs([reader.read(("", text)) for text in texts], torch.device("cpu"))


def mean_of(model, folder, texts=TEXTS):
    """transformers' own outputs, averaged over each text by itself."""
    tokenizer, found = AutoTokenizer.from_pretrained(folder), []
    for text in texts:
        found.append(model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0))
    return torch.stack(found)


def test_features_are_transformers_own(folder):
    encoder = load_text_encoder(folder)
    model = AdaptedModel(encoder, adapter(folder), 3, seed=0)
    with torch.no_grad():
        theirs = mean_of(AutoModel.from_pretrained(folder).eval(), folder)
    ours = model.features(model.initial.adapter, inputs_of(encoder))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_cut_stacked_and_merged_features_agree(folder):
    encoder = load_text_encoder(folder)
    for config in every_adapter(folder):
        model = AdaptedModel(encoder, config, 3, seed=0)
        phis = [some_phi(model, seed) for seed in range(2)]
        mine = [inputs_of(encoder, TEXTS[:1]), inputs_of(encoder, TEXTS[1:])]
        assert mine[0].shape[1] < mine[1].shape[1]
        first = config.layers_of(3)[0]
        assert (model.prefix is None) == (first == 0)
        if first:
            assert model.prefix.num_layers == first
            given = model.inputs(mine[1])
            assert given.shape == (*mine[1].shape, 33)
            assert torch.equal(given[..., -1].long(), (mine[1] != encoder.padding).long())
        ready = [model.inputs(own) for own in mine]
        alone = [model.features(phi.adapter, own) for phi, own in zip(phis, ready, strict=True)]
        for phi, own, features in zip(phis, ready, alone, strict=True):
            torch.testing.assert_close(model.merged(phi.adapter)(own), features)
        adapters = torch.stack([phi.adapter for phi in phis]).requires_grad_()
        together = model.stacked.features(adapters, encoder.join(ready), [1, 3])
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
        (slopes,) = torch.autograd.grad(together.square().sum(), adapters)
        for phi, own, slope in zip(phis, ready, slopes, strict=True):
            theta = phi.adapter.detach().requires_grad_()
            (expected,) = torch.autograd.grad(model.features(theta, own).square().sum(), theta)
            torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_plain_peft(folder):
    encoder, config = load_text_encoder(folder), adapter(folder, rank=2, alpha=6.0)
    model = AdaptedModel(encoder, config, 3, seed=0)
    phi = some_phi(model)
    theirs = get_peft_model(
        AutoModel.from_pretrained(folder),
        LoraConfig(
            r=2,
            lora_alpha=6.0,
            target_modules=[encoder.places.modules[target] for target in config.targets],
        ),
    ).eval()
    named = {
        name.removeprefix("model."): value
        for name, value in model.layout.unflatten(phi.adapter).items()
    }
    plain = dict(theirs.base_model.model.named_parameters())
    with torch.no_grad():
        for name, value in named.items():
            plain[name].copy_(value)
    weight, bias = model.split_head(phi.head)
    loss = cross_entropy(linear(mean_of(theirs, folder), weight, bias), LABELS)
    slopes = torch.autograd.grad(loss, [plain[name] for name in named])
    expected = model.layout.flatten(
        {f"model.{name}": slope for name, slope in zip(named, slopes, strict=True)}
    )
    theta = phi.adapter.detach().requires_grad_()
    logits = model.classify(phi.head, model.features(theta, inputs_of(encoder)))
    (found,) = torch.autograd.grad(cross_entropy(logits, LABELS), theta)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_saved_model_is_read_back_and_by_peft_alone(folder, tmp_path):
    encoder = load_text_encoder(folder)
    for number, config in enumerate(every_adapter(folder)):
        model = AdaptedModel(encoder, config, 3, seed=0)
        phi, place = some_phi(model), tmp_path / str(number)
        saved = PersonalModel(model, phi, NAMES, TextReader(encoder, 12), {"client": "anna"})
        saved.save(place)
        loaded = PersonalModel.load(place)
        assert (loaded.class_names, loaded.about) == (NAMES, {"client": "anna"})
        assert loaded.reader.max_tokens == 12
        assert torch.equal(loaded.phi.adapter, phi.adapter)
        assert PersonalModel.load(place, loaded.model).model is loaded.model
        shares = loaded.predict([loaded.read(("", text)) for text in TEXTS])
        plain = AutoModel.from_pretrained(folder)
        theirs = PeftModel.from_pretrained(plain, place).eval()
        with torch.no_grad():
            logits = linear(mean_of(theirs, folder), *model.split_head(phi.head))
        torch.testing.assert_close(shares, logits.softmax(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max"])
def test_pooling(folder, pooling):
    encoder = load_text_encoder(folder, pooling)
    model = AdaptedModel(encoder, adapter(folder), 3, seed=0)
    tokenizer, plain = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        outputs = [
            plain.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            for text in TEXTS
        ]
    expected = {
        "mean": [o.mean(0) for o in outputs],
        "first": [o[0] for o in outputs],
        "last": [o[-1] for o in outputs],
        "max": [o.amax(0) for o in outputs],
    }[pooling]
    ours = model.features(model.initial.adapter, inputs_of(encoder))
    torch.testing.assert_close(ours, torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_sentence_transformers_say_how_they_pool(folder, tmp_path):
    sentences = tmp_path / "sentences"
    shutil.copytree(folder, sentences)
    (sentences / "1_Pooling").mkdir()

    def say(**modes):
        said = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False, **modes}
        (sentences / "1_Pooling" / "config.json").write_text(json.dumps(said))

    say(pooling_mode_cls_token=True)
    assert load_text_encoder(str(sentences)).pooling == "first"
    assert load_text_encoder(str(sentences), "max").pooling == "max"
    say(pooling_mode_weightedmean_tokens=True)
    with pytest.raises(InputError, match="pools by pooling_mode_weightedmean_tokens"):
        load_text_encoder(str(sentences))
    say()
    assert load_text_encoder(str(sentences)).pooling == "mean"


def test_targets_that_a_family_has_not_are_refused(tmp_path):
    encoder = load_text_encoder(write_text_model("modernbert", tmp_path))
    with pytest.raises(InputError, match=r"'query', which the blocks of ModernBERT.*from qkv"):
        AdaptedModel(encoder, AdapterConfig(), 3, seed=0)


def test_the_longest_text_of_each_family(folder):
    """RoBERTa counts positions from behind its padding token."""
    encoder = load_text_encoder(folder)
    counted = any(name in folder for name in ("roberta", "mpnet"))
    assert encoder.most_tokens == (38 if counted else 40)
    model = AdaptedModel(encoder, adapter(folder), 3, seed=0)
    full = torch.from_numpy(encoder.tokenise(["goal " * 60], encoder.most_tokens))
    assert model.features(model.initial.adapter, full).isfinite().all()
    assert np.all(full.numpy() != encoder.padding)


def test_nothing_of_transformers_comes_on_the_screen(tmp_path, capfd, caplog):
    """A checkpoint with a pooler and a head for masked words, which the encoder does without."""
    with torch.random.fork_rng():
        whole = BertForMaskedLM(BertConfig(**COMMON, **SIZES))
    whole.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    capfd.readouterr()
    caplog.clear()
    load_text_encoder(str(tmp_path))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
