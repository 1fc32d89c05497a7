"""Reads prompts as token numbers, and finds the backbone of a saved model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.config import Config
from pfedseq.data.dataset import Dialogue, Turn
from pfedseq.errors import InputError
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.language_model import LanguageModel, load_language_model
from pfedseq.workloads.dialogue.source import fit, row
from pfedseq.workloads.personal import Raw
from pfedseq.workloads.prompts import text_of

MOST_TOKENS = 1_000_000
USUAL_TOKENS = 256
"""Tokens per dialogue, if a folder does not specify them."""


@dataclass(frozen=True)
class DialogueReader:
    """Cuts prompts into token numbers; implements `personal.Reader`."""

    unit: ClassVar[str] = "dialogue"
    encoder: LanguageModel
    max_tokens: int
    """Maximum tokens per dialogue in training."""
    continues: bool = False
    """Whether the model continues plain texts, as learnt, instead of answering prompts."""

    def read(self, raw: Raw) -> NDArray[np.int64]:
        """A prompt, or a file's bytes in UTF-8, as token numbers (T,); keeps the end if too long.

        One token is left for the answer. A `Dialogue` with an answer becomes the rows (T, 3) of
        `source.row`, which include the next tokens.
        """
        if isinstance(raw[1], Dialogue):
            return row(fit(self.encoder.encode(raw[1]), self.max_tokens))
        text = text_of(raw)
        if self.continues:
            numbers = self.encoder.encode_beginning(text)
        else:
            asked = Dialogue((Turn("user", text.strip("\n")),), "")
            numbers = self.encoder.encode_prompt(asked)
        return np.array(numbers[1 - self.encoder.most_tokens :], dtype=np.int64)

    def inputs(self, examples: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
        """(1, T), since prompts are answered one by one."""
        (one,) = examples
        return torch.from_numpy(one).unsqueeze(0).to(device)

    def save(self, folder: Path) -> None:
        """Do nothing: the tokenizer is stored with the backbone."""

    def about(self) -> dict[str, Any]:
        """The unit, the maximum length, and whether the model continues texts."""
        return {"unit": self.unit, "max_tokens": self.max_tokens, "continues": self.continues}

    def backbone(self, base: str | None) -> dict[str, Any]:
        """The name of the backbone."""
        return {"name": base or self.encoder.name}


@dataclass(frozen=True)
class AskedLanguageModel:
    """The language model that a folder names; implements `personal.Asked`."""

    name: str
    max_tokens: int
    continues: bool

    def fits(self, encoder: Encoder) -> bool:
        """Whether a loaded model is the requested one."""
        return isinstance(encoder, LanguageModel) and encoder.name == self.name

    def load(self) -> LanguageModel:
        """Load the model."""
        return load_language_model(self.name)

    def completed(self, config: Config) -> AskedLanguageModel:
        """Unchanged, since a folder specifies everything."""
        return self

    def options(self, encoder: Encoder) -> dict[str, dict[str, Any]]:
        """The options for the backbone and the length of dialogues."""
        return {"model": {"backbone": self.name}, "data": {"max_tokens": self.max_tokens}}

    def reader(self, encoder: Encoder) -> DialogueReader:
        """A reader with the length used in training."""
        assert isinstance(encoder, LanguageModel)
        return DialogueReader(encoder, self.max_tokens, self.continues)


def asked_backbone(folder: Path, name: str, about: Mapping[str, Any]) -> AskedLanguageModel:
    """The language model of that name, with the settings in a folder's files."""
    length = about.get("max_tokens", USUAL_TOKENS)
    if not isinstance(length, int) or not 2 <= length <= MOST_TOKENS:
        raise InputError(f"{folder} asks for dialogues of {length!r} tokens")
    return AskedLanguageModel(name, length, about.get("continues") is True)
