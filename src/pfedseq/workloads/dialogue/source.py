"""Dialogues by index, as the adapted model reads them; implements `task.Examples`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.data.dataset import ClientData, Dialogue, DialogueSet
from pfedseq.data.image_store import Report
from pfedseq.errors import InputError
from pfedseq.model.encoders.parts import Part
from pfedseq.model.language_model import Encoded, LanguageModel
from pfedseq.model.readout import PADDING, PREDICTED, READ
from pfedseq.model.token_store import Kept, Prefix, Storage, tokens_for

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class DialogueSource:
    """Token numbers with their roles, and the tokens to predict, by index."""

    rows: Numbers
    """(n, T, 2): token numbers and roles."""
    answers: tuple[Numbers, ...]
    """The predicted tokens of each dialogue."""
    device: torch.device
    cut: int = 0
    """The number of truncated dialogues."""
    kept: Callable[[Numbers], Tensor] | None = None
    """Reads the stored outputs of the frozen layers below the first adapter; None if not stored."""

    @classmethod
    def of(
        cls,
        dialogues: Iterable[Dialogue],
        encoder: LanguageModel,
        max_tokens: int,
        device: torch.device,
    ) -> DialogueSource:
        """All dialogues as tokens, truncated to `max_tokens`."""
        longest = encoder.most_tokens
        if max_tokens > longest:
            raise InputError(
                f"data.max_tokens = {max_tokens}, but backbone {encoder.name!r} reads {longest}"
            )
        whole = [encoder.encode(dialogue) for dialogue in dialogues]
        fitted = [fit(one, max_tokens) for one in whole]
        rows = [row(one) for one in fitted]
        cut = sum(one != other for one, other in zip(whole, fitted, strict=True))
        return cls(padded(rows)[..., :2], tuple(map(predicted, rows)), device, cut)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Empty: dialogues have no classes."""
        return ()

    def inputs(self, indices: Numbers) -> Tensor:
        """Token numbers and roles (B, T, 2), or the frozen layers' tokens and roles (B, T, F + 1).

        T is the length of the batch's longest dialogue.
        """
        rows = trimmed(self.rows[indices])
        if self.kept is None:
            return torch.from_numpy(rows).to(self.device)
        kept = self.kept(indices)[:, : rows.shape[1]]
        return kept.to(self.device, torch.float32)

    def numbers(self, indices: Numbers) -> Tensor:
        """(B, T, 2), with full padding."""
        return torch.from_numpy(self.rows[indices]).to(self.device)

    def training_inputs(self, indices: Numbers, stream: int) -> Tensor:
        """The same as `inputs`, since dialogues are not augmented."""
        return self.inputs(indices)

    def labels(self, indices: Numbers) -> Tensor:
        """The predicted tokens of all dialogues, concatenated."""
        own = [self.answers[i] for i in indices.tolist()]
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *own])).to(self.device)

    def sketches(self, indices: Numbers) -> Tensor:
        """Refuse: PeFLL describes clients by the classes of their examples."""
        raise InputError("PeFLL describes a client by its classes, which dialogues do not have")


def fit(one: Encoded, max_tokens: int) -> Encoded:
    """Truncate to `max_tokens`: the start of the answer is kept, then the end of the prompt."""
    answer = one.answer[: max_tokens - min(len(one.before), 1)]
    room = max_tokens - len(answer)
    return Encoded(one.before[-room:] if room else [], answer)


def row(one: Encoded) -> Numbers:
    """(T, 3): the number, role and next token of every token except the last.

    The tokens of the answer are predicted, except one at the very start of a dialogue.
    """
    numbers = np.array([*one.before, *one.answer], dtype=np.int64)
    roles = np.full(len(numbers) - 1, READ)
    roles[max(0, len(one.before) - 1) :] = PREDICTED
    return np.stack([numbers[:-1], roles, numbers[1:]], axis=1)


def padded(rows: Sequence[Numbers]) -> Numbers:
    """(B, T, 3): rows padded to the longest."""
    table = np.full((len(rows), max(map(len, rows), default=1), 3), PADDING, dtype=np.int64)
    for place, own in enumerate(rows):
        table[place, : len(own)] = own
    return table


def predicted(rows: Numbers) -> Numbers:
    """The tokens that are predicted in rows (…, T, 3), in order."""
    following: Numbers = rows[rows[..., 1] == PREDICTED][:, 2]
    return following


def trimmed(rows: Numbers) -> Numbers:
    """Rows (B, T, 2) without the columns that are padding in all of them."""
    used = np.flatnonzero((rows[..., 1] != PADDING).any(axis=0))
    return rows[:, : used[-1] + 1] if len(used) else rows[:, :1]


def with_tokens(
    source: DialogueSource,
    dialogues: DialogueSet,
    tower: Part,
    clients: Sequence[ClientData],
    storage: Storage,
    store: Path | None,
    report: Report | None = None,
) -> DialogueSource:
    """A source with the outputs of the frozen layers for all clients' dialogues computed."""
    facts = (source.rows.shape[1], hashlib.sha256(source.rows.tobytes()).hexdigest())
    kept = Kept(dialogues.name, len(dialogues.dialogues), dialogues.fingerprint, facts)
    prefix = Prefix(tower, source.numbers, source.device)
    return replace(source, kept=tokens_for(prefix, clients, kept, storage, store, report))
