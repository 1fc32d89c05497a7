"""Other families than ViTs beside plain PEFT: a client's training and testing, speed and memory.

Part of `benchmarks/client.py`. These families go by the generic path: PEFT injects, transformers
computes. Models are small and have random weights. Memory is what a training step keeps for its
backward pass, each storage once and without the weights: a count of bytes, not a measurement.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from peft import inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    Dinov2Config,
    Dinov2Model,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from pfedseq.data.dataset import ClientData
from pfedseq.federation import MethodConfig
from pfedseq.methods.local import LocalClient
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import peft_config
from pfedseq.model.backbone import load_backbone
from pfedseq.model.encoders import find_family
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.encoders.loading import quiet_transformers
from pfedseq.model.language_model import LanguageModel
from pfedseq.model.readout import PREDICTED, READ
from pfedseq.model.task import ExampleSite
from pfedseq.model.text_encoder import TextEncoder

CLASSES, BATCH, TOKENS, IMAGE_SIZE, VOCABULARY = 100, 8, 64, 112, 4096
SIZES = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3}
MLP = {"intermediate_size": 768}
WORDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "max_position_embeddings": TOKENS}


@dataclass(frozen=True)
class Ready:
    """Examples that are in memory as the model takes them; implements `task.Examples`."""

    ready: Tensor
    answers: Tensor
    """(n,) classes, or (n, answered tokens)."""
    class_names: tuple[str, ...]

    def inputs(self, indices: NDArray[np.int64]) -> Tensor:
        return self.ready[indices]

    def training_inputs(self, indices: NDArray[np.int64], stream: int) -> Tensor:
        return self.ready[indices]

    def labels(self, indices: NDArray[np.int64]) -> Tensor:
        return self.answers[indices].reshape(-1)

    def sketches(self, indices: NDArray[np.int64]) -> Tensor:
        raise NotImplementedError("nobody is described here")


class Family(NamedTuple):
    """A model and how each side runs it on a batch of examples."""

    encoder: Encoder
    whole: PreTrainedModel
    examples: Ready
    targets: tuple[Any, ...]
    features: Callable[[nn.Module, Tensor], Tensor]
    """Plain PEFT's way from inputs to features (or, of a language model, to logits)."""


def images(name: str) -> Family:
    size = {"image_size": IMAGE_SIZE, "patch_size": 16 if name == "clip" else 14}
    model: PreTrainedModel
    if name == "clip":
        model = CLIPVisionModel(CLIPVisionConfig(**SIZES, **MLP, **size))
    else:
        model = Dinov2Model(Dinov2Config(**SIZES, **size))
    with tempfile.TemporaryDirectory() as folder, quiet_transformers(progress_bar=False):
        model.save_pretrained(folder)
        encoder = load_backbone(folder)
    pixels = torch.randn(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE)

    def features(model: nn.Module, inputs: Tensor) -> Tensor:
        found: Tensor = encoder.family.pool(model(pixel_values=inputs))
        return found

    return Family(encoder, encoder.model, classed(pixels), ("query", "value"), features)


def texts(name: str) -> Family:
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # as here
    config = BertConfig(**SIZES, **MLP, **WORDS, **dropout)
    model = BertModel(config, add_pooling_layer=False)
    model.requires_grad_(False).eval()
    family = find_family("bert", "text", name)
    encoder = TextEncoder(model, family, lambda texts, length: np.zeros(0), 0, "mean", name)
    numbers = torch.randint(1, VOCABULARY, (BATCH, TOKENS))

    def features(model: nn.Module, inputs: Tensor) -> Tensor:
        tokens: Tensor = model(input_ids=inputs, attention_mask=torch.ones_like(inputs))[0]
        return tokens.mean(1)

    return Family(encoder, model, classed(numbers), ("query", "value"), features)


def dialogues(name: str) -> Family:
    """A Llama; the second half of each dialogue is the answer."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **MLP, **WORDS, tie_word_embeddings=True))
    model.requires_grad_(False).eval()
    encoder = LanguageModel(model, find_family("llama", "dialogue", name), name, None)
    numbers = torch.randint(1, VOCABULARY, (BATCH, TOKENS + 1))
    roles = torch.full((BATCH, TOKENS), READ)
    roles[:, TOKENS // 2 :] = PREDICTED
    rows = torch.stack([numbers[:, :-1], roles], dim=2)

    def logits(model: nn.Module, inputs: Tensor) -> Tensor:
        found: Tensor = model(input_ids=inputs[..., 0], use_cache=False).logits
        return found[inputs[..., 1] == PREDICTED]

    examples = Ready(rows, numbers[:, TOKENS // 2 + 1 :], ())
    return Family(encoder, model, examples, ("query", "value"), logits)


def classed(inputs: Tensor) -> Ready:
    return Ready(inputs, torch.randint(CLASSES, (BATCH,)), tuple(map(str, range(CLASSES))))


FAMILIES = {"clip": images, "dinov2": images, "bert": texts, "llama": dialogues}


def measure_family(name: str, repeats: int) -> dict[str, Any]:
    """Ratios over plain PEFT of examples a second, and of bytes kept for the backward pass."""
    torch.manual_seed(0)
    family = FAMILIES[name](name)
    adapter = AdapterConfig(targets=family.targets)
    model = AdaptedModel(family.encoder, adapter, len(family.examples.class_names), seed=0)
    every = np.arange(BATCH)
    data = ClientData("0", every, every[:0], every)
    site = ExampleSite(0, model, family.examples, data, BATCH, seed=0)
    options = MethodConfig(lr=0.01)

    def ours() -> object:
        return LocalClient(options, site.task(1, "train"), {}).fit(model.initial)

    def our_test() -> object:
        return site.task(1, "evaluate").score(model.initial, "test")

    theirs, their_test = plain_peft(family, adapter)
    taken: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for key, action in (
            ("pfedseq train", ours),
            ("peft train", theirs),
            ("pfedseq test", our_test),
            ("peft test", their_test),
        ):
            begin = time.perf_counter()
            action()
            if turn:  # the first turn pays for what is made once
                taken.setdefault(key, []).append(time.perf_counter() - begin)
    speed = {key: BATCH / min(seconds) for key, seconds in taken.items()}
    frozen = [*family.whole.parameters()]
    kept = {who: kept_bytes(act, frozen) for who, act in (("pfedseq", ours), ("peft", theirs))}
    return {
        "family": name,
        "batch_size": BATCH,
        "examples_per_second": speed,
        "train_ratio_vs_peft": speed["pfedseq train"] / speed["peft train"],
        "test_ratio_vs_peft": speed["pfedseq test"] / speed["peft test"],
        "kept_bytes": kept,
        "memory_ratio_vs_peft": kept["pfedseq"] / kept["peft"],
    }


def plain_peft(
    family: Family, adapter: AdapterConfig
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Training and testing as PEFT's documentation does it."""
    model: Any = copy.deepcopy(family.whole)
    places = family.encoder.places
    inject_adapter_in_model(peft_config(adapter, family.encoder.num_layers, places), model)
    head: nn.Module = nn.Identity()
    if family.encoder.tunes_head:
        head = nn.Linear(family.encoder.feature_dim, CLASSES)
    tuned = [p for p in (*model.parameters(), *head.parameters()) if p.requires_grad]
    optimizer = torch.optim.SGD(tuned, lr=0.01)
    inputs, labels = family.examples.ready, family.examples.answers.reshape(-1)

    def train() -> None:
        model.train()
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(head(family.features(model, inputs)), labels))
        optimizer.step()

    @torch.no_grad()
    def test() -> None:
        model.eval()
        float((head(family.features(model, inputs)).argmax(1) == labels).sum())

    return train, test


def kept_bytes(action: Callable[[], object], frozen: list[nn.Parameter]) -> int:
    """Bytes that a training step keeps for its backward pass, without the frozen weights."""
    with _storages() as kept:
        action()
    weights = {weight.untyped_storage().data_ptr() for weight in frozen}
    return sum(size for place, size in kept.items() if place not in weights)


@contextmanager
def _storages() -> Iterator[dict[int, int]]:
    """Every storage that is kept meanwhile, by its place; all stay alive, so places are unique."""
    found: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def print_family(figure: dict[str, Any]) -> None:
    """One line for each family."""
    kept = {who: size / 2**20 for who, size in figure["kept_bytes"].items()}
    print(
        f"{figure['family']:8} over peft: training x {figure['train_ratio_vs_peft']:.2f}, testing "
        f"x {figure['test_ratio_vs_peft']:.2f}; kept for backward {kept['pfedseq']:.1f} MiB, peft "
        f"{kept['peft']:.1f} MiB: x {figure['memory_ratio_vs_peft']:.2f}",
        flush=True,
    )
