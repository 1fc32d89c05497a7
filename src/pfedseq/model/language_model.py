"""Load a frozen causal language model with its tokenizer: a folder, a hub id, or the demo's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from pfedseq.data.dataset import Dialogue
from pfedseq.errors import InputError
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.encoders import find_family
from pfedseq.model.encoders.encoder import Stacked, Towers
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.loading import load_weights, quiet_transformers, read_config
from pfedseq.model.encoders.parts import DialoguePart, joined
from pfedseq.model.encoders.tensor_files import UNREADABLE, reason
from pfedseq.model.encoders.token_model import TokenModel
from pfedseq.model.layout import AdapterLayout
from pfedseq.model.readout import PADDING, FrozenHead

DEMO = "demo-llm"
DEMO_FOLDER = Path(__file__).resolve().parents[1] / "assets" / "demo_llm"


class Encoded(NamedTuple):
    """A dialogue as token numbers."""

    before: list[int]
    """The tokens before the answer, which are only read."""
    answer: list[int]
    """The tokens of the answer, with its end token."""


@dataclass(frozen=True)
class LanguageModel(TokenModel):
    """A frozen causal model and its tokenizer; implements `encoder.Encoder`."""

    model: PreTrainedModel
    """With its output layer, in eval mode and without gradients."""
    family: Family
    name: str
    tokenizer: Any
    """transformers' own."""

    @property
    def place(self) -> Path:
        """The folder that it was loaded from; for a hub id, no such folder exists."""
        return DEMO_FOLDER if self.name == DEMO else Path(self.name)

    @property
    def tunes_head(self) -> bool:
        """False: the model's own output layer is used."""
        return False

    def readout(self, tower: nn.Module, num_classes: int) -> FrozenHead:
        """The model's own output layer, on the tower's device."""
        assert isinstance(tower, DialoguePart)
        assert tower.output is not None  # the tower ends at the top
        return FrozenHead(tower.output.weight)

    @property
    def has_classifier(self) -> bool:
        """False: language models have no classifier."""
        return False

    def towers(self, first: int, inject: Callable[[nn.Module], None]) -> Towers:
        """The model in two towers, cut below layer `first`."""
        blocks = self.model.base_model
        return self.family.towers(blocks, self.num_layers, first, inject, self._part)

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        precision: torch.dtype | None,
    ) -> Stacked | None:
        """A function for several clients' features in one pass; None if not supported."""
        return self.family.stacked(plain, adapter, layout, self.num_layers, precision)

    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of the features, computed from the weights."""
        return self.family.feature_length(tower)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Several clients' dialogues as one batch, padded to the longest."""
        return joined(parts, PADDING)

    def checksum(self) -> str:
        """Changes with any weight and any option that affects the computation."""
        return self._part(self.model.base_model, self.num_layers, True).checksum()

    @property
    def end_tokens(self) -> set[int]:
        """Token numbers that end an answer."""
        ends: set[int] = set()
        for said in (self.model.generation_config.eos_token_id, self.tokenizer.eos_token_id):
            ends |= set(said) if isinstance(said, list) else {said} - {None}
        return ends

    def encode(self, dialogue: Dialogue) -> Encoded:
        """A complete dialogue, in the tokenizer's chat template if it has one.

        The answer is what the template adds to the prompt; without a template the answer follows
        directly, with the end-of-text token.
        """
        if not dialogue.turns:
            answer = self._ended(self._numbers(dialogue.answer, special=False))
            return Encoded(self._numbers("", special=True), answer)
        if self.tokenizer.chat_template is None:
            answer = self._ended(self._numbers(dialogue.answer, special=False))
            return Encoded(self.encode_prompt(dialogue), answer)
        prompt = self._rendered(dialogue, answered=False)
        whole = self._rendered(dialogue, answered=True)
        if not whole.startswith(prompt):
            raise InputError(
                f"the chat template of backbone {self.name!r} formats a prompt differently with "
                "and without its answer: choose another model or template"
            )
        answer = self._numbers(whole[len(prompt) :], special=False)
        return Encoded(self._numbers(prompt, special=False), answer)

    def encode_beginning(self, text: str) -> list[int]:
        """The tokens of a plain text that the model is to continue."""
        return self._numbers("", special=True) + self._numbers(text, special=False)

    def encode_prompt(self, dialogue: Dialogue) -> list[int]:
        """The tokens before the answer, formatted as for generation."""
        if self.tokenizer.chat_template is not None:
            return self._numbers(self._rendered(dialogue, answered=False), special=False)
        if [turn.role for turn in dialogue.turns] != ["user"]:
            raise InputError(
                f"the tokenizer of backbone {self.name!r} has no chat template, which messages "
                'need: give it one, or write {"prompt": …, "answer": …}'
            )
        return self._numbers(dialogue.turns[0].content, special=True)

    def _rendered(self, dialogue: Dialogue, *, answered: bool) -> str:
        messages = [turn._asdict() for turn in dialogue.turns]
        if answered:
            messages.append({"role": "assistant", "content": dialogue.answer})
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not answered
            )
        except (TemplateError, TypeError, ValueError) as problem:
            roles = ", ".join(turn.role for turn in dialogue.turns)
            raise InputError(
                f"the chat template of backbone {self.name!r} refuses a dialogue of {roles}: "
                f"{problem}"
            ) from None
        return text

    def _numbers(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text without end token; `special` adds the tokenizer's special tokens."""
        numbers: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        if special and numbers and numbers[-1] == self.tokenizer.eos_token_id:
            return numbers[:-1]
        return numbers

    def _ended(self, numbers: list[int]) -> list[int]:
        end = self.tokenizer.eos_token_id
        return numbers if end is None else [*numbers, end]

    def _part(self, model: nn.Module, num_layers: int, to_the_top: bool) -> DialoguePart:
        output = self.model.get_output_embeddings() if to_the_top else None
        return DialoguePart(model, num_layers, self.family.options(self.config), output)


def load_language_model(name: str) -> LanguageModel:
    """A folder or hub id with its tokenizer, or `demo-llm`, the small one in this package."""
    check_reads_dialogues(name)
    place = str(DEMO_FOLDER) if name == DEMO else name
    family = find_family(read_config(place).get("model_type"), "dialogue", name)
    model = load_weights(place, family)
    output = model.get_output_embeddings()
    if getattr(output, "bias", None) is not None:
        raise InputError(
            f"backbone {name!r} has a bias in its output layer, which is not supported"
        )
    return LanguageModel(model, family, name, _tokenizer(place, name))


def check_reads_dialogues(name: str) -> None:
    """Refuse a backbone whose name shows that it reads images or texts."""
    if name == "demo" or name.startswith("random:"):
        raise InputError(
            f"backbone {name!r} is not a language model: for dialogues use the folder or hub id of "
            f"one, or {DEMO}"
        )


def _tokenizer(place: str, name: str) -> Any:
    try:
        with quiet_transformers(progress_bar=not Path(place).is_dir()):
            return AutoTokenizer.from_pretrained(place)
    except UNREADABLE as error:
        raise InputError(
            f"cannot read the tokenizer of backbone {name!r}: {reason(error)}"
        ) from error
