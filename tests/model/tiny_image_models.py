"""Folders as transformers writes them: tiny image encoders with random weights."""

import json

import torch
import transformers as t

SIZE, PATCH, WIDTH, DEPTH = 32, 8, 32, 3
COMMON = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "patch_size": PATCH,
    "image_size": SIZE,
}
MLP = {"intermediate_size": 48}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def _without_size(**options):
    return {k: v for k, v in COMMON.items() if k != "image_size"} | MLP | options


FAMILIES = {
    "deit": lambda: t.DeiTModel(t.DeiTConfig(**COMMON, **MLP), add_pooling_layer=False),
    "beit": lambda: t.BeitModel(
        t.BeitConfig(**COMMON, **MLP, use_relative_position_bias=True, layer_scale_init_value=0.5)
    ),
    "beit-shared": lambda: t.BeitModel(
        t.BeitConfig(
            **COMMON,
            **MLP,
            use_shared_relative_position_bias=True,
            use_absolute_position_embeddings=True,
            use_mean_pooling=False,
        )
    ),
    "vit_mae": lambda: t.ViTMAEForPreTraining(
        t.ViTMAEConfig(**COMMON, **MLP, decoder_num_hidden_layers=1, decoder_hidden_size=16)
    ),
    "dinov2": lambda: t.Dinov2Model(t.Dinov2Config(**COMMON, mlp_ratio=2)),
    "dinov2_with_registers": lambda: t.Dinov2WithRegistersModel(
        t.Dinov2WithRegistersConfig(**COMMON, mlp_ratio=2, num_register_tokens=3)
    ),
    "dinov3": lambda: t.DINOv3ViTModel(
        t.DINOv3ViTConfig(**COMMON, **MLP, num_register_tokens=2, layerscale_value=0.5)
    ),
    "clip": lambda: t.CLIPVisionModel(t.CLIPVisionConfig(**COMMON, **MLP)),
    "clip-whole": lambda: t.CLIPModel(
        t.CLIPConfig(vision_config={**COMMON, **MLP}, text_config={**TEXT, **ENDS})
    ),
    "siglip": lambda: t.SiglipVisionModel(t.SiglipVisionConfig(**COMMON, **MLP)),
    "siglip-whole": lambda: t.SiglipModel(
        t.SiglipConfig(vision_config={**COMMON, **MLP}, text_config={**TEXT, **ENDS})
    ),
    "siglip-headless": lambda: t.SiglipVisionModel(
        t.SiglipVisionConfig(**COMMON, **MLP, vision_use_head=False)
    ),
    "siglip2": lambda: t.Siglip2VisionModel(
        t.Siglip2VisionConfig(**_without_size(num_patches=(SIZE // PATCH) ** 2))
    ),
    "siglip2-whole": lambda: t.Siglip2Model(
        t.Siglip2Config(
            vision_config=_without_size(num_patches=(SIZE // PATCH) ** 2),
            text_config={**TEXT, **ENDS},
        )
    ),
}
"""One of every family, and what a family's checkpoints differ in."""


def write_image_model(family, folder, processor=None):
    """The folder of one of `FAMILIES`; every weight matters, and no norm is the identity."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("decoder") or not parameter.is_floating_point():
                continue
            if parameter.dim() >= 2 and "embed" not in name:
                parameter.mul_(1 if "siglip" in family else 4)  # SigLIP's begin large
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    said = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor or said))
    return str(folder)
