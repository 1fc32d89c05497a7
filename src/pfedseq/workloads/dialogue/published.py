"""Plain transformers checkpoints of language models, and code that loads them without pfedseq."""

from __future__ import annotations

from pathlib import Path

from pfedseq.model.language_model import LanguageModel
from pfedseq.workloads.headless import merged_encoder
from pfedseq.workloads.personal import PersonalModel
from pfedseq.workloads.token_kind import save_with_tokenizer
from pfedseq.workloads.whole_folder import write_whole

_USE = """\
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = Path({folder})
backbone = {backbone}

model = AutoModelForCausalLM.from_pretrained(backbone, dtype=torch.float32)
model = PeftModel.from_pretrained(model, folder).eval()
tokenizer = AutoTokenizer.from_pretrained(backbone)
{prompt}
with torch.no_grad():
    answer = model.generate(**inputs, max_new_tokens=64, do_sample=False)
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""

_ASKED = """\
messages = [{"role": "user", "content": "a prompt"}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)"""

_PLAIN = """inputs = tokenizer("a prompt", return_tensors="pt")"""


def usage(personal: PersonalModel, backbone: str, folder: str) -> str:
    """Python code that generates answers with only transformers and PEFT."""
    encoder = personal.model.encoder
    assert isinstance(encoder, LanguageModel)
    asked = encoder.tokenizer.chat_template is not None and not personal.reader.about()["continues"]
    return _USE.format(folder=folder, backbone=backbone, prompt=_ASKED if asked else _PLAIN)


def write_merged(personal: PersonalModel, folder: Path) -> None:
    """Write the model with the adapter merged into its weights, and its tokenizer."""
    encoder = personal.model.encoder
    assert isinstance(encoder, LanguageModel)
    model = merged_encoder(personal, encoder.model)
    write_whole(folder, lambda place: save_with_tokenizer(model, encoder, place))
