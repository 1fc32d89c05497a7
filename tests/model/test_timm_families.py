"""timm's files of other families than ViT against transformers' own models with the same weights.

The names and layouts of timm are written out here, away from the tables that are tested.
"""

import json

import pytest
import torch
import transformers as t
from safetensors.torch import save_file

from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.encoders.timm import heads_of
from pfedseq.workloads.images.kind import ImageKind
from tests.model.some_models import some_phi

WIDTH, DEPTH, PATCH, SIZE = 128, 2, 8, 32
COMMON = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "intermediate_size": 192,
    "patch_size": PATCH,
    "image_size": SIZE,
}
IMAGES = torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
DINOV3 = {"num_register_tokens": 3, "layerscale_value": 0.5, "layer_norm_eps": 1e-5}
HEADS = {"head.weight": torch.ones(5, WIDTH), "head.bias": torch.ones(5)}
MODELS = {
    "deit": lambda: t.DeiTModel(
        t.DeiTConfig(**COMMON, layer_norm_eps=1e-6), add_pooling_layer=False
    ),
    "clip": lambda: t.CLIPVisionModel(t.CLIPVisionConfig(**COMMON, hidden_act="gelu")),
    "clip_quickgelu": lambda: t.CLIPVisionModel(
        t.CLIPVisionConfig(**COMMON, hidden_act="quick_gelu")
    ),
    "siglip": lambda: t.SiglipVisionModel(t.SiglipVisionConfig(**COMMON)),
    "siglip_gap": lambda: t.SiglipVisionModel(
        t.SiglipVisionConfig(**COMMON, vision_use_head=False)
    ),
    "vit_gap": lambda: t.SiglipVisionModel(
        t.SiglipVisionConfig(**COMMON, vision_use_head=False, hidden_act="gelu")
    ),
    "beit": lambda: t.BeitModel(
        t.BeitConfig(**COMMON, use_relative_position_bias=True, layer_norm_eps=1e-6)
    ),
    "dinov3": lambda: t.DINOv3ViTModel(
        t.DINOv3ViTConfig(**COMMON, **DINOV3, query_bias=False, value_bias=False)
    ),
    "dinov3_qkvb": lambda: t.DINOv3ViTModel(t.DINOv3ViTConfig(**COMMON, **DINOV3)),
    "dinov3_plus": lambda: t.DINOv3ViTModel(
        t.DINOv3ViTConfig(**COMMON, **DINOV3, use_gated_mlp=True, hidden_act="silu")
    ),
}


def random_model(kind):
    """Weights of which every one matters; embeddings are small, so that ε of the norms does."""
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" in name:
                parameter.copy_(2e-3 * torch.randn_like(parameter))
            elif parameter.dim() < 2 or "table" in name or "probe" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.15 * torch.randn_like(parameter))
    return model


def feature(model, kind, images):
    with torch.no_grad():
        outputs = model(pixel_values=images)
    if kind.endswith("gap"):
        return outputs.last_hidden_state.mean(1)
    return outputs.last_hidden_state[:, 0] if kind == "deit" else outputs.pooler_output


def timm_tensors(model, kind):
    """The same weights as timm names them."""
    s, tensors = model.state_dict(), dict(HEADS)
    like_clip = kind.startswith(("clip", "siglip", "vit"))

    def move(timm, ours):
        tensors[f"{timm}.weight"] = s[f"{ours}.weight"]
        if f"{ours}.bias" in s:
            tensors[f"{timm}.bias"] = s[f"{ours}.bias"]

    if kind == "deit":
        tensors["cls_token"] = s["embeddings.cls_token"]
        tensors["dist_token"] = s["embeddings.distillation_token"]
        tensors["pos_embed"] = s["embeddings.position_embeddings"]
        tensors["head_dist.weight"] = torch.ones(5, WIDTH)
    if like_clip:
        tensors["pos_embed"] = s["embeddings.position_embedding.weight"][None]
    if kind.startswith("clip"):
        tensors["cls_token"] = s["embeddings.class_embedding"][None, None]
        move("norm_pre", "pre_layrnorm")
    if kind.startswith(("beit", "dinov3")):
        tensors["cls_token"] = s["embeddings.cls_token"]
    if kind.startswith("dinov3"):
        tensors["reg_token"] = s["embeddings.register_tokens"]
    patches = {"deit": "patch_embeddings.projection", "beit": "patch_embeddings.projection"}
    default = "patch_embedding" if like_clip else "patch_embeddings"
    move("patch_embed.proj", f"embeddings.{patches.get(kind, default)}")
    last = {"deit": "layernorm", "beit": "pooler.layernorm"}
    default = "post_layernorm" if like_clip else "norm"
    move("fc_norm" if kind == "beit" else "norm", last.get(kind, default))
    if kind == "siglip":
        tensors["attn_pool.latent"] = s["head.probe"]
        for part in ("weight", "bias"):
            whole = s[f"head.attention.in_proj_{part}"]
            tensors[f"attn_pool.q.{part}"] = whole[:WIDTH]
            tensors[f"attn_pool.kv.{part}"] = whole[WIDTH:]
        move("attn_pool.proj", "head.attention.out_proj")
        move("attn_pool.norm", "head.layernorm")
        move("attn_pool.mlp.fc1", "head.mlp.fc1")
        move("attn_pool.mlp.fc2", "head.mlp.fc2")
    for i in range(DEPTH):
        block = f"blocks.{i}"
        layer = {"deit": f"layers.{i}", "beit": f"layers.{i}"}.get(
            kind, f"encoder.layers.{i}" if like_clip else f"model.layer.{i}"
        )
        norms = ("layer_norm1", "layer_norm2") if like_clip else ("norm1", "norm2")
        if kind in ("deit", "beit"):
            norms = ("layernorm_before", "layernorm_after")
        move(f"{block}.norm1", f"{layer}.{norms[0]}")
        move(f"{block}.norm2", f"{layer}.{norms[1]}")
        attention = f"{layer}.{'self_attn' if like_clip else 'attention'}"
        move(f"{block}.attn.proj", f"{attention}.{'out_proj' if like_clip else 'o_proj'}")
        weights = [s[f"{attention}.{part}_proj.weight"] for part in "qkv"]
        tensors[f"{block}.attn.qkv.weight"] = torch.cat(weights)
        if kind == "deit" or like_clip:
            biases = [s[f"{attention}.{part}_proj.bias"] for part in "qkv"]
            tensors[f"{block}.attn.qkv.bias"] = torch.cat(biases)
        elif f"{attention}.q_proj.bias" in s:
            tensors[f"{block}.attn.q_bias"] = s[f"{attention}.q_proj.bias"]
            tensors[f"{block}.attn.v_bias"] = s[f"{attention}.v_proj.bias"]
        if kind == "beit":
            table = "relative_position_bias_table"
            tensors[f"{block}.attn.{table}"] = s[f"{layer}.relative_position_bias.{table}"]
            tensors[f"{block}.attn.relative_position_index"] = torch.zeros(17, 17).long()
            tensors[f"{block}.gamma_1"] = s[f"{layer}.lambda_1"]
            tensors[f"{block}.gamma_2"] = s[f"{layer}.lambda_2"]
        if kind.startswith("dinov3"):
            tensors[f"{block}.gamma_1"] = s[f"{layer}.layer_scale1.lambda1"]
            tensors[f"{block}.gamma_2"] = s[f"{layer}.layer_scale2.lambda1"]
            gated = kind == "dinov3_plus"
            move(f"{block}.mlp.{'fc1_x' if gated else 'fc1'}", f"{layer}.mlp.up_proj")
            if gated:
                move(f"{block}.mlp.fc1_g", f"{layer}.mlp.gate_proj")
            move(f"{block}.mlp.fc2", f"{layer}.mlp.down_proj")
        else:
            move(f"{block}.mlp.fc1", f"{layer}.mlp.fc1")
            move(f"{block}.mlp.fc2", f"{layer}.mlp.fc2")
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def write(kind, tensors, place):
    """A timm file; its name says what its tensors do not."""
    path = place / f"vit_{kind}_32.safetensors"
    save_file(tensors, path)
    if kind.startswith("dinov3"):
        about = {"architecture": f"vit_{kind}", "pretrained_cfg": {"input_size": [3, SIZE, SIZE]}}
        (place / "config.json").write_text(json.dumps(about))
    return str(path)


@pytest.fixture(params=[*MODELS])
def written(request, tmp_path):
    """(kind, transformers' model, the timm file of the same weights)."""
    model = random_model(request.param)
    tensors = timm_tensors(model, request.param)
    return request.param, model, write(request.param, tensors, tmp_path)


def adapted_features(backbone, images=IMAGES):
    model = AdaptedModel(backbone, AdapterConfig(), 3, seed=0)
    return model.features(model.initial.adapter, model.inputs(images))


def test_features_are_those_of_transformers(written):
    kind, theirs, file = written
    backbone = load_backbone(file)
    assert (backbone.image_size, backbone.num_layers, backbone.feature_dim) == (SIZE, DEPTH, WIDTH)
    assert type(backbone.model) is type(theirs)
    expected = feature(theirs, kind, IMAGES)
    assert expected.std(0).mean() > 0.01  # images differ
    torch.testing.assert_close(adapted_features(backbone), expected, rtol=1e-5, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())


def test_an_export_is_a_folder_of_transformers(written, tmp_path):
    kind, _, file = written
    backbone, images = load_backbone(file), ImageKind()
    assert not images.is_published(backbone)
    images.write_backbone(backbone, tmp_path / "whole")
    assert images.same_backbone(backbone, tmp_path / "whole")
    again = load_backbone(str(tmp_path / "whole"))
    assert again.family is backbone.family
    phi = some_phi(AdaptedModel(backbone, AdapterConfig(), 3, seed=0))
    ours, reloaded = (
        AdaptedModel(one, AdapterConfig(), 3, seed=0).features(phi.adapter, IMAGES)
        for one in (backbone, again)
    )
    assert torch.equal(ours, reloaded), kind


def test_other_sizes(written):
    _, _, file = written
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(2))
    assert adapted_features(load_backbone(file, 48), images).isfinite().all()
    with pytest.raises(InputError, match="multiple of 8, not 20"):
        load_backbone(file, 20)


@pytest.mark.parametrize(
    ("kind", "mean", "said"),
    [
        ("deit", 0.485, "'deit', by its name|DeiT with a distillation token"),
        ("clip", 0.48145466, "CLIP"),
        ("siglip", 0.5, "SigLIP"),
        ("beit", 0.5, "BEiT"),
        ("dinov3", 0.485, "DINOv3"),
    ],
)
def test_a_bare_file_is_normalised_as_its_family_and_says_so(kind, mean, said, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(timm_tensors(random_model(kind), kind), path)
    backbone = load_backbone(str(path))
    assert backbone.mean[0] == mean
    assert said.split("|")[-1] in backbone.note
    assert backbone.image_size == (224 if kind == "dinov3" else SIZE)
    told = load_backbone(str(path), mean="clip")
    assert (told.std[0], told.note) == (0.26862954, None)


def test_a_repository_as_timm_writes_it(tmp_path):
    model = random_model("clip_quickgelu")
    save_file(timm_tensors(model, "clip"), tmp_path / "model.safetensors")
    cfg = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 2], "crop_pct": 0.5, "interpolation": "bilinear"}
    about = {"architecture": "vit_base_patch8_clip_quickgelu_32", "pretrained_cfg": cfg}
    (tmp_path / "config.json").write_text(json.dumps(about))
    backbone = load_backbone(str(tmp_path))
    assert (backbone.mean, backbone.note) == ((0.1, 0.2, 0.3), None)
    assert backbone.framing.resize_to == 2 * SIZE
    expected = feature(model, "clip", IMAGES)
    torch.testing.assert_close(adapted_features(backbone), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("vit_base_patch16_clip_224.openai", "quick_gelu"),
        ("vit_base_patch16_clip_224.openai_ft_in1k", "gelu"),
        ("vit_base_patch16_clip_224.laion2b", "gelu"),
        ("vit_base_patch16_clip_224.dfn2b", "gelu"),
        ("vit_large_patch14_clip_224.dfn2b", "quick_gelu"),
        ("vit_base_patch16_clip_quickgelu_224.dfn2b", "quick_gelu"),
        ("vit_base_patch32_clip_224.metaclip_400m", "quick_gelu"),
    ],
)
def test_the_activation_of_clip_follows_timms_name(name, activation, tmp_path):
    """Weights trained with QuickGELU have notes in timm; fine-tuning there used GELU."""
    tensors = timm_tensors(random_model("clip"), "clip")
    save_file(tensors, tmp_path / f"{name}.safetensors")
    file = load_backbone(str(tmp_path / f"{name}.safetensors"))
    assert file.model.config.hidden_act == activation
    architecture, tag = name.split(".")
    about = {"architecture": architecture, "pretrained_cfg": {"tag": tag}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert load_backbone(str(tmp_path)).model.config.hidden_act == activation


def test_heads_of_unusual_width():
    """As in timm: ViT-H/14 and CLIP-H have 16 heads of 80, SO-400M 16 of 72."""
    assert [heads_of(width) for width in (32, 192, 768, 1024)] == [1, 3, 12, 16]
    assert {heads_of(width) for width in (1152, 1280, 1408, 1536, 1664)} == {16}


def test_a_number_of_heads_that_the_file_contradicts_is_refused(tmp_path):
    file = write("beit", timm_tensors(random_model("beit"), "beit"), tmp_path)
    with pytest.raises(InputError, match="has 2 attention heads, not num_heads = 4"):
        load_backbone(file, num_heads=4)
    file = write("clip", timm_tensors(random_model("clip"), "clip"), tmp_path)
    assert load_backbone(file, num_heads=4).model.config.num_attention_heads == 4
    with pytest.raises(InputError, match="width 128, which 5 attention heads do not divide"):
        load_backbone(file, num_heads=5)


def reshaped(name, *shape):
    return lambda tensors: tensors | {name: torch.ones(*shape)}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (
            "deit",
            lambda tensors: {k: v for k, v in tensors.items() if k != "blocks.1.norm2.bias"},
            r"DeiT with a distillation token .* missing blocks\.1\.norm2\.bias; unexpected nothing",
        ),
        ("clip", reshaped("blocks.0.ls1.gamma", WIDTH), r"CLIP .*unexpected blocks\.0\.ls1\.gamma"),
        ("clip", reshaped("attn_pool.latent", 1, 1, 1), r"CLIP .*unexpected attn_pool\.latent"),
        ("clip", reshaped("pos_embed", 1, 16, WIDTH), "15 positions of patches"),
        ("clip", reshaped("pos_embed", WIDTH), r"shapes of pos_embed \(128,\) are wrong"),
        ("siglip", reshaped("attn_pool.proj.weight", 3, 3), r"attn_pool\.proj\.weight \(3, 3\)"),
        (
            "siglip",
            lambda tensors: {k: v for k, v in tensors.items() if k != "attn_pool.kv.bias"},
            r"missing attn_pool\.qkv\.bias; unexpected attn_pool\.q\.bias",
        ),
        ("beit", reshaped("blocks.1.gamma_1", 7), r"blocks\.1\.gamma_1 \(7,\) are wrong"),
        (
            "beit",
            reshaped("blocks.0.attn.relative_position_bias_table", 50, 2),
            "table of 50 relative positions",
        ),
        ("dinov3", reshaped("norm_pre.weight", WIDTH), r"unexpected norm_pre\.weight"),
        ("dinov3", reshaped("patch_embed.proj.weight", WIDTH, 1, 8, 8), "3 channels are needed"),
        ("dinov3", reshaped("norm.weight", 7), r"norm\.weight \(7,\) are wrong"),
        (
            "dinov3",
            lambda tensors: tensors | {"norm.weight": torch.full((WIDTH,), torch.nan)},
            "contains NaN or infinity",
        ),
    ],
)
def test_a_misfitting_file_is_refused_by_name(kind, change, message, tmp_path):
    file = write(kind, change(timm_tensors(random_model(kind), kind)), tmp_path)
    with pytest.raises(InputError, match=message):
        load_backbone(file)
