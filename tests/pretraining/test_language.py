"""The demo's language model: pretraining learns, and its notes are answered in many notations."""

import random
from pathlib import Path

import torch
from pretraining.__main__ import save_language_model
from pretraining.language import (
    LanguageSettings,
    batch,
    loss_of,
    new_language_model,
    pretrain_language,
)
from pretraining.notes import draw

from pfedseq.data.dataset import Dialogue, Turn
from pfedseq.model.language_model import load_language_model
from pfedseq.workloads.dialogue.source import padded

TINY = LanguageSettings(steps=12, batch_size=8, warmup_steps=2, width=16, depth=1, mlp_width=16)


def test_a_note_has_the_name_and_the_value_of_its_prompt() -> None:
    rng = random.Random(0)
    for _ in range(200):
        prompt, note = draw(rng)
        name, _, value = prompt.rpartition(" ")
        assert name.casefold() in note.casefold()
        assert value in note.replace(",", ".")


def test_the_loss_falls_and_the_saved_model_is_read_back(tmp_path: Path) -> None:
    said: list[str] = []
    language = pretrain_language(TINY, said.append, report_every=6)
    assert [line.split()[1] for line in said] == ["6/12", "12/12"]
    rows = torch.from_numpy(padded(batch(language, 16, random.Random(5))))
    with torch.no_grad():
        before = loss_of(new_language_model(TINY).model, rows)
        after = loss_of(language.model, rows)
    assert after < before
    save_language_model(language, tmp_path)
    read = load_language_model(str(tmp_path))
    asked = Dialogue((Turn("user", "ash 2.5"),), "ash = 2.5")
    assert read.encode(asked) == language.encode(asked)
    assert read.tokenizer.decode(read.encode(asked).before) == "<|user|>ash 2.5<|end|><|assistant|>"
    for name, weight in read.model.state_dict().items():
        torch.testing.assert_close(weight, language.model.state_dict()[name].float())


def test_the_packaged_model_copies_what_it_is_asked() -> None:
    """Three of four tokens of a fresh note follow from its prompt, whatever the notation."""
    packaged = load_language_model("demo-llm")
    rows = torch.from_numpy(padded(batch(packaged, 32, random.Random(7))))
    assert float(loss_of(packaged.model, rows)) < 0.5
