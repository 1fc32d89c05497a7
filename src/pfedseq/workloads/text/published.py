"""Plain transformers checkpoints of text encoders, and code that loads an export without us."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from pfedseq.model.adapters import merged_weights
from pfedseq.model.encoders.loading import load_weights, quiet_transformers
from pfedseq.model.encoders.parts import same_weights
from pfedseq.model.text_encoder import TextEncoder
from pfedseq.workloads.personal import PersonalModel
from pfedseq.workloads.whole_folder import write_whole

HEAD_FILE = "head.safetensors"

_USE = """\
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

folder = Path({folder})
backbone = {backbone}
class_names = {class_names}

model = PeftModel.from_pretrained(AutoModel.from_pretrained(backbone), folder).eval()
tokenizer = AutoTokenizer.from_pretrained(backbone)
head = load_file(folder / "{head}")
tokens = tokenizer("a text", truncation=True, max_length={max_tokens}, return_tensors="pt")
with torch.no_grad():
    outputs = model(**tokens).last_hidden_state[0]  # (tokens, width)
feature = {pooled}
logits = head["weight"] @ feature + head["bias"]
print(class_names[int(logits.argmax())])"""

_POOLED = {
    "mean": "outputs.mean(0)",
    "first": "outputs[0]",
    "last": "outputs[-1]",
    "max": "outputs.amax(0)",
}


def usage(personal: PersonalModel, backbone: str, class_names: str, folder: str) -> str:
    """Python that predicts with transformers and PEFT alone."""
    about = personal.reader.about()
    return _USE.format(
        folder=folder,
        backbone=backbone,
        class_names=class_names,
        head=HEAD_FILE,
        max_tokens=about["max_tokens"],
        pooled=_POOLED[about["pooling"]],
    )


def write_backbone(encoder: TextEncoder, folder: Path) -> None:
    """A text encoder with its tokenizer as `AutoModel` and `AutoTokenizer` read it."""
    write_whole(folder, lambda place: _save(encoder.model, encoder, place))


def same_backbone(encoder: TextEncoder, folder: Path) -> bool:
    """Whether a folder has the weights of an encoder."""
    mine = encoder.model.state_dict()
    theirs = load_weights(str(folder), encoder.family).state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name].cpu(), theirs[name]) for name in mine
    )


def write_merged(personal: PersonalModel, folder: Path) -> None:
    """The encoder with the adapter in its weights, its tokenizer, and the head beside."""
    encoder = personal.model.encoder
    assert isinstance(encoder, TextEncoder)
    model = merged_encoder(personal)

    def write(place: Path) -> None:
        _save(model, encoder, place)
        write_head(personal, place)

    write_whole(folder, write)


@torch.no_grad()
def merged_encoder(personal: PersonalModel) -> PreTrainedModel:
    """transformers' model with the adapter in its weights."""
    model, encoder = personal.model, personal.model.encoder
    assert isinstance(encoder, TextEncoder)
    state = encoder.model.state_dict()
    named = {
        encoder.published_name(name): tensor.cpu()
        for name, tensor in model.layout.unflatten(personal.phi.adapter).items()
    }
    merged: PreTrainedModel = same_weights(encoder.model)
    weights = merged_weights(model.adapter_config, named, state)
    merged.load_state_dict({n: t.clone() for n, t in (state | weights).items()}, assign=True)
    return merged


def write_head(personal: PersonalModel, folder: Path) -> None:
    """The linear layer on the features, as `weight` (C, F) and `bias` (C,)."""
    weight, bias = personal.model.split_head(personal.phi.head)
    tensors = {"weight": weight, "bias": bias}
    save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, folder / HEAD_FILE)


def _save(model: PreTrainedModel, encoder: TextEncoder, folder: Path) -> None:
    with quiet_transformers(progress_bar=False):
        model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)
