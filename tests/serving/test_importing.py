"""`pfedseq import`: a run that starts from an adapter that somebody else has tuned."""

import shutil
import tomllib

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import ViTForImageClassification

from pfedseq.config import load_config
from pfedseq.model.backbone import load_backbone
from pfedseq.runs.world import World
from pfedseq.serving.client_models import ClientModels
from pfedseq.workloads.images.published import write_backbone


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """An adapter that PEFT itself has made, on a backbone in a folder; its head has ten classes."""
    place = tmp_path_factory.mktemp("theirs")
    write_backbone(load_backbone("demo"), place / "vit")
    base = ViTForImageClassification.from_pretrained(place / "vit", num_labels=10)
    torch.manual_seed(0)
    wanted = LoraConfig(
        r=3,
        lora_alpha=9,
        target_modules=["q_proj", "fc2"],
        modules_to_save=["classifier"],
        init_lora_weights=False,
    )
    get_peft_model(base, wanted).save_pretrained(place / "adapter")
    return place / "adapter"


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "digits.toml"
    file.write_text(
        '[run]\nmethods = ["fedavg"]\nrounds = 1\n'
        '[data]\nname = "digits"\nnum_clients = 2\nmax_images_per_client = 24\n'
        "[training]\nlr = 1e-12\nhead_lr = 1e-12\nbatch_size = 24\n"
    )
    return file


def test_a_run_starts_from_the_adapter_and_its_head(theirs, config, command, tmp_path):
    made = tmp_path / "made.toml"
    code, out, _ = command("import", theirs, config, "--to", made, "--head")
    assert code == 0
    assert "lora of rank 3 on query, mlp_out" in out
    section = tomllib.loads(made.read_text())["adapter"]
    assert (section["rank"], section["alpha"], section["layers"]) == (3, 9.0, "all")
    assert tomllib.loads(made.read_text())["model"]["backbone"] == str(theirs.parent / "vit")
    assert command("run", made, "--out", tmp_path / "run")[0] == 0
    models = ClientModels.open(tmp_path / "run")
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    base = ViTForImageClassification.from_pretrained(theirs.parent / "vit", num_labels=10)
    with torch.no_grad():
        expected = PeftModel.from_pretrained(base, theirs).eval()(pixel_values=pixels).logits
    # At such a learning rate a round changes nothing: what comes out is what went in.
    torch.testing.assert_close(models.load(0).logits(pixels), expected, rtol=1e-4, atol=1e-4)


def test_without_head_clients_start_with_a_new_one(theirs, config, command, tmp_path):
    command("import", theirs, config, "--to", tmp_path / "with.toml", "--head")
    command("import", theirs, config, "--to", tmp_path / "without.toml")
    with_head, without = (
        World.build(load_config(tmp_path / name)).model for name in ("with.toml", "without.toml")
    )
    assert torch.equal(with_head.initial.adapter, without.initial.adapter)
    weights = load_file(theirs / "adapter_model.safetensors")
    head = weights["base_model.model.classifier.weight"]
    assert torch.equal(with_head.split_head(with_head.initial.head)[0], head)
    assert not torch.allclose(without.split_head(without.initial.head)[0], head)
    fresh = World.build(load_config(config)).model.initial.head
    assert torch.equal(without.initial.head, fresh)


def test_what_does_not_fit_is_a_sentence(theirs, config, command, tmp_path):
    headless = tmp_path / "headless"
    shutil.copytree(theirs, headless)
    tensors = load_file(headless / "adapter_model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if "classifier" not in name},
        headless / "adapter_model.safetensors",
    )
    (tmp_path / "there.toml").write_text("")
    new = tmp_path / "new.toml"
    for arguments, sentence in [
        ((headless, config, "--to", new, "--head"), "has no head: remove --head"),
        ((tmp_path, config, "--to", new), "is not a PEFT adapter"),
        ((theirs, config, "--to", tmp_path / "there.toml"), "already exists"),
        ((theirs, tmp_path / "no.toml", "--to", new), "there is no config file"),
    ]:
        code, _, err = command("import", *arguments)
        assert code == 2
        assert sentence in err
        assert not new.exists()
    assert command("import", headless, config, "--to", new)[0] == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("adapter.rank=2", "has rank 3, but the config says adapter.rank = 2"),
        ("adapter.alpha=3", "has alpha 9.0, but the config says adapter.alpha = 3.0"),
        ("adapter.kind=dora", "has kind lora, but the config says adapter.kind = dora"),
        ('adapter.layers="last 2"', "has layers (0, 1, 2, 3), but the config says adapter.layers"),
        ('adapter.targets=["query"]', "has targets ['mlp_out', 'query']"),
        ("data.name=digits", ""),
    ],
)
def test_a_section_that_differs_from_the_folder_is_refused(
    change, sentence, theirs, config, command, tmp_path
):
    made = tmp_path / "made.toml"
    command("import", theirs, config, "--to", made)
    code, _, err = command("run", made, "--out", tmp_path / "run", "--set", change)
    assert sentence in err
    assert code == (2 if sentence else 0)


def test_a_head_for_other_classes_is_refused(theirs, config, command, tmp_path, photos):
    made = tmp_path / "made.toml"
    command("import", theirs, config, "--to", made, "--head")
    code, _, err = command(
        *("run", made, "--out", tmp_path / "run", "--set", "data.name=folder"),
        *("--set", "data.partition=iid", "--set", "data.scanners=false"),
        *("--set", f"data.source={photos / 'quarry'}", "--set", f"data.store={tmp_path / 's'}"),
    )
    assert code == 2
    assert "has a head of shape (10, 96) where (2, 96) is expected" in err


def test_a_run_goes_on_from_the_same_start_only(theirs, config, command, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(theirs, start)
    made, out = tmp_path / "made.toml", tmp_path / "run"
    command("import", start, config, "--to", made)
    text = "\n".join(
        line for line in made.read_text().splitlines() if not line.startswith("start_sha256")
    )
    made.write_text(text.replace(str(theirs.parent / "vit"), "demo"))
    assert command("run", made, "--out", out)[0] == 0
    assert "start_sha256" in (out / "config.toml").read_text(), "the run itself pins it"
    assert command("resume", out)[0] == 0
    tensors = load_file(start / "adapter_model.safetensors")
    tensors["base_model.model.vit.layers.0.attention.q_proj.lora_A.weight"] += 1
    save_file(tensors, start / "adapter_model.safetensors")
    code, _, err = command("resume", out)
    assert code == 2
    assert "is not the one that this run started from" in err
