"""Ranges of an encoder's blocks, each a function of one tensor.

A transformer of any family is cut without changing its code: its list of blocks is replaced by a
range of them, the modules below the cut by one that passes its input on, and the modules above by
nothing. Weights and adapters keep the names they have in the complete model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from pfedseq.model.encoders.checksum import checksum_of
from pfedseq.model.readout import PREDICTED

Module = TypeVar("Module", bound=nn.Module)
Pooling = Literal["mean", "first", "last", "max"]
"""How the outputs of a text's tokens become one feature vector."""


class Part(nn.Module):
    """A range of an encoder's blocks as one function; subclasses define its input and output."""

    num_layers: int
    """The number of its blocks."""
    options: tuple[object, ...]
    """Options that affect its computation, for the checksum."""

    def checksum(self) -> str:
        """Changes with any weight and any of `options`."""
        return checksum_of(self, self.options)


class Stretch(nn.Module):
    """Blocks `start` … `stop` − 1 of a list, with their original numbers."""

    def __init__(self, blocks: nn.ModuleList, start: int, stop: int) -> None:
        super().__init__()
        for number in range(start, stop):
            self.add_module(str(number), blocks[number])

    def __iter__(self) -> Iterator[nn.Module]:
        return self.children()

    def __len__(self) -> int:
        return len(self._modules)

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> list[nn.Module]: ...
    def __getitem__(self, index: int | slice) -> nn.Module | list[nn.Module]:
        return list(self.children())[index]


class PassOn(nn.Module):
    """Replaces the embeddings: returns the tensor of floats among its arguments."""

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """The tokens (B, T, F), unchanged."""
        for value in (*given, *named.values()):
            if isinstance(value, Tensor) and value.is_floating_point():
                return value
        raise TypeError("a part of an encoder was called without tokens")


def cut(
    model: nn.Module, blocks: str, start: int, stop: int, below: Sequence[str], above: Sequence[str]
) -> None:
    """Reduce a transformer to blocks `start` … `stop` − 1, in place.

    `blocks` is the path of its list of blocks; `below` are the modules before the first block,
    `above` those after the last.
    """
    every = model.get_submodule(blocks)
    assert isinstance(every, nn.ModuleList)
    if start:
        for name in below:
            _put(model, name, PassOn())
    if stop < len(every):
        for name in above:
            _put(model, name, nn.Identity())
    _put(model, blocks, Stretch(every, start, stop))


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


class ImagePart(Part):
    """A range of an image encoder's blocks.

    A part that starts at the bottom takes normalised images (B, 3, S, S), any other tokens
    (B, T, F); `run` computes transformers' outputs from them. A part that ends at the top returns
    features, which `pool` takes from the outputs; any other returns tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        num_layers: int,
        options: tuple[object, ...],
        run: Callable[[nn.Module, Tensor], Any],
        pool: Callable[[Any], Tensor] | None,
    ) -> None:
        super().__init__()
        self.model, self.num_layers, self.options = model, num_layers, options
        self.run, self.pool = run, pool

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs as transformers does."""
        outputs = self.run(self.model, inputs)
        pooled: Tensor = outputs.last_hidden_state if self.pool is None else self.pool(outputs)
        return pooled


class TextPart(Part):
    """A range of a text encoder's blocks.

    A part that starts at the bottom takes token numbers (B, T), any other tokens (B, T, F + 1),
    whose last entry is 1 for text and 0 for padding. A part that ends at the top returns features
    (B, F), any other such tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        num_layers: int,
        options: tuple[object, ...],
        padding: int,
        pooling: Pooling | None,
    ) -> None:
        super().__init__()
        self.model, self.num_layers, self.options = model, num_layers, (*options, pooling)
        self.padding, self.pooling = padding, pooling

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs as transformers does, with padding masked."""
        if inputs.is_floating_point():
            mask = inputs[..., -1].long()
            outputs = self.model(inputs_embeds=inputs[..., :-1], attention_mask=mask)
        else:
            mask = (inputs != self.padding).long()
            outputs = self.model(input_ids=inputs, attention_mask=mask)
        tokens: Tensor = outputs.last_hidden_state
        if self.pooling is None:
            return torch.cat([tokens, mask.unsqueeze(2).to(tokens.dtype)], dim=2)
        return pooled(tokens, mask, self.pooling)


class DialoguePart(Part):
    """A range of a causal language model's blocks.

    A part that starts at the bottom takes token numbers and their roles (B, T, 2), any other tokens
    (B, T, F + 1), whose last entry is the role. A part that ends at the top returns the features
    (n, F) of the tokens whose successor is predicted, dialogue after dialogue, any other such
    tokens. Padding comes last, so causal attention never reads it.
    """

    def __init__(
        self,
        model: nn.Module,
        num_layers: int,
        options: tuple[object, ...],
        output: nn.Linear | None,
    ) -> None:
        super().__init__()
        self.model, self.num_layers, self.options = model, num_layers, options
        self.output = output  # applied to the features by `FrozenHead`; None below the top

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs as transformers does."""
        roles = inputs[..., -1]
        if inputs.is_floating_point():
            outputs = self.model(inputs_embeds=inputs[..., :-1], use_cache=False)
        else:
            outputs = self.model(input_ids=inputs[..., 0], use_cache=False)
        tokens: Tensor = outputs.last_hidden_state
        if self.output is None:
            return torch.cat([tokens, roles.unsqueeze(2).to(tokens.dtype)], dim=2)
        return tokens[roles == PREDICTED]


def pooled(tokens: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Features (B, F) of tokens (B, T, F), over those whose mask (B, T) is 1."""
    if pooling == "mean":
        shares = mask / mask.sum(1, keepdim=True)  # (B, T)
        return (tokens * shares.unsqueeze(2)).sum(1)
    if pooling == "max":
        return tokens.masked_fill(mask.unsqueeze(2) == 0, -torch.inf).amax(1)
    if pooling == "last":
        places = torch.arange(mask.shape[1], device=mask.device)
        return tokens[torch.arange(len(tokens), device=mask.device), (mask * places).argmax(1)]
    return tokens[:, 0]


def joined(parts: Sequence[Tensor], padding: int) -> Tensor:
    """Several clients' inputs of a text or dialogue part as one batch, padded to the longest."""
    longest = max(part.shape[1] for part in parts)
    whole = []
    for part in parts:
        missing = longest - part.shape[1]
        filled = 0 if part.is_floating_point() else padding
        sizes = (0, missing) if part.dim() == 2 else (0, 0, 0, missing)
        whole.append(nn.functional.pad(part, sizes, value=filled) if missing else part)
    return torch.cat(whole)


def same_weights(module: Module) -> Module:
    """A copy of the modules that shares the original's parameters."""
    return copy.deepcopy(module, memo={id(p): p for p in module.parameters()})
