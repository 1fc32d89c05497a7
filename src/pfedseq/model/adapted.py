"""The functional model that clients share: a frozen transformer with adapters as arguments."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from pfedseq.errors import InputError
from pfedseq.lora import factors_needed
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import SeededDropout, inject, merged_weights
from pfedseq.model.encoders.encoder import Encoder, Stacked, Towers
from pfedseq.model.encoders.parts import same_weights
from pfedseq.model.layout import AdapterLayout
from pfedseq.params import Params
from pfedseq.seeding import derive_seed, seeded
from pfedseq.training.config import Units

Precision = Literal["float32", "bfloat16"]


class AdaptedModel:
    """x ↦ logits for any φ = (θ, ω) over one frozen backbone.

    The backbone holds no client state: θ and ω are arguments, so N clients cost one backbone and
    N small vectors. `precision` applies to the adapted layers' matrix products. `functional_call`
    swaps parameters inside the module while it runs, so each thread has its own skeleton module;
    all skeletons share the frozen weights.
    """

    def __init__(
        self,
        encoder: Encoder,
        adapter: AdapterConfig,
        num_classes: int,
        seed: int,
        precision: Precision = "float32",
    ) -> None:
        self.encoder, self.adapter_config, self.num_classes = encoder, adapter, num_classes
        self.seed, self.precision = seed, precision
        self._wider: dict[int, AdaptedModel] = {}
        self.feature_dim = encoder.feature_dim
        self.depth = encoder.num_layers
        encoder.check(adapter)
        first = adapter.layers_of(self.depth)[0]
        with seeded(seed, "adapter"):
            self.prefix, self._plain, module = encoder.towers(
                first, lambda into: inject(into, adapter, self.depth, encoder.places)
            )
        self.layout = AdapterLayout.of(module)
        self.factors = self.layout.factors
        weights = dict(module.named_parameters())
        self.readout = encoder.readout(self._plain, num_classes)
        head = self.readout.initial(seed)
        self.units = Units(adapter.scale, encoder.feature_length(self._plain), num_classes or 1)
        self.initial = Params(
            self.layout.flatten(weights).detach().clone(),
            head.to(next(module.parameters()).device),
        )
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        self._adapted = module
        self._skeletons = threading.local()
        self._products = None if precision == "float32" else torch.bfloat16
        self.stacked: Stacked | None = None
        """Computes the features of several clients at once; None if adapters cannot be stacked."""
        if not adapter.dropout:
            self.stacked = encoder.stacked(self._plain, adapter, self.layout, self._products)
        if self._products is not None and self.stacked is None:
            raise InputError(
                f"model.precision = {precision!r} needs a ViT and an adapter without dropout: "
                "set it to 'float32'"
            )

    def widened(self, blocks: int) -> AdaptedModel:
        """This model with `blocks` LoRAs of the same rank side by side, as one LoRA of higher rank.

        The first block keeps its initial weights. The others are drawn anew with B = 0, so they
        add nothing yet. α/r is unchanged.
        """
        if blocks == 1 or blocks in self._wider:
            return self._wider.get(blocks, self)
        mine = self.adapter_config
        factors_needed(self.factors, "a method of several LoRAs", alone=True)
        wider = {"rank": blocks * mine.rank, "alpha": blocks * mine.alpha}
        wide = AdaptedModel(
            self.encoder,
            mine.model_copy(update=wider),
            self.num_classes,
            derive_seed(self.seed, "rank blocks"),
            self.precision,
        ).on(self.device)
        assert wide.factors is not None
        others = wide.factors.split(wide.initial.adapter, blocks)[1:]
        adapter = wide.factors.join([self.initial.adapter, *others])
        wide.initial = Params(adapter, self.initial.head)
        self._wider[blocks] = wide
        return wide

    def on(self, device: torch.device) -> AdaptedModel:
        """The same model on `device`, with a copy of the frozen weights."""
        if device == self.device:
            return self
        there = copy.copy(self)
        there._wider = {}
        there.prefix, there._plain, there._adapted = Towers(
            self.prefix, self._plain, self._adapted
        ).on(device)
        there.readout = self.encoder.readout(there._plain, self.num_classes)
        there.initial = Params(*(x.to(device) for x in (self.initial.adapter, self.initial.head)))
        there._skeletons = threading.local()
        if self.stacked is not None:
            there.stacked = self.encoder.stacked(
                there._plain, self.adapter_config, self.layout, self._products
            )
        return there

    @property
    def device(self) -> torch.device:
        """The device of the backbone."""
        return self.initial.adapter.device

    @torch.no_grad()
    def inputs(self, examples: Tensor) -> Tensor:
        """The inputs of the first adapted layer for examples, such as images (B, 3, S, S).

        Tokens (B, T, F) from the frozen layers below it, or the examples themselves if there are
        none.
        """
        return examples if self.prefix is None else self.prefix(examples)

    def features(self, adapter: Tensor, inputs: Tensor, dropout: Generator | None = None) -> Tensor:
        """Features (B, F) of the result of `inputs`.

        `dropout` is the generator for dropout in training; without it nothing is dropped.
        """
        if self._products is not None:
            return self._rounded_features(adapter, inputs)
        skeleton = self._skeleton("adapted")
        if self.adapter_config.dropout:
            for layer in skeleton.modules():
                if isinstance(layer, SeededDropout):
                    layer.generator = dropout
        features: Tensor = functional_call(skeleton, self.layout.unflatten(adapter), (inputs,))
        return features

    @torch.no_grad()
    def merged(self, adapter: Tensor) -> Callable[[Tensor], Tensor]:
        """`features` for a fixed θ, which is merged into the weights once."""
        if self._products is not None:
            return lambda inputs: self._rounded_features(adapter, inputs)
        weights = merged_weights(
            self.adapter_config,
            self.layout.unflatten(adapter),
            dict(self._plain.named_parameters()),
        )
        return lambda inputs: functional_call(self._skeleton("plain"), weights, (inputs,))

    def _rounded_features(self, adapter: Tensor, inputs: Tensor) -> Tensor:
        """Features of one client's batch, with rounded products."""
        assert self.stacked is not None
        return self.stacked.features(adapter.unsqueeze(0), inputs, [len(inputs)])

    def classify(self, head: Tensor, features: Tensor) -> Tensor:
        """Logits (n, C) of features (n, F)."""
        return self.readout.logits(head, features)

    def split_head(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """The weight (C, F) and the bias (C,) of the linear layer ω, where it is tuned."""
        named = self.readout.named(head)
        return named["weight"], named["bias"]

    def join_head(self, weight: Tensor, bias: Tensor) -> Tensor:
        """ω of a linear layer; the inverse of `split_head`."""
        return torch.cat([weight.reshape(-1), bias])

    def _skeleton(self, kind: Literal["adapted", "plain"]) -> nn.Module:
        """The calling thread's module of that kind, with the shared weights."""
        if not hasattr(self._skeletons, kind):
            original = self._adapted if kind == "adapted" else self._plain
            setattr(self._skeletons, kind, same_weights(original))
        module: nn.Module = getattr(self._skeletons, kind)
        return module
