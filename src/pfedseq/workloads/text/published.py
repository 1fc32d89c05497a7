"""Plain transformers checkpoints of text encoders, and code that loads them without pfedseq."""

from __future__ import annotations

from pathlib import Path

from pfedseq.model.text_encoder import TextEncoder
from pfedseq.workloads.headless import HEAD_FILE, merged_encoder, write_head
from pfedseq.workloads.personal import PersonalModel
from pfedseq.workloads.token_kind import save_with_tokenizer
from pfedseq.workloads.whole_folder import write_whole

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
    """Python code that predicts with only transformers and PEFT."""
    about = personal.reader.about()
    return _USE.format(
        folder=folder,
        backbone=backbone,
        class_names=class_names,
        head=HEAD_FILE,
        max_tokens=about["max_tokens"],
        pooled=_POOLED[about["pooling"]],
    )


def write_merged(personal: PersonalModel, folder: Path) -> None:
    """Write the encoder with the adapter merged, its tokenizer, and the head."""
    encoder = personal.model.encoder
    assert isinstance(encoder, TextEncoder)
    model = merged_encoder(personal, encoder.model)

    def write(place: Path) -> None:
        save_with_tokenizer(model, encoder, place)
        write_head(personal, place)

    write_whole(folder, write)
