"""Every family of image encoders, by the generic path: what transformers and PEFT alone compute."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from PIL import Image
from torch.nn.functional import cross_entropy, linear

from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.encoders import FAMILIES as FAMILY_REGISTRY
from pfedseq.workloads.images.kind import ImageKind
from pfedseq.workloads.images.reader import ImageReader
from pfedseq.workloads.personal import PersonalModel
from tests.model.some_models import some_phi
from tests.model.tiny_image_models import DEPTH, FAMILIES, PATCH, SIZE, WIDTH, write_image_model
from tests.model.tiny_language_models import FAMILIES as LANGUAGE_FAMILIES
from tests.model.tiny_text_models import FAMILIES as TEXT_FAMILIES

IMAGES = torch.randn(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 0])
NAMES = ("ant", "bee", "cat")
CLASSES = {
    "vit_mae": "ViTMAEModel",
    "clip": "CLIPVisionModel",
    "siglip": "SiglipVisionModel",
    "siglip2": "Siglip2VisionModel",
}


@pytest.fixture(scope="module", params=[*FAMILIES])
def folder(request, tmp_path_factory):
    return write_image_model(request.param, tmp_path_factory.mktemp(request.param) / request.param)


def theirs_of(folder):
    """What transformers itself loads, without a line of ours."""
    name = Path(folder).name
    chosen = CLASSES.get(name.split("-")[0], "AutoModel")
    options = {"mask_ratio": 0.0} if name == "vit_mae" else {}
    if name == "deit":
        options = {"add_pooling_layer": False}
    return getattr(transformers, chosen).from_pretrained(folder, **options).eval()


def outputs_of(model, folder, images, resampled=False):
    """Their forward; MAE shuffles patches unless it is given noise, SigLIP 2 takes patches."""
    name = Path(folder).name
    if name == "vit_mae":
        noise = torch.linspace(0, 1, (images.shape[-1] // PATCH) ** 2).expand(len(images), -1)
        return model(images, noise=noise, interpolate_pos_encoding=resampled)
    if name.startswith("siglip2"):
        side = images.shape[-1] // PATCH
        cells = images.reshape(len(images), 3, side, PATCH, side, PATCH)
        patches = cells.permute(0, 2, 4, 3, 5, 1).reshape(len(images), side**2, -1)
        shapes = torch.tensor([[side, side]] * len(images))
        return model(patches, pixel_attention_mask=None, spatial_shapes=shapes)
    if resampled and name.split("-")[0] in ("deit", "clip", "siglip"):
        return model(images, interpolate_pos_encoding=True)
    return model(images)


def feature_of(model, folder, images, resampled=False):
    """The pooled output, else the class token; the mean for a SigLIP without a head."""
    outputs = outputs_of(model, folder, images, resampled)
    name = Path(folder).name
    if name == "siglip-headless":
        return outputs.last_hidden_state.mean(1)
    if name in ("deit", "vit_mae"):
        return outputs.last_hidden_state[:, 0]
    return outputs.pooler_output


def every_adapter():
    return [
        AdapterConfig(targets=("query", "key", "output", "mlp_in", "mlp_out"), alpha=4.0),
        AdapterConfig(targets=("query", "value"), layers="last 1", rank=3),
        AdapterConfig(kind="dora", targets=("value", "mlp_out")),
        AdapterConfig(kind="ia3", targets=("key", "mlp_out"), layers=(1, 2)),
    ]


def test_features_are_transformers_own(folder):
    backbone = load_backbone(folder)
    assert (backbone.image_size, backbone.num_layers, backbone.feature_dim) == (SIZE, DEPTH, WIDTH)
    model = AdaptedModel(backbone, AdapterConfig(), 3, seed=0)
    with torch.no_grad():
        theirs = feature_of(theirs_of(folder), folder, IMAGES)
    assert theirs.std(0).mean() > 0.01  # images differ
    ours = model.features(model.initial.adapter, model.inputs(IMAGES))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours, model.features(model.initial.adapter, model.inputs(IMAGES)))


@pytest.mark.parametrize("size", [16, 48])
def test_other_sizes_are_interpolated_as_transformers_does(folder, size):
    backbone = load_backbone(folder, size)
    assert backbone.image_size == size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))
    model = AdaptedModel(backbone, AdapterConfig(layers="last 1"), 3, seed=0)
    with torch.no_grad():
        theirs = feature_of(theirs_of(folder), folder, images, resampled=True)
    ours = model.features(model.initial.adapter, model.inputs(images))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="multiple of 8, not 20"):
        load_backbone(folder, 20)


def test_cut_stacked_and_merged_features_agree(folder):
    backbone = load_backbone(folder)
    for config in every_adapter():
        model = AdaptedModel(backbone, config, 3, seed=0)
        phis = [some_phi(model, seed) for seed in range(2)]
        first = config.layers_of(DEPTH)[0]
        assert (model.prefix is None) == (first == 0)
        if first:
            assert model.prefix.num_layers == first
            assert model.inputs(IMAGES).dim() == 3
        ready = [model.inputs(IMAGES[:1]), model.inputs(IMAGES[1:])]
        alone = [model.features(phi.adapter, own) for phi, own in zip(phis, ready, strict=True)]
        for phi, own, features in zip(phis, ready, alone, strict=True):
            merged = model.merged(phi.adapter)(own)
            torch.testing.assert_close(merged, features, rtol=1e-5, atol=1e-5)
        adapters = torch.stack([phi.adapter for phi in phis]).requires_grad_()
        together = model.stacked.features(adapters, torch.cat(ready), [1, 3])
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
        (slopes,) = torch.autograd.grad(together.square().sum(), adapters)
        for phi, own, slope in zip(phis, ready, slopes, strict=True):
            theta = phi.adapter.detach().requires_grad_()
            (expected,) = torch.autograd.grad(model.features(theta, own).square().sum(), theta)
            torch.testing.assert_close(slope, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layers", ["all", "last 1"])
def test_gradients_are_those_of_plain_peft(folder, layers):
    backbone = load_backbone(folder)
    config = AdapterConfig(targets=("query", "mlp_in"), rank=2, alpha=6.0, layers=layers)
    model = AdaptedModel(backbone, config, 3, seed=0)
    phi = some_phi(model)
    places = [
        f"{backbone.places.layers}.{k}.{backbone.places.modules[target]}"
        for k in config.layers_of(DEPTH)
        for target in config.targets
    ]
    theirs = get_peft_model(
        theirs_of(folder), LoraConfig(r=2, lora_alpha=6.0, target_modules=places)
    ).eval()
    named = {
        backbone.published_name(name): value
        for name, value in model.layout.unflatten(phi.adapter).items()
    }
    plain = dict(theirs.base_model.model.named_parameters())
    with torch.no_grad():
        for name, value in named.items():
            plain[name].copy_(value)
    weight, bias = model.split_head(phi.head)
    features = feature_of(theirs.base_model.model, folder, IMAGES)
    loss = cross_entropy(linear(features, weight, bias), LABELS)
    slopes = torch.autograd.grad(loss, [plain[name] for name in named])
    expected = model.layout.flatten(
        dict(zip(model.layout.unflatten(phi.adapter), slopes, strict=True))
    )
    theta = phi.adapter.detach().requires_grad_()
    logits = model.classify(phi.head, model.features(theta, model.inputs(IMAGES)))
    (found,) = torch.autograd.grad(cross_entropy(logits, LABELS), theta)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_export_runs_without_us(folder, tmp_path):
    """The code of the model card, which does not know this package."""
    backbone, kind = load_backbone(folder), ImageKind()
    model = AdaptedModel(backbone, every_adapter()[0], 3, seed=0)
    phi, place = some_phi(model), tmp_path / "anna"
    saved = PersonalModel(model, phi, NAMES, ImageReader(backbone), {"client": "anna"})
    kind.check_exportable(saved)
    assert not kind.is_published(backbone)
    kind.write_backbone(backbone, tmp_path / "backbone")
    assert kind.same_backbone(backbone, tmp_path / "backbone")
    saved.save(place, "../backbone")
    kind.complete(saved, place)
    pixels = (IMAGES[0].permute(1, 2, 0) * 60 + 120).clamp(0, 255).to(torch.uint8).numpy()
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    loaded = PersonalModel.load(place)
    assert (loaded.class_names, loaded.about) == (NAMES, {"client": "anna"})
    assert torch.equal(loaded.phi.adapter, phi.adapter)
    read = loaded.read(("photo.png", (tmp_path / "photo.png").read_bytes()))
    logits = loaded.logits(loaded.inputs([read]))
    code = kind.card(saved, "'backbone'", repr(list(NAMES)), "'anna'").code
    assert "pfedseq" not in code
    printed = _run(code + "\nprint(logits.tolist())", tmp_path)
    torch.testing.assert_close(torch.tensor(printed), logits, rtol=1e-4, atol=1e-4)

    kind.write_merged(saved, tmp_path / "merged")
    merged = AdaptedModel(load_backbone(str(tmp_path / "merged")), AdapterConfig(), 3, seed=0)
    features = merged.features(merged.initial.adapter, loaded.inputs([read]))
    found = merged.classify(phi.head, features)
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)


def _run(code, folder):
    """What the code prints last."""
    before, printed = Path.cwd(), []
    os.chdir(folder)
    try:
        exec(code, {"print": printed.append})
    finally:
        os.chdir(before)
    return printed[-1]


def test_the_length_of_features_is_foretold(folder):
    """The weights alone tell it: within a factor of two of what images have.

    A mean of patches is shorter than a patch, by how much no weight tells.
    """
    most = 4 if Path(folder).name == "siglip-headless" else 2
    backbone = load_backbone(folder)
    for config in (AdapterConfig(), AdapterConfig(layers="last 1")):
        model = AdaptedModel(backbone, config, 3, seed=0)
        features = model.features(model.initial.adapter, model.inputs(IMAGES))
        measured = features.square().sum(1).mean().sqrt()
        assert 0.5 < model.units.feature / measured < most, Path(folder).name


def test_the_processor_is_honoured(folder):
    backbone = load_backbone(folder)
    assert (backbone.mean, backbone.std) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    assert load_backbone(folder, mean="half").std == (0.5, 0.5, 0.5)


def test_every_number_that_matters_is_in_the_checksum(folder, tmp_path):
    backbone = load_backbone(folder)
    before = backbone.checksum()
    assert before == load_backbone(folder).checksum()
    assert before != load_backbone(folder, 48).checksum() or "beit" in folder


def test_nested_processors_are_read(tmp_path):
    """As transformers' processors of whole CLIPs save them."""
    folder = tmp_path / "clip-whole"
    write_image_model("clip-whole", folder)
    said = (folder / "preprocessor_config.json").read_text()
    (folder / "preprocessor_config.json").unlink()
    nested = {"image_processor": json.loads(said), "processor_class": "CLIPProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(nested))
    assert load_backbone(str(folder)).mean == (0.4, 0.5, 0.6)


@pytest.mark.parametrize("model_type", ["swin", "convnext", "resnet"])
def test_unequal_blocks_are_refused(model_type, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(
        InputError, match="adapters need equal blocks; for images choose one of ViT, D"
    ):
        load_backbone(str(tmp_path))


def test_a_target_that_the_model_has_not_is_refused(tmp_path):
    backbone = load_backbone(write_image_model("dinov3", tmp_path / "dinov3"))
    with pytest.raises(InputError, match=r"'mlp_gate'.*no model\.layer\.0\.mlp\.gate_proj"):
        AdaptedModel(backbone, AdapterConfig(targets=("mlp_gate",)), 3, seed=0)


def test_a_dinov2_with_gated_mlps(tmp_path):
    """DINOv2's giant model; its MLPs have other names and cannot carry adapters here."""
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    pixels = {"patch_size": PATCH, "image_size": SIZE}
    config = transformers.Dinov2Config(**sizes, **pixels, use_swiglu_ffn=True)
    theirs = transformers.Dinov2Model(config).eval()
    theirs.save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path))
    model = AdaptedModel(backbone, AdapterConfig(), 3, seed=0)
    with torch.no_grad():
        expected = theirs(IMAGES).pooler_output
    ours = model.features(model.initial.adapter, model.inputs(IMAGES))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"'mlp_in', which backbone .* does not have"):
        AdaptedModel(backbone, AdapterConfig(targets=("mlp_in",)), 3, seed=0)


def test_a_checkpoint_without_some_block_is_refused(tmp_path):
    folder = Path(write_image_model("clip", tmp_path / "clip"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(
        InputError, match=re.escape("not a complete CLIP: missing encoder.layers.3.")
    ):
        load_backbone(str(folder))


def test_the_page_names_every_family():
    page = Path(__file__).parents[2] / "docs" / "reference" / "backbones.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    for family in FAMILY_REGISTRY.values():
        types = ", ".join(f"`{name}`" for name in family.model_types)
        start = f"| {family.title} | {types} | "
        (row,) = [row for row in rows if row.startswith(start)]
        assert row.split(" | ")[2].startswith("yes") == family.reads_timm, row


def test_every_type_of_the_registry_is_among_the_models_of_these_tests(tmp_path):
    """A `model_type` that is listed has features, gradients and exports compared with theirs."""
    made = {model().config.model_type for model in FAMILIES.values()}
    made |= {model().config.model_type for model in TEXT_FAMILIES.values()}
    made |= {model().config.model_type for model in LANGUAGE_FAMILIES.values()}
    listed = {name for family in FAMILY_REGISTRY.values() for name in family.model_types}
    assert listed - made == {"vit"}  # tests/model/test_backbone.py and test_personal.py
