"""Dialogues from JSONL files to every use of the models: predict, evaluate, export, import."""

import json
import runpy

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from pfedseq.api.opened import open_run
from pfedseq.cli import app
from pfedseq.config import load_config, make_config
from pfedseq.data.dataset import Dialogue, Turn
from pfedseq.errors import InputError
from pfedseq.runs.run import run
from pfedseq.runs.world import World
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.together import load_together
from pfedseq.workloads.dialogue.generation import Writer, Writing
from tests.model.tiny_language_models import STYLES, write_dialogues, write_language_model


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return write_language_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory):
    return write_dialogues(tmp_path_factory.mktemp("data") / "talk")


def configured(backbone, source, **run_options):
    return make_config(
        {
            "run": {"methods": ["pfedseq", "local"], "rounds": 3, **run_options},
            "data": {"name": "dialogue", "source": str(source), "max_tokens": 24},
            "model": {"backbone": backbone},
            "adapter": {"rank": 4, "alpha": 8, "targets": ["query", "value", "mlp_out"]},
            "training": {"lr": 1.0, "batch_size": 4, "local_epochs": 6},
            "methods": {"pfedseq": {"warmup_rounds": 1, "architecture": "linear"}},
            "engine": {"device": "cpu"},
        }
    )


@pytest.fixture(scope="module")
def finished(backbone, dialogues, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    run(configured(backbone, dialogues), out)
    return out


@pytest.fixture
def command():
    def call(*arguments):
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


def refused(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code != 0
    return str(result.exception)


def test_each_client_is_answered_in_its_own_style(finished, command, tmp_path):
    (tmp_path / "asked.txt").write_text("soup\n")
    for client, style in STYLES.items():
        found = json.loads(
            command(
                *("predict", finished, "-c", client, "-m", "local"),
                *("bread soup", tmp_path / "asked.txt", "--json", "--max-new-tokens", 3),
            )
        )
        assert [one["prompt"] for one in found] == ["bread soup", str(tmp_path / "asked.txt")]
        assert [one["answer"] for one in found] == [style, style]
        assert {(one["client"], one["method"]) for one in found} == {(client, "local")}


def test_answers_are_what_peft_and_generate_give(finished, backbone):
    models = ClientModels.open(finished, "pfedseq")
    personal = models.load(1)
    plain = AutoModelForCausalLM.from_pretrained(backbone)
    theirs = PeftModel.from_pretrained(plain, models.places[1].folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "star moon"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    written = theirs.generate(**asked, max_new_tokens=6, do_sample=False)
    expected = tokenizer.decode(written[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    answer = Writer(personal, Writing(6)).write(personal.read(("", "star moon")))
    assert answer == expected


def test_what_is_drawn_depends_on_the_seed_and_the_temperature(finished):
    personal = ClientModels.open(finished).load(0)
    asked = personal.read(("", "star"))

    def write(**how):
        return Writer(personal, Writing(12, **how)).write(asked)

    state = torch.get_rng_state()
    drawn = {seed: write(temperature=3.0, seed=seed) for seed in range(4)}
    assert torch.equal(torch.get_rng_state(), state), "the program's own generator is left alone"
    assert drawn[2] == write(temperature=3.0, seed=2)
    assert len(set(drawn.values())) > 1
    assert write() == write(seed=5) == write(temperature=0.01)


def test_a_long_prompt_leaves_room_for_an_answer(finished):
    personal = ClientModels.open(finished).load(0)
    asked = personal.read(("", "star " * 100))
    assert len(asked) == 39
    assert isinstance(Writer(personal, Writing(20)).write(asked), str)


def test_options_that_do_not_fit_are_refused(finished, tmp_path):
    said = refused("predict", finished, "-c", "anna", "star", "--top", 2)
    assert "--top applies to classifiers" in said
    digits = make_config(
        {
            "run": {"methods": ["local"], "rounds": 1},
            "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 8},
            "model": {"backbone": "random:demo"},
        }
    )
    run(digits, tmp_path / "digits")
    said = refused("predict", tmp_path / "digits", "-c", "0", "x.png", "--temperature", 1)
    assert "--temperature applies to language models" in said
    with pytest.raises(InputError, match="is not a language model: it cannot write answers"):
        Writer(ClientModels.open(tmp_path / "digits").load(0), Writing())


def test_evaluate_gives_the_runs_own_numbers(finished, dialogues, command):
    scores = open_run(finished).summary.methods["local"].scores
    found = json.loads(command("evaluate", finished, "-m", "local", "--json"))
    of_bob = ("evaluate", finished, "-m", "local", "-c", "bob", "--json")
    measured = json.loads(command(*of_bob))["bob"]
    assert set(measured) == {"num_dialogues", "perplexity", "token_accuracy", "loss"}
    expected = pytest.approx(scores.test["perplexity"], rel=1e-4)
    assert [found[name]["perplexity"] for name in STYLES] == expected
    brought = command(*of_bob, "--data", dialogues / "anna.jsonl")
    other = json.loads(brought)["bob"]
    assert other["num_dialogues"] == 20
    assert other["perplexity"] > measured["perplexity"]
    table = command("evaluate", finished, "-c", "bob")
    assert "Measures on n dialogues" in table
    assert "Recall" not in table


def test_exports_load_with_peft_alone(finished, command, tmp_path, capsys):
    to = tmp_path / "exported"
    command("export", finished, "--client", "chen", "--to", to, "--merge")
    said = json.loads((to / "chen" / "adapter_config.json").read_text())
    assert (said["task_type"], said["r"], said["lora_alpha"]) == ("CAUSAL_LM", 4, 8.0)
    assert said["base_model_name_or_path"] == "../backbone"
    assert said["target_modules"] == ["down_proj", "q_proj", "v_proj"]
    personal = ClientModels.open(finished).load(2)
    asked = torch.from_numpy(personal.read(("", "salt"))).unsqueeze(0)
    plain = AutoModelForCausalLM.from_pretrained(to / "backbone")
    theirs = PeftModel.from_pretrained(plain, to / "chen").eval()
    merged = AutoModelForCausalLM.from_pretrained(to / "chen" / "merged")
    inputs = torch.stack([asked, torch.full_like(asked, 2)], dim=2)
    with torch.no_grad():
        features = personal.model.features(personal.phi.adapter, inputs)
        ours = personal.model.classify(personal.phi.head, features)
        for model in (theirs, merged):
            torch.testing.assert_close(model(asked).logits[0], ours, rtol=1e-4, atol=1e-4)
    card = (to / "chen" / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card
    assert "An adapter for a frozen language model (Llama)" in card
    assert "class" not in card.split("## Use")[0]
    code = card.split("```python\n")[1].split("```")[0]
    script = tmp_path / "use.py"
    script.write_text(code.replace('Path("chen")', f"Path({str(to / 'chen')!r})"))
    capsys.readouterr()
    runpy.run_path(str(script))
    answer = Writer(personal, Writing()).write(personal.read(("", "a prompt")))
    assert capsys.readouterr().out.strip() == answer.strip()
    predicted = command("predict", to / "chen", "bread soup", "--max-new-tokens", 2, "--json")
    assert json.loads(predicted)[0]["answer"]


def test_an_exported_adapter_can_be_started_from(finished, backbone, dialogues, command, tmp_path):
    to, config = tmp_path / "mine.toml", tmp_path / "talk.toml"
    config.write_text(f'[data]\nname = "dialogue"\nsource = "{dialogues}"\nmax_tokens = 24\n')
    adapter = finished / "adapters" / "local" / "anna"
    with config.open("a") as file:
        file.write(f'[model]\nbackbone = "{backbone}"\n')
    said = command("import", adapter, config, "--to", to)
    assert "lora of rank 4 on query, value, mlp_out" in said
    world = World.build(load_config(to))
    models = ClientModels.open(finished, "local")
    assert torch.equal(world.model.initial.adapter, models.load(0).phi.adapter)


def test_plain_texts_are_continued(backbone, tmp_path, command):
    for client in ("anna", "bob"):
        text = "\n\n".join(f"{word} {STYLES[client]}" for word in ["bread", "soup", "star"] * 4)
        (tmp_path / f"{client}.txt").write_text(text)
    out = tmp_path / "out"
    made = configured(backbone, tmp_path, methods=["local"], rounds=1)
    run(made.model_copy(update={"methods": {}}), out)
    about = json.loads((out / "adapters/local/anna/personal_model.json").read_text())
    assert about["continues"] is True
    personal = ClientModels.open(out).load(0)
    assert personal.read(("", "bread")).tolist() == [0, 7]
    said = personal.read(("", Dialogue((Turn("user", "bread"),), "yes")))
    assert said.shape[1] == 3
    command("predict", out, "-c", "anna", "bread yes", "--max-new-tokens", 2)


def test_python_has_the_same_answers(finished):
    model = open_run(finished).model("bob", "local")
    assert model.predict(["bread soup"])[0].startswith(STYLES["bob"])
    with pytest.raises(InputError, match="names no classes"):
        model.predict_proba(["bread"])


def test_serving_is_left_to_programs_made_for_it(finished):
    with pytest.raises(InputError, match="serve the folders with a program such as vLLM"):
        load_together(ClientModels.open(finished))


def test_what_the_data_commands_say_of_dialogues(dialogues, backbone, command, tmp_path):
    config = tmp_path / "talk.toml"
    config.write_text(
        f'[data]\nname = "dialogue"\nsource = "{dialogues}"\nmax_tokens = 24\n'
        f'[model]\nbackbone = "{backbone}"\n'
    )
    table = command("data", "show", config)
    assert "Dialogues of each client" in table
    assert "classes" not in table
    assert "12/3/5" in table
    assert "need no preparation" in refused("data", "prepare", config)
