"""Plain transformers checkpoints: a backbone alone, or with an adapter merged."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification

from pfedseq.errors import InputError
from pfedseq.model.adapters import merged_weights
from pfedseq.model.backbone import Backbone
from pfedseq.model.encoders.loading import quiet_transformers
from pfedseq.model.encoders.vit.naming import REGISTERS
from pfedseq.workloads.headless import HEAD_FILE, merged_encoder, write_head
from pfedseq.workloads.images.reader import write_processor
from pfedseq.workloads.personal import PersonalModel
from pfedseq.workloads.whole_folder import write_whole

_USE_VIT = """\
from pathlib import Path

from peft import PeftModel
from PIL import Image
from transformers import AutoImageProcessor, ViTForImageClassification

folder = Path({folder})
backbone = {backbone}
class_names = {class_names}

classifier = ViTForImageClassification.from_pretrained(backbone, num_labels=len(class_names))
model = PeftModel.from_pretrained(classifier, folder).eval()
processor = AutoImageProcessor.from_pretrained(folder)
image = Image.open("photo.png").convert("RGB")
logits = model(**processor(image, return_tensors="pt")).logits
print(class_names[int(logits.argmax())])"""

_USE = """\
from pathlib import Path

import torch
from peft import PeftModel
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor, {model_class}

folder = Path({folder})
backbone = {backbone}
class_names = {class_names}

encoder = {model_class}.from_pretrained(backbone{options})
model = PeftModel.from_pretrained(encoder, folder).eval()
processor = AutoImageProcessor.from_pretrained(folder)
head = load_file(folder / "{head}")
inputs = processor(Image.open("photo.png").convert("RGB"), return_tensors="pt")
with torch.no_grad():
    features = {call}
logits = features @ head["weight"].T + head["bias"]
print(class_names[int(logits.argmax())])"""


def usage(personal: PersonalModel, backbone: str, class_names: str, folder: str) -> str:
    """Python code that predicts with only transformers and PEFT."""
    named = {"folder": folder, "backbone": backbone, "class_names": class_names}
    encoder = backbone_of(personal)
    family = encoder.family
    if encoder.has_classifier:
        return _USE_VIT.format(**named)
    return _USE.format(
        **named,
        model_class=family.model_class,
        options="".join(f", {key}={value!r}" for key, value in family.load_options.items()),
        head=HEAD_FILE,
        call=family.call(encoder.model.config).replace("\n", "\n    "),
    )


def write_backbone(backbone: Backbone, folder: Path) -> None:
    """Write a backbone of any origin in transformers' format, atomically."""
    refuse_registers(backbone)
    write_whole(folder, lambda place: _save(backbone.model, backbone, place))


def write_merged(personal: PersonalModel, folder: Path) -> None:
    """Write a `ViTForImageClassification` with the adapter merged into its weights.

    For families without a classifier, write the merged encoder and the head.
    """
    backbone = backbone_of(personal)
    if backbone.has_classifier:
        model = merged_classifier(personal)
        return write_whole(folder, lambda place: _save(model, backbone, place))
    merged = merged_encoder(personal, backbone.model)

    def write(place: Path) -> None:
        _save(merged, backbone, place)
        write_head(personal, place)

    return write_whole(folder, write)


@torch.no_grad()
def merged_classifier(personal: PersonalModel) -> ViTForImageClassification:
    """The personal model as one transformers module, on the CPU."""
    model, backbone = personal.model, backbone_of(personal)
    refuse_without_classifier(backbone)
    vit = backbone.model
    state = dict(vit.state_dict())
    named = model.layout.unflatten(personal.phi.adapter)
    state |= merged_weights(model.adapter_config, named, state)
    weight, bias = model.split_head(personal.phi.head)
    names = dict(enumerate(personal.class_names))
    config = ViTConfig.from_dict(
        {
            **vit.config.to_dict(),
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
        },
        attn_implementation="sdpa",
    )
    whole = {f"vit.{name}": tensor for name, tensor in state.items()}
    whole |= {"classifier.weight": weight, "classifier.bias": bias}
    with torch.device("meta"):
        classifier = ViTForImageClassification(config)
    classifier.load_state_dict(
        {name: tensor.detach().cpu().clone() for name, tensor in whole.items()}, assign=True
    )
    return classifier.requires_grad_(False).eval()


def backbone_of(personal: PersonalModel) -> Backbone:
    """The image encoder of a personal model."""
    encoder = personal.model.encoder
    assert isinstance(encoder, Backbone)
    return encoder


def refuse_without_classifier(backbone: Backbone) -> None:
    """Refuse a backbone that `ViTForImageClassification` does not support."""
    if not backbone.has_classifier:
        raise InputError(
            f"transformers has no classifier on the features of {backbone.family.title} (backbone "
            f"{backbone.name!r}): export it without --onnx"
        )
    refuse_registers(backbone)


def refuse_registers(backbone: Backbone) -> None:
    """Refuse registers, which transformers' ViT does not support."""
    if backbone.has_classifier and REGISTERS in backbone.model.state_dict():
        raise InputError(
            f"backbone {backbone.name!r} has registers, which transformers' ViT does not know: its "
            "models predict and serve here, but cannot be exported"
        )


def _save(model: PreTrainedModel, backbone: Backbone, folder: Path) -> None:
    with quiet_transformers(progress_bar=False):
        model.save_pretrained(folder)
    write_processor(folder, backbone)
