"""Pretrain the demo's language model: answer with a note of the measurement in the prompt."""

from __future__ import annotations

import math
import random
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pfedseq.data.dataset import Dialogue, Turn
from pfedseq.model.encoders import find_family
from pfedseq.model.language_model import LanguageModel
from pfedseq.seeding import seeded
from pfedseq.workloads.dialogue.source import padded, row
from pretraining.notes import draw

PADDING, UNKNOWN, USER, ASSISTANT, END = "<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LONGEST = 128


@dataclass(frozen=True)
class LanguageSettings:
    """All that decides the weights, together with torch's version and the machine."""

    seed: int = 0
    steps: int = 1500
    batch_size: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    warmup_steps: int = 100
    width: int = 96
    depth: int = 3
    heads: int = 4
    mlp_width: int = 256


def new_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each printable character, and a chat template."""
    special = [PADDING, UNKNOWN, USER, ASSISTANT, END]
    characters = sorted({*string.printable} - {*"\t\r\x0b\x0c"})
    vocabulary = {token: number for number, token in enumerate([*special, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=LONGEST,
    )


def new_language_model(settings: LanguageSettings) -> LanguageModel:
    """The demo's architecture with the random weights of `settings.seed`."""
    tokenizer: Any = new_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        num_hidden_layers=settings.depth,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads // 2,
        intermediate_size=settings.mlp_width,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.05,
    )
    with seeded(settings.seed):
        model = LlamaForCausalLM(config)
    return LanguageModel(model, find_family("llama", "dialogue", "demo-llm"), "demo-llm", tokenizer)


def pretrain_language(
    settings: LanguageSettings, report: Callable[[str], None], report_every: int = 100
) -> LanguageModel:
    """Train with AdamW, a linear warm-up and a cosine decay to zero; every note is new."""
    language = new_language_model(settings)
    model, rng = language.model.train(), random.Random(settings.seed + 1)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, settings))
    start, losses = time.monotonic(), []
    for step in range(1, settings.steps + 1):
        rows = torch.from_numpy(padded(batch(language, settings.batch_size, rng)))
        loss = loss_of(model, rows)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % report_every == 0 or step == settings.steps:
            left = (time.monotonic() - start) * (settings.steps / step - 1)
            mean = sum(losses) / len(losses)
            report(f"step {step:>5}/{settings.steps}  loss {mean:.3f}  {left / 60:.1f} min left")
            losses.clear()
    model.requires_grad_(False).eval()
    return language


def batch(language: LanguageModel, size: int, rng: random.Random) -> list[Any]:
    """Fresh notes in tokens."""
    asked = (draw(rng) for _ in range(size))
    notes = [Dialogue((Turn("user", prompt),), note) for prompt, note in asked]
    return [row(language.encode(note))[: LONGEST - 1] for note in notes]


def loss_of(model: Any, rows: Tensor) -> Tensor:
    """Mean cross-entropy of the answers' tokens in rows (B, T, 3)."""
    numbers, roles, following = rows.unbind(2)
    logits = model(input_ids=numbers, use_cache=False).logits
    wanted = following.masked_fill(roles != 2, -100)
    return nn.functional.cross_entropy(logits.transpose(1, 2), wanted)


def _rate(step: int, settings: LanguageSettings) -> float:
    """Share of the peak learning rate at a step counted from 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))
