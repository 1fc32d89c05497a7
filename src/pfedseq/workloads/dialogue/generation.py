"""Text generation with a client's language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfedseq.errors import InputError
from pfedseq.model.encoders.loading import quiet_transformers
from pfedseq.model.language_model import LanguageModel
from pfedseq.seeding import seeded
from pfedseq.workloads.headless import merged_encoder
from pfedseq.workloads.personal import PersonalModel


@dataclass(frozen=True)
class Writing:
    """Options of text generation."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    """0 always takes the likeliest token; higher values draw tokens more evenly."""
    seed: int = 0
    """Seed of the drawn tokens."""


class Writer:
    """Generates answers with a client's model, whose adapter is merged into the weights once."""

    def __init__(self, personal: PersonalModel, how: Writing) -> None:
        encoder = personal.model.encoder
        if not isinstance(encoder, LanguageModel):
            raise InputError(
                f"backbone {encoder.name!r} is not a language model: it cannot write answers"
            )
        self.encoder, self.how = encoder, how
        self._model: Any = merged_encoder(personal, encoder.model).to(personal.model.device)

    @torch.no_grad()
    def write(self, prompt: NDArray[np.int64]) -> str:
        """The answer to a prompt in tokens; the same prompt and seed give the same answer."""
        encoder, how = self.encoder, self.how
        numbers = torch.from_numpy(prompt).unsqueeze(0).to(self._model.device)
        drawn: dict[str, Any] = {"do_sample": False, "temperature": None, "top_k": None}
        drawn["top_p"] = None
        if how.temperature:
            drawn = {"do_sample": True, "temperature": how.temperature}
        ends = sorted(encoder.end_tokens)
        with quiet_transformers(progress_bar=False), seeded(how.seed, "writing"):
            written = self._model.generate(
                numbers,
                attention_mask=torch.ones_like(numbers),
                max_new_tokens=min(how.max_new_tokens, encoder.most_tokens - numbers.shape[1]),
                eos_token_id=ends or None,
                pad_token_id=ends[0] if ends else None,
                **drawn,
            )
        answer: str = encoder.tokenizer.decode(
            written[0, numbers.shape[1] :], skip_special_tokens=True
        )
        return answer
