"""Reads texts as token numbers, and finds the backbone of a saved model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.config import Config
from pfedseq.errors import InputError
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.encoders.parts import Pooling
from pfedseq.model.text_encoder import TextEncoder, load_text_encoder
from pfedseq.workloads.personal import Raw
from pfedseq.workloads.prompts import text_of
from pfedseq.workloads.text.source import trimmed

MOST_TOKENS = 1_000_000


@dataclass(frozen=True)
class TextReader:
    """Cuts texts into token numbers; implements `personal.Reader`."""

    unit: ClassVar[str] = "text"
    encoder: TextEncoder
    max_tokens: int

    def read(self, raw: Raw) -> NDArray[np.int64]:
        """A text, or a file's bytes in UTF-8, as token numbers (T,)."""
        text = text_of(raw).strip()
        numbers: NDArray[np.int64] = self.encoder.tokenise([text], self.max_tokens)[0]
        return numbers

    def inputs(self, examples: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
        """(B, T), where T is the length of the longest text."""
        return torch.from_numpy(trimmed(np.stack(examples), self.encoder.padding)).to(device)

    def save(self, folder: Path) -> None:
        """Do nothing: the tokenizer is stored with the backbone."""

    def about(self) -> dict[str, Any]:
        """The unit, the maximum length and the pooling."""
        pooling = self.encoder.pooling
        return {"unit": self.unit, "max_tokens": self.max_tokens, "pooling": pooling}

    def backbone(self, base: str | None) -> dict[str, Any]:
        """The name of the backbone."""
        return {"name": base or self.encoder.name}


@dataclass(frozen=True)
class AskedTextEncoder:
    """The text encoder that a folder names; implements `personal.Asked`."""

    name: str
    max_tokens: int
    pooling: Pooling | None

    def fits(self, encoder: Encoder) -> bool:
        """Whether a loaded encoder is the requested one."""
        return (
            isinstance(encoder, TextEncoder)
            and encoder.name == self.name
            and self.pooling in (None, encoder.pooling)
        )

    def load(self) -> TextEncoder:
        """Load the encoder."""
        return load_text_encoder(self.name, self.pooling)

    def completed(self, config: Config) -> AskedTextEncoder:
        """Unchanged, since a folder specifies everything."""
        return self

    def options(self, encoder: Encoder) -> dict[str, dict[str, Any]]:
        """The options for the backbone and the length of texts."""
        assert isinstance(encoder, TextEncoder)
        return {
            "model": {"backbone": self.name, "pooling": encoder.pooling},
            "data": {"max_tokens": self.max_tokens},
        }

    def reader(self, encoder: Encoder) -> TextReader:
        """A reader with the length used in training."""
        assert isinstance(encoder, TextEncoder)
        return TextReader(encoder, self.max_tokens)


def asked_backbone(folder: Path, name: str, about: Mapping[str, Any]) -> AskedTextEncoder:
    """The encoder of that name, with the settings in a folder's files."""
    length = about["max_tokens"]
    if not isinstance(length, int) or not 1 <= length <= MOST_TOKENS:
        raise InputError(f"{folder} asks for texts of {length!r} tokens")
    pooling = about.get("pooling")
    if pooling is not None and pooling not in get_args(Pooling):
        raise InputError(f"{folder} asks for the unknown pooling {pooling!r}")
    return AskedTextEncoder(name, length, pooling)
