"""Text classification: the features are transformers' own, and every method runs on them."""

import csv
import json

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from torch.nn.functional import cross_entropy, linear
from transformers import BertConfig, BertModel, BertTokenizerFast

from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.text_encoder import load_text_encoder
from pfedseq.params import Params
from pfedseq.runs.run import run
from pfedseq.runs.world import World
from tests.every_method import OPTIONS, every_method
from tests.toys import trained

WORDS = {"sport": "goal match team ball", "food": "bread soup cheese salt", "sky": "star moon rain"}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "so", *" ".join(WORDS.values()).split()]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """Three clients' notes; each has words of the three classes, and one class more often."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("notes") / "notes.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "label", "text"])
        for i, client in enumerate(("anna", "bob", "chen")):
            for _ in range(24):
                label = [*WORDS][i] if rng.random() < 0.5 else rng.choice([*WORDS])
                words = rng.choice([*WORDS[label].split(), "so"], rng.integers(3, 9))
                rows.writerow([client, label, " ".join(words)])
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder as transformers writes it: random weights and a vocabulary of our words."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            max_position_embeddings=24,
        ),
    ).save_pretrained(folder)
    return str(folder)


def values(notes, backbone="random:bert-tiny", **sections):
    return {
        "run": {"methods": ["fedavg"], "rounds": 2},
        "data": {"name": "text", "source": str(notes), "max_tokens": 16},
        "model": {"backbone": backbone},
        "training": {"lr": 0.1, "batch_size": 8},
        "engine": {"device": "cpu"},
        **sections,
    }


def jittered(initial):
    rng = torch.Generator().manual_seed(0)
    return Params(
        *(x + 0.2 * torch.randn(x.shape, generator=rng) for x in initial.tensors().values())
    )


@every_method
def test_every_method_runs_on_texts(name, notes, tmp_path):
    options = OPTIONS | {"perada": {"distillation_steps": 2}}
    wanted = make_config(
        values(
            notes,
            run={"methods": [name], "rounds": 2},
            auxiliary={"num_images": 8},
            methods={name: options.get(name, {})},
        )
    )
    summary = run(wanted, tmp_path / "out")
    assert summary.clients == ("anna", "bob", "chen")
    saved = tmp_path / "out" / "adapters" / name / "anna"
    assert json.loads((saved / "adapter_config.json").read_text())["peft_type"] == "LORA"


def test_training_learns_the_words(notes):
    """Each class has words of its own: nearly all are told apart, where guessing gets a third."""
    task = World.build(make_config(values(notes))).sites[0].task(1, "train")
    phi = trained(task, task.initial, lr=0.1, rate_units="plain", local_epochs=60)
    assert task.score(phi, "test")["accuracy"] > 0.9


@pytest.mark.parametrize(
    "adapter",
    [
        AdapterConfig(),
        AdapterConfig(targets=("output", "mlp_in", "mlp_out"), layers=(1,)),
        AdapterConfig(kind="dora", targets=("query", "mlp_out")),
        AdapterConfig(kind="ia3", targets=("key", "output", "mlp_out")),
    ],
    ids=lambda a: f"{a.kind}-{'+'.join(a.targets)}",
)
def test_a_saved_adapter_gives_the_same_logits_in_peft(adapter, notes, bert, tmp_path):
    """PEFT and transformers alone read the folder, tokenise, and come to our logits."""
    wanted = make_config(values(notes, bert, adapter=adapter.model_dump()))
    world = World.build(wanted)
    places = [tmp_path / str(i) for i in range(3)]
    _, clients = world.start("fedavg", places=places)
    phi = jittered(world.model.initial)
    clients.call("export", 1, {0: phi.tensors()})
    plain = BertModel.from_pretrained(bert, add_pooling_layer=False)
    loaded = PeftModel.from_pretrained(plain, places[0]).eval()
    examples = world.data.examples
    chosen = world.data.clients[0].test
    tokens = BertTokenizerFast.from_pretrained(bert)(
        [examples.texts[i] for i in chosen], padding=True, return_tensors="pt"
    )
    about = json.loads((places[0] / "personal_model.json").read_text())
    assert about["class_names"] == ["food", "sky", "sport"]
    assert (about["client"], about["method"]) == ("anna", "fedavg")
    assert about["num_train"] == len(world.data.clients[0].train)
    assert about["backbone"] == {"name": str(bert)}
    with safe_open(places[0] / "adapter_model.safetensors", "pt") as saved, torch.no_grad():
        head = [saved.get_tensor(f"base_model.model.classifier.{x}") for x in ("weight", "bias")]
        outputs, lengths = loaded(**tokens).last_hidden_state, tokens["attention_mask"].sum(1)
        features = torch.stack([o[:n].mean(0) for o, n in zip(outputs, lengths, strict=True)])
        theirs = linear(features, *head)
    inputs = world.sites[0].source.inputs(chosen)
    ours = world.model.classify(phi.head, world.model.features(phi.adapter, inputs))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    merged = world.model.classify(phi.head, world.model.merged(phi.adapter)(inputs))
    torch.testing.assert_close(merged, theirs, rtol=1e-4, atol=1e-5)
    score = world.sites[0].task(1, "evaluate").score(phi, "test")
    labels = torch.from_numpy(examples.labels[chosen])
    assert score["loss"] == pytest.approx(float(cross_entropy(theirs, labels)), rel=1e-4)


def test_gradients_are_those_of_differences(notes):
    """In float64: the slope along a random direction is that of the loss."""
    world = World.build(make_config(values(notes)))
    task = world.sites[0].task(1, "train")
    phi, along, batch = jittered(task.initial), jittered(task.initial), torch.arange(5)
    world.sites[0].source.encoder.model.double()
    model = AdaptedModel(world.sites[0].source.encoder, world.config.adapter, 3, 0)
    task.model = model
    phi, along = (Params(p.adapter.double(), p.head.double()) for p in (phi, along))
    slope = float(task.grad(phi, batch).flat() @ along.flat())
    step = 1e-5
    change = task.loss(phi + step * along, batch) - task.loss(phi - step * along, batch)
    assert slope == pytest.approx(change / (2 * step), rel=1e-5)


def test_padding_changes_nothing(notes, bert):
    world = World.build(make_config(values(notes, bert)))
    source, model = world.sites[0].source, world.model
    phi = jittered(model.initial)
    lengths = (source.tokens != source.encoder.padding).sum(1)
    short, long = int(lengths.argmin()), int(lengths.argmax())
    assert lengths[short] < lengths[long]
    alone = model.features(phi.adapter, source.inputs(np.array([short])))
    beside = model.features(phi.adapter, source.inputs(np.array([short, long])))
    assert source.inputs(np.array([short])).shape == (1, lengths[short])
    torch.testing.assert_close(beside[:1], alone)


def test_long_texts_are_cut_and_words_keep_their_numbers():
    encoder = load_text_encoder("random:bert-tiny")
    tokens = encoder.tokenise(["Goal, goal!", "goal " * 50], 5)
    assert tokens.shape == (2, 5)
    first, second = tokens.tolist()
    assert first[1] == first[3] == second[1] == second[4] != first[2]
    assert first[0] == second[0] == 1
    assert encoder.tokenise(["so"], 4).tolist()[0][2:] == [0, 0]


def test_auxiliary_texts(notes):
    sections = {"auxiliary": {"name": "text", "source": str(notes), "num_images": 5}}
    world = World.build(make_config(values(notes, run={"methods": ["perada"]}, **sections)))
    assert world.auxiliary.count == 5
    (batch,) = world.auxiliary.batches(t=1, count=1, size=5)
    known = {tuple(row) for row in world.sites[0].source.tokens[:5].tolist()}
    padded = torch.nn.functional.pad(batch, (0, 16 - batch.shape[1]))
    assert {tuple(row) for row in padded.tolist()} == known
    with pytest.raises(InputError, match="are images"):
        World.build(
            make_config(values(notes, run={"methods": ["perada"]}, auxiliary={"name": "digits"}))
        )


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        ("demo", "reads images"),
        ("random:vit-tiny", "reads images"),
        ("/nowhere", "neither an existing folder"),
    ],
)
def test_other_backbones_are_refused(backbone, said):
    with pytest.raises(InputError, match=said):
        load_text_encoder(backbone)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(InputError, match="is a 'vit', which reads images"):
        load_text_encoder(str(tmp_path))


def test_more_tokens_than_the_backbone_reads(notes, bert):
    wanted = make_config(values(notes, bert, data={"name": "text", "source": str(notes)}))
    with pytest.raises(InputError, match=r"max_tokens = 128, but backbone .* reads 24"):
        World.build(wanted)
