"""Every family of causal models: what transformers and PEFT alone compute."""

import json
from math import exp

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from pfedseq.data.dataset import Dialogue, Turn
from pfedseq.errors import InputError
from pfedseq.measures import MEASURES
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.language_model import Encoded, load_language_model
from pfedseq.model.readout import PADDING, PREDICTED, READ, FrozenHead
from pfedseq.workloads.dialogue.published import write_merged
from pfedseq.workloads.dialogue.reader import DialogueReader
from pfedseq.workloads.dialogue.source import DialogueSource, fit, row
from pfedseq.workloads.personal import PersonalModel
from tests.model.some_models import some_phi
from tests.model.tiny_language_models import FAMILIES, NUMBER, write_language_model

CPU = torch.device("cpu")
TARGETS = ("query", "key", "value", "output", "mlp_gate", "mlp_in", "mlp_out")
DIALOGUES = [
    Dialogue((Turn("user", "bread soup"),), "yes indeed"),
    Dialogue((Turn("user", "star"),), "maybe later friend sun"),
    Dialogue((), "rain salt rain salt"),
    Dialogue((Turn("system", "moon"), Turn("user", "sun sun star")), "nope"),
]


@pytest.fixture(scope="module", params=[*FAMILIES])
def folder(request, tmp_path_factory):
    return write_language_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load_language_model(write_language_model("llama", tmp_path_factory.mktemp("llama")))


def every_adapter():
    return [
        AdapterConfig(targets=TARGETS, alpha=4.0),
        AdapterConfig(targets=("query", "value"), layers="last 1", rank=3),
        AdapterConfig(kind="dora", targets=("query", "mlp_out"), layers=(1, 2)),
        AdapterConfig(kind="ia3", targets=("key", "mlp_out")),
    ]


def source_of(encoder, dialogues=DIALOGUES):
    return DialogueSource.of(dialogues, encoder, 20, CPU)


def batch_of(encoder, dialogues=DIALOGUES):
    source, places = source_of(encoder, dialogues), torch.arange(len(dialogues)).numpy()
    return source.inputs(places), source.labels(places)


def logits_of(plain, encoder, dialogues=DIALOGUES):
    """transformers' own (n, V) for every answer's tokens, each dialogue by itself, unpadded."""
    found = []
    for dialogue in dialogues:
        before, answer = encoder.encode(dialogue)
        logits = plain(torch.tensor([before + answer])).logits[0]
        found.append(logits[len(before) - 1 : -1])
    return torch.cat(found)


def test_logits_are_transformers_own(folder):
    encoder = load_language_model(folder)
    inputs, labels = batch_of(encoder)
    expected = [number for one in DIALOGUES for number in encoder.encode(one).answer]
    assert labels.tolist() == expected
    for config in (AdapterConfig(), AdapterConfig(layers="last 1")):
        model = AdaptedModel(encoder, config, 0, seed=0)
        assert model.initial.head.shape == (0,)
        features = model.features(model.initial.adapter, model.inputs(inputs))
        assert model.readout.count(inputs) == len(labels) == len(features)
        with torch.no_grad():
            plain = AutoModelForCausalLM.from_pretrained(folder).eval()
            theirs = logits_of(plain, encoder)
        ours = model.classify(model.initial.head, features)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_cut_stacked_and_merged_features_agree(folder):
    encoder = load_language_model(folder)
    for config in every_adapter():
        model = AdaptedModel(encoder, config, 0, seed=0)
        phis = [some_phi(model, seed) for seed in range(2)]
        mine = [batch_of(encoder, some)[0] for some in (DIALOGUES[2:3], DIALOGUES[:2])]
        assert mine[0].shape[1] < mine[1].shape[1]
        first = config.layers_of(3)[0]
        assert (model.prefix is None) == (first == 0 or "sliding" in folder)
        ready = [model.inputs(own) for own in mine]
        if model.prefix is not None:
            assert ready[1].shape == (*mine[1].shape[:2], 33)
            assert torch.equal(ready[1][..., -1].long(), mine[1][..., 1])
        alone = [model.features(phi.adapter, own) for phi, own in zip(phis, ready, strict=True)]
        for phi, own, features in zip(phis, ready, alone, strict=True):
            torch.testing.assert_close(model.merged(phi.adapter)(own), features)
        adapters = torch.stack([phi.adapter for phi in phis]).requires_grad_()
        together = model.stacked.features(adapters, encoder.join(ready), [1, 2])
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
        (slopes,) = torch.autograd.grad(together.square().sum(), adapters)
        for phi, own, slope in zip(phis, ready, slopes, strict=True):
            theta = phi.adapter.detach().requires_grad_()
            (expected,) = torch.autograd.grad(model.features(theta, own).square().sum(), theta)
            torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_plain_peft(folder):
    encoder = load_language_model(folder)
    config = AdapterConfig(targets=TARGETS, rank=2, alpha=6.0)
    model = AdaptedModel(encoder, config, 0, seed=0)
    phi, (inputs, labels) = some_phi(model), batch_of(encoder)
    modules = [encoder.places.modules[target] for target in TARGETS]
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder),
        LoraConfig(r=2, lora_alpha=6.0, target_modules=modules, task_type="CAUSAL_LM"),
    ).eval()
    named = model.layout.unflatten(phi.adapter)
    plain = dict(theirs.base_model.model.named_parameters())
    with torch.no_grad():
        for name, value in named.items():
            plain[name].copy_(value)
    loss = cross_entropy(logits_of(theirs, encoder), labels)
    slopes = torch.autograd.grad(loss, [plain[name] for name in named])
    expected = model.layout.flatten(dict(zip(named, slopes, strict=True)))
    theta = phi.adapter.detach().requires_grad_()
    ours = cross_entropy(model.classify(phi.head, model.features(theta, inputs)), labels)
    torch.testing.assert_close(ours, loss)
    (found,) = torch.autograd.grad(ours, theta)
    assert (found - expected).norm() < 1e-3 * expected.norm()


def test_a_saved_model_is_read_back_and_by_peft_alone(folder, tmp_path):
    encoder = load_language_model(folder)
    for number, config in enumerate(every_adapter()):
        model = AdaptedModel(encoder, config, 0, seed=0)
        phi, place = some_phi(model), tmp_path / str(number)
        saved = PersonalModel(model, phi, (), DialogueReader(encoder, 20), {"client": "anna"})
        saved.save(place)
        said = json.loads((place / "adapter_config.json").read_text())
        assert (said["task_type"], said["base_model_name_or_path"]) == ("CAUSAL_LM", folder)
        assert said["modules_to_save"] is None
        if config.kind == "lora":
            last = {encoder.places.modules[t].split(".")[-1] for t in config.targets}
            assert said["target_modules"] == sorted(last)
            assert (said["r"], said["lora_alpha"]) == (config.rank, config.alpha)
        loaded = PersonalModel.load(place)
        assert (loaded.class_names, loaded.about) == ((), {"client": "anna"})
        assert (loaded.reader.max_tokens, loaded.reader.continues) == (20, False)
        assert torch.equal(loaded.phi.adapter, phi.adapter)
        assert PersonalModel.load(place, loaded.model).model is loaded.model
        ours = model.classify(
            phi.head, model.features(phi.adapter, model.inputs(batch_of(encoder)[0]))
        )
        plain = AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            theirs = logits_of(PeftModel.from_pretrained(plain, place).eval(), encoder)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        write_merged(saved, place / "merged")
        with torch.no_grad():
            whole = AutoModelForCausalLM.from_pretrained(place / "merged").eval()
            merged = logits_of(whole, encoder)
        torch.testing.assert_close(ours, merged, rtol=1e-4, atol=1e-4)
        (place / "personal_model.json").unlink()  # as somebody else would have saved it
        assert torch.equal(PersonalModel.load(place).phi.adapter, phi.adapter)


def test_the_answer_is_what_the_template_adds_to_the_prompt(llama):
    before, answer = llama.encode(DIALOGUES[0])
    assert before == [
        0,
        NUMBER["<user>"],
        NUMBER["bread"],
        NUMBER["soup"],
        2,
        NUMBER["<assistant>"],
    ]
    assert answer == [NUMBER["yes"], NUMBER["indeed"], 2]
    assert llama.encode_prompt(DIALOGUES[0]) == before


def test_without_a_template_the_answer_follows_the_prompt(tmp_path):
    plain = load_language_model(write_language_model("llama", tmp_path, template=None))
    before, answer = plain.encode(DIALOGUES[0])
    assert before == [0, NUMBER["bread"], NUMBER["soup"]]
    assert answer == [NUMBER["yes"], NUMBER["indeed"], 2]
    with pytest.raises(InputError, match="has no chat template, which messages need"):
        plain.encode(DIALOGUES[3])


def test_a_plain_text_is_learnt_from_its_second_token_on(llama):
    assert llama.encode(Dialogue((), "rain salt")) == ([0], [NUMBER["rain"], NUMBER["salt"], 2])
    assert llama.encode_beginning("rain") == [0, NUMBER["rain"]]


def test_templates_that_do_not_fit_are_refused(tmp_path):
    changed = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    other = load_language_model(write_language_model("llama", tmp_path / "a", template=changed))
    with pytest.raises(InputError, match="formats a prompt differently"):
        other.encode(DIALOGUES[0])
    strict = "{{ raise_exception('no system here') }}"
    other = load_language_model(write_language_model("llama", tmp_path / "b", template=strict))
    with pytest.raises(InputError, match="refuses a dialogue of system, user: no system here"):
        other.encode(DIALOGUES[3])


def test_rows_tell_what_is_predicted():
    """Of 5 6 | 7 8 the tokens after 6 and 7 are predicted: 7 and 8."""
    assert row(Encoded([5, 6], [7, 8])).tolist() == [
        [5, READ, 6],
        [6, PREDICTED, 7],
        [7, PREDICTED, 8],
    ]
    assert row(Encoded([], [7, 8, 9])).tolist() == [[7, PREDICTED, 8], [8, PREDICTED, 9]]


def test_long_dialogues_lose_their_beginning_first():
    whole = Encoded([1, 2, 3, 4], [5, 6, 7])
    assert fit(whole, 7) == whole
    assert fit(whole, 5) == ([3, 4], [5, 6, 7])
    assert fit(whole, 3) == ([4], [5, 6])
    assert fit(Encoded([], [5, 6, 7]), 2) == ([], [5, 6])


def test_padding_changes_nothing(llama):
    model = AdaptedModel(llama, AdapterConfig(), 0, seed=0)
    phi = some_phi(model)
    inputs, _ = batch_of(llama)
    longer = torch.nn.functional.pad(inputs, (0, 0, 0, 7), value=PADDING)
    ours, theirs = (model.features(phi.adapter, x) for x in (inputs, longer))
    torch.testing.assert_close(ours, theirs)


def test_a_frozen_head_scores_tokens():
    """Two tokens whose logits are rows of the weight: p = e²/(e² + 1) and 1/(e² + 1)."""
    head = FrozenHead(torch.tensor([[2.0], [0.0]]))
    found = head.score(
        torch.zeros(0), torch.ones(2, 1), torch.tensor([0, 1]), tuple(MEASURES), True
    )
    right = exp(2) / (exp(2) + 1)
    assert found["token_accuracy"] == 0.5
    assert found["perplexity"] == pytest.approx((right * (1 - right)) ** -0.5)
    assert set(found.values) == {"token_accuracy", "perplexity", "loss"}
    assert (found.num_examples, found.counts) == (2, None)


def test_what_is_no_language_model_is_refused(tmp_path):
    for name in ("demo", "random:vit-tiny"):
        with pytest.raises(InputError, match="is not a language model"):
            load_language_model(name)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"'bert', which reads texts, but the data are dialogues"):
        load_language_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(
        InputError, match="for dialogues choose one of Llama, Mistral, Qwen2, Qwen3"
    ):
        load_language_model(str(tmp_path))


def test_targets_that_the_blocks_have_not_are_refused(llama):
    with pytest.raises(InputError, match=r"'qkv', which the blocks of Llama do not have"):
        AdaptedModel(llama, AdapterConfig(targets=("qkv",)), 0, seed=0)
