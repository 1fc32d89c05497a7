"""Pretrain the demo's ViT: tell the classes of `synthetic` apart from the class token."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig, ViTModel

from pfedseq.data.synthetic import IMAGE_SIZE, SyntheticClasses
from pfedseq.seeding import seeded

PIXEL_MEAN, PIXEL_STD = 0.5, 0.5


@dataclass(frozen=True)
class PretrainingSettings:
    """All that decides the weights, together with torch's version and the machine."""

    seed: int = 0
    steps: int = 4000
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warmup_steps: int = 100
    label_smoothing: float = 0.1
    width: int = 96
    depth: int = 4
    heads: int = 3
    mlp_width: int = 192


@dataclass(frozen=True)
class Progress:
    """What is known after some steps: averages over the steps since the last report."""

    step: int
    steps: int
    loss: float
    accuracy: float
    elapsed_seconds: float

    def __str__(self) -> str:
        remaining = self.elapsed_seconds * (self.steps / self.step - 1)
        return (
            f"step {self.step:>5}/{self.steps}  loss {self.loss:.3f}  "
            f"accuracy {self.accuracy:6.1%}  {remaining / 60:.1f} min left"
        )


def new_model(settings: PretrainingSettings) -> ViTModel:
    """The demo's architecture with the random weights of `settings.seed`."""
    config = ViTConfig(
        hidden_size=settings.width,
        num_hidden_layers=settings.depth,
        num_attention_heads=settings.heads,
        intermediate_size=settings.mlp_width,
        image_size=IMAGE_SIZE,
        patch_size=4,
        layer_norm_eps=1e-6,
        initializer_range=0.08,
    )
    with seeded(settings.seed):
        return ViTModel(config, add_pooling_layer=False)


def pretrain(
    settings: PretrainingSettings,
    report: Callable[[Progress], None],
    report_every: int = 50,
) -> ViTModel:
    """Train with AdamW, a linear warm-up and a cosine decay to zero; every image is new."""
    classes = SyntheticClasses(settings.seed)
    rng = torch.Generator().manual_seed(settings.seed + 1)
    model = new_model(settings).train()
    classifier = nn.Linear(settings.width, classes.num_classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    parameters = [*model.parameters(), *classifier.parameters()]
    # As usual for ViTs, only matrices are decayed: no biases, norms or position embeddings.
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, settings))

    start = time.monotonic()
    losses, hits = [], []
    for step in range(1, settings.steps + 1):
        images, labels = classes.draw(settings.batch_size, rng, _variation(step, settings))
        logits = classifier(class_token(model, images))
        loss = functional.cross_entropy(logits, labels, label_smoothing=settings.label_smoothing)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        hits.append((logits.argmax(-1) == labels).float().mean().item())
        if step % report_every == 0 or step == settings.steps:
            seconds = time.monotonic() - start
            mean_loss, mean_hits = sum(losses) / len(losses), sum(hits) / len(hits)
            report(Progress(step, settings.steps, mean_loss, mean_hits, seconds))
            losses.clear()
            hits.clear()
    return model.eval()


def class_token(model: ViTModel, images: Tensor) -> Tensor:
    """Features (n, width) of images (n, 3, 32, 32) in [0, 1]."""
    tokens: Tensor = model(pixel_values=(images - PIXEL_MEAN) / PIXEL_STD).last_hidden_state
    return tokens[:, 0]


def _rate(step: int, settings: PretrainingSettings) -> float:
    """Share of the peak learning rate at a step counted from 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))


def _variation(step: int, settings: PretrainingSettings) -> float:
    """A curriculum: near-congruent instances first, full variation from half-way on."""
    return min(1.0, 0.2 + 1.6 * step / settings.steps)
