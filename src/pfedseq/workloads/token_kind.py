"""What serving does alike for texts and for dialogues."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from pfedseq.errors import InputError
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.encoders.loading import load_weights, quiet_transformers
from pfedseq.model.encoders.token_model import TokenModel
from pfedseq.workloads.kinds import Found
from pfedseq.workloads.prompts import find_texts
from pfedseq.workloads.whole_folder import write_whole


class TokenKind:
    """The part of a `kinds.Kind` that the model's tokens do not matter for."""

    def find(self, named: Sequence[str]) -> list[Found]:
        """Texts from arguments, .txt files, and folders of .txt files."""
        return find_texts(named)

    def write_backbone(self, encoder: Encoder, folder: Path) -> None:
        """Write the model with its tokenizer, for transformers' `Auto` classes."""
        whole = token_model(encoder)
        write_whole(folder, lambda place: save_with_tokenizer(whole.model, whole, place))

    def same_backbone(self, encoder: Encoder, folder: Path) -> bool:
        """Whether a folder has the weights of a model."""
        whole = token_model(encoder)
        mine = whole.model.state_dict()
        theirs = load_weights(str(folder), whole.family).state_dict()
        return mine.keys() == theirs.keys() and all(
            torch.equal(mine[name].cpu(), theirs[name]) for name in mine
        )

    def check_onnx(self) -> None:
        """Refuse: ONNX files are for images."""
        raise InputError("--onnx is for images: leave it out")


def token_model(encoder: Encoder) -> TokenModel:
    """The same, as a model that reads tokens."""
    assert isinstance(encoder, TokenModel)
    return encoder


def save_with_tokenizer(model: PreTrainedModel, encoder: TokenModel, folder: Path) -> None:
    """Write a model and the tokenizer of the encoder that it stems from."""
    with quiet_transformers(progress_bar=False):
        model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)
