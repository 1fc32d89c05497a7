"""Texts for the adapted model: a frozen BERT, and what it reads of every text.

The feature of a text is the mean of the last layer's outputs over its tokens, which serves for
sentences as well as BERT's first token does, and tells words apart even under random weights.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel

from pfedseq.data.auxiliary import AuxiliaryConfig
from pfedseq.data.dataset import TextSet
from pfedseq.data.text import load_texts
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import Places
from pfedseq.model.encoders.encoder import Towers, same_weights
from pfedseq.model.encoders.vit.timm_weights import reason
from pfedseq.model.layout import AdapterLayout
from pfedseq.model.peft_folder import write_peft_folder
from pfedseq.params import Params
from pfedseq.seeding import seeded, torch_generator
from pfedseq.workloads.personal import write_about

BERT = Places(
    {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "output": "attention.output.dense",
        "mlp_in": "intermediate.dense",
        "mlp_out": "output.dense",
    },
    "layer",
)
RANDOM = "random:bert-tiny"
GENERATED_TEXTS = 2000
PADDING, FIRST, WORDS = 0, 1, 2
"""Tokens where there is no vocabulary: none, the first of every text, and from here on words."""
_WORD = re.compile(r"\w+|[^\w\s]")

Tokenise = Callable[[Sequence[str], int], NDArray[np.int64]]
"""(texts, length) ↦ token numbers (n, length): cut where longer, padded where shorter."""


class BertFeatures(BertModel):  # type: ignore[misc]  # transformers' types are not followed
    """Token numbers (B, T) ↦ features (B, F)."""

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean output over a text's tokens; padding is not looked at."""
        mask = (tokens != self.config.pad_token_id).long()
        outputs: Tensor = super().forward(tokens, attention_mask=mask).last_hidden_state
        shares = mask / mask.sum(1, keepdim=True)  # (B, T)
        mean: Tensor = (outputs * shares.unsqueeze(2)).sum(1)
        return mean


@dataclass(frozen=True)
class TextEncoder:
    """A frozen BERT and its tokens; implements `encoder.Encoder`."""

    model: BertFeatures
    tokenise: Tokenise
    name: str

    @property
    def places(self) -> Places:
        """Where adapters go."""
        return BERT

    @property
    def feature_dim(self) -> int:
        """F."""
        return int(self.model.config.hidden_size)

    @property
    def num_layers(self) -> int:
        """K."""
        return int(self.model.config.num_hidden_layers)

    def towers(self, first: int, inject: Callable[[nn.Module], None]) -> Towers:
        """Uncut: what lies below the first adapter is computed with the rest."""
        adapted = same_weights(self.model)
        inject(adapted)
        return Towers(None, same_weights(self.model), adapted)

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        precision: torch.dtype | None,
    ) -> None:
        """Not for texts: clients take turns."""
        return


def load_text_encoder(name: str, seed: int = 0) -> TextEncoder:
    """A folder or hub id of a BERT with its tokenizer, or `random:bert-tiny`."""
    if name == RANDOM:
        config = BertConfig(
            vocab_size=8192,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            pad_token_id=PADDING,
        )
        with seeded(seed):
            model = BertFeatures(config, add_pooling_layer=False)
        return TextEncoder(_frozen(model), _by_checksum(config.vocab_size), name)
    config_file = Path(name).expanduser() / "config.json"
    if name == "demo" or name.startswith("random:"):
        raise InputError(
            f"backbone {name!r} reads images: for texts name a folder of a BERT, or {RANDOM}"
        )
    try:
        kind = json.loads(config_file.read_text())["model_type"] if config_file.exists() else "bert"
        if kind != "bert":
            raise InputError(f"backbone {name!r} is a {kind!r}: for texts a 'bert' is needed")
        tokenizer = AutoTokenizer.from_pretrained(name)
        model, report = BertFeatures.from_pretrained(
            name,
            add_pooling_layer=False,
            output_loading_info=True,
            weights_only=True,
            dtype=torch.float32,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"backbone {name!r} cannot be read as a BERT: {reason(error)}") from None
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise InputError(f"backbone {name!r} is not a whole BERT: missing {missing}")

    def tokenise(texts: Sequence[str], length: int) -> NDArray[np.int64]:
        batch = tokenizer(list(texts), truncation=True, max_length=length, padding="max_length")
        return np.asarray(batch["input_ids"], dtype=np.int64)

    return TextEncoder(_frozen(model), tokenise, name)


@dataclass(frozen=True)
class TextSource:
    """Token numbers and labels by index; implements `task.Examples`."""

    texts: TextSet
    tokens: NDArray[np.int64]
    """(n, T)."""
    encoder: TextEncoder
    device: torch.device

    @classmethod
    def of(
        cls, texts: TextSet, encoder: TextEncoder, max_tokens: int, device: torch.device
    ) -> TextSource:
        """Every text in tokens, at most `max_tokens` of them."""
        longest = int(encoder.model.config.max_position_embeddings)
        if max_tokens > longest:
            raise InputError(
                f"data.max_tokens = {max_tokens}, but backbone {encoder.name!r} reads {longest}"
            )
        tokens = encoder.tokenise(texts.texts, max_tokens)
        return cls(texts, tokens, encoder, device)

    @property
    def padding(self) -> int:
        """The token that stands for none."""
        return int(self.encoder.model.config.pad_token_id)

    @property
    def class_names(self) -> tuple[str, ...]:
        """C of them."""
        return self.texts.class_names

    def inputs(self, indices: NDArray[np.int64]) -> Tensor:
        """(B, T): no longer than the batch's longest text."""
        rows = self.tokens[indices]
        used = np.flatnonzero((rows != self.padding).any(axis=0))
        return torch.from_numpy(rows[:, : used[-1] + 1]).to(self.device)

    def labels(self, indices: NDArray[np.int64]) -> Tensor:
        """(B,) class indices."""
        return torch.from_numpy(self.texts.labels[indices]).to(self.device)

    def thumbnails(self, indices: NDArray[np.int64]) -> Tensor:
        """There are none."""
        raise InputError(NO_THUMBNAILS)

    def auxiliary(self, config: AuxiliaryConfig, seed: int) -> TextSource:
        """Other texts, of which nobody reads the labels: a data set's, or tokens at random."""
        shape = (config.num_images or GENERATED_TEXTS, self.tokens.shape[1])
        if config.name == "generated":
            vocabulary = int(self.encoder.model.config.vocab_size)
            rng = torch_generator(seed, "auxiliary texts")
            drawn = torch.randint(self.padding + 1, vocabulary, shape, generator=rng).numpy()
            drawn[:, 0] = self.tokens[0, 0]
            return replace(self, tokens=drawn)
        if config.name != "text":
            raise InputError(
                f"auxiliary.name = {config.name!r} are images: for texts choose `text` and a "
                "source, or `generated`"
            )
        texts = load_texts(config.data_config(32)).texts[: config.num_images]
        return replace(self, tokens=self.encoder.tokenise(texts, shape[1]))


NO_THUMBNAILS = (
    "pefll describes a client by small versions of its images, and texts have none: choose "
    "another method"
)


def save_text_model(
    folder: Path,
    model: AdaptedModel,
    phi: Params,
    backbone: str,
    class_names: tuple[str, ...],
    **about: Any,
) -> None:
    """The folder of a personal model, as for images; `about` says whose it is."""
    write_peft_folder(folder, model, phi, backbone)
    write_about(folder, {**about, "backbone": {"name": backbone}, "class_names": class_names})


def _frozen(model: BertFeatures) -> BertFeatures:
    frozen: BertFeatures = model.requires_grad_(False).eval()
    return frozen


def _by_checksum(vocabulary: int) -> Tokenise:
    """Words numbered by their checksum: random weights know no vocabulary."""

    def tokenise(texts: Sequence[str], length: int) -> NDArray[np.int64]:
        tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
        tokens[:, 0] = FIRST
        for row, text in zip(tokens, texts, strict=True):
            words = _WORD.findall(text.lower())[: length - 1]
            checksums = [zlib.crc32(word.encode()) for word in words]
            row[1 : 1 + len(words)] = [WORDS + c % (vocabulary - WORDS) for c in checksums]
        return tokens

    return tokenise
