"""What the learner's options do on real images, at a run of 80 rounds in seconds.

    python benchmarks/learner_options.py --backbone vit_tiny.safetensors --pacs pacs.zip
    python benchmarks/learner_options.py … --seeds 100,101 --only "mamba;linear" --json figures.json
    python benchmarks/learner_options.py … --pieces 10 --train 80 --held-out 43     40 PACS clients

The frozen class tokens of a ViT at 96 pixels are computed once and kept in the cache. On them, each
client tunes two residual bottleneck adapters of rank 4 (K = 2, D = 1,536) and a head of its own, by
SGD in batches of 16; all clients take their steps as one batched product. The server is the
project's own. Printed are accuracy in % and loss, client means over the seeds, on the validation
images (by which options are chosen, on seeds from 100 on) or with `--split test` on the test images
(to report, on seeds 0, 1, 2).
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfedseq.data.config import DataConfig, default_store
from pfedseq.data.dataset import ImageSet
from pfedseq.data.loading import deal, load_images
from pfedseq.federation import Reply, Setup
from pfedseq.methods.pfedseq import PFedSeqConfig, PFedSeqServer
from pfedseq.model.backbone import load_backbone
from pfedseq.params import Params
from pfedseq.seeding import torch_generator

SIZE, RANK, LAYERS, BATCH, ROUNDS, SHOWN = 96, 4, 2, 16, 80, (20, 40, 60, 80)
ADAPTER_LR, HEAD_LR, STRENGTH = 0.05, 0.005, 2.0
SCENARIOS: dict[str, dict[str, Any]] = {
    "pacs": {"partition": "owners"},
    "cifar100": {"partition": "dirichlet", "num_clients": 10},
    "omniglot": {"partition": "owners", "num_clients": 10},
}
OPTIONS: dict[str, dict[str, Any] | None] = {
    "local": None,  # θ_i + Δ_i
    "frozen": {"ablation": "frozen"},
    "mamba": {},
    "mamba, common part": {"ablation": "common"},
    "mamba, personal part": {"ablation": "personal"},
    "A no aggregation": {"ablation": "no_aggregation"},
    "B no cross-step": {"ablation": "no_cross_step"},
    "C no cross-client": {"ablation": "no_cross_client"},
    "D mlp": {"architecture": "mlp"},
    "E lstm": {"architecture": "lstm"},
    "linear": {"architecture": "linear", "learner_lr": 1e-3, "gain": 10.0},
    "mamba, a tenth of the rows": {"row_share": 0.1},
    "pooled": {"mixing": "pooled"},
    "pooled, a tenth of the rows": {"mixing": "pooled", "row_share": 0.1},
    "pooled, personal part": {"mixing": "pooled", "ablation": "personal"},
    "mamba, not signed": {"signed": False},
    "mamba, forgets nothing": {"forgetting": 0.0},
    "literal": {
        "signed": False,
        "zero_projections": False,
        "residual": "newest",
        "scale": "none",
        "gain": 1.0,
        "forgetting": 0.0,
        "learner_lr": 1e-3,
    },
}


def splits(train: int, held_out: int) -> dict[str, float]:
    """So many images of each client to train on, to validate, and as many to test."""
    every = train + 2 * held_out
    return {
        "train_fraction": (train + held_out) / every,
        "validation_fraction": held_out / (train + held_out),
        "max_images_per_client": every,
        "min_samples": every,
    }


class Part(NamedTuple):
    """Class tokens (N, n, F) and labels (N, n) of one split."""

    tokens: Tensor
    labels: Tensor


class Federation:
    """Clients on frozen class tokens, all at once."""

    def __init__(self, images: ImageSet, tokens: Tensor, data: dict[str, Any], seed: int) -> None:
        config = DataConfig(name=images.name, image_size=SIZE, **data)
        clients = deal(images, config, seed)
        labels = torch.from_numpy(images.labels)

        def part(split: str) -> Part:
            chosen = [torch.from_numpy(getattr(client, split)) for client in clients]
            chosen = torch.stack([c[: min(map(len, chosen))] for c in chosen])
            return Part(tokens[chosen], labels[chosen])

        self.seed, self.num_clients = seed, len(clients)
        self.parts = {split: part(split) for split in ("train", "validation", "test")}
        self.width, self.num_classes = tokens.shape[1], len(images.class_names)
        rng = torch_generator(seed, "benchmark")
        adapter = torch.zeros(LAYERS, 2, RANK, self.width)
        adapter[:, 0].uniform_(-1, 1, generator=rng).mul_(self.width**-0.5)
        head = torch.zeros(self.num_classes, self.width + 1)
        head[:, :-1].normal_(std=0.02, generator=rng)
        self.initial = Params(adapter.view(LAYERS, -1), head.flatten())

    def logits(self, adapters: Tensor, heads: Tensor, x: Tensor) -> Tensor:
        weights = adapters.view(self.num_clients, LAYERS, 2, RANK, self.width)
        for k in range(LAYERS):
            inside = F.gelu(F.layer_norm(x, (self.width,)) @ weights[:, k, 0].mT)
            x = x + STRENGTH * inside @ weights[:, k, 1]
        head = heads.view(self.num_clients, self.num_classes, self.width + 1)
        return F.layer_norm(x, (self.width,)) @ head[..., :-1].mT + head[:, None, :, -1]

    def train(self, adapters: Tensor, heads: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """One epoch of SGD at every client."""
        tokens, labels = self.parts["train"]
        drawn = torch.rand(labels.shape, generator=torch_generator(self.seed, "batches", t))
        rows = torch.arange(self.num_clients)[:, None]
        for batch in drawn.argsort(1).split(BATCH, dim=1):
            adapters, heads = (x.detach().requires_grad_() for x in (adapters, heads))
            logits = self.logits(adapters, heads, tokens[rows, batch])
            loss = F.cross_entropy(
                logits.flatten(0, 1), labels[rows, batch].flatten(), reduction="sum"
            )
            slopes = torch.autograd.grad(loss / batch.shape[1], [adapters, heads])
            adapters = adapters - ADAPTER_LR * slopes[0]
            heads = heads - HEAD_LR * slopes[1]
        return adapters.detach(), heads.detach()

    @torch.no_grad()
    def score(self, adapters: Tensor, heads: Tensor, split: str) -> tuple[float, float]:
        tokens, labels = self.parts[split]
        logits = self.logits(adapters, heads, tokens)
        right = (logits.argmax(-1) == labels).float().mean().item()
        return 100 * right, F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()


def run(world: Federation, options: dict[str, Any] | None, split: str) -> list[list[float]]:
    """Accuracy and loss after each of the shown rounds."""
    everyone = range(world.num_clients)
    setup = Setup(world.initial, (1,) * world.num_clients, ROUNDS, world.seed)
    server = None if options is None else PFedSeqServer(PFedSeqConfig(**options), setup)
    adapters = world.initial.adapter.expand(world.num_clients, -1, -1)
    heads, found = world.initial.head.expand(world.num_clients, -1), []
    for t in range(1, ROUNDS + 1):
        trained, heads = world.train(adapters, heads, t)
        if server is None:
            adapters = trained
        else:
            server.update(t, {i: Reply({"delta": (trained - adapters)[i]}) for i in everyone})
            adapters = server.adapters
        if t in SHOWN:
            found.append(list(world.score(adapters, heads, split)))
    return found


def class_tokens(images: ImageSet, backbone: str) -> Tensor:
    """(n, F), of RMS 1; computed once and kept."""
    kept = default_store() / "benchmark" / f"{images.name}-{images.fingerprint}.npy"
    if not kept.exists():
        vit = load_backbone(backbone, SIZE)
        mean, std = (torch.tensor(x).view(3, 1, 1) for x in (vit.mean, vit.std))
        rows: list[Tensor] = []
        with torch.no_grad():
            for start in range(0, len(images.labels), 64):
                pixels = torch.tensor(images.images[start : start + 64]).float() / 255
                rows.append(vit.model((pixels - mean) / std).last_hidden_state[:, 0])
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(kept, torch.cat(rows).numpy())
    tokens = torch.from_numpy(np.load(kept, allow_pickle=False))
    return tokens / tokens.square().mean().sqrt()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backbone", required=True, help="a ViT, as model.backbone names it")
    for name in SCENARIOS:
        parser.add_argument(f"--{name}", help=f"run on {name}, prepared or from this place")
    parser.add_argument("--pieces", type=int, default=3, help="clients of each PACS domain")
    parser.add_argument("--train", type=int, default=120, help="training images of a client")
    parser.add_argument(
        "--held-out", type=int, default=125, help="for validation, as many for testing"
    )
    parser.add_argument("--seeds", default="100,101")
    parser.add_argument("--only", help="options by name, with semicolons")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    wanted = OPTIONS if arguments.only is None else arguments.only.split(";")
    figures = []
    for scenario in SCENARIOS:
        source = getattr(arguments, scenario)
        if source is None:
            continue
        images = load_images(DataConfig(name=scenario, source=source, image_size=SIZE))
        tokens = class_tokens(images, arguments.backbone)
        data = SCENARIOS[scenario] | splits(arguments.train, arguments.held_out)
        if scenario == "pacs":
            data["split_owners"] = arguments.pieces
        print(
            f"\n{scenario}, {arguments.split}, seeds {arguments.seeds}: accuracy (loss) at rounds"
        )
        for name, options in OPTIONS.items():
            if name not in wanted:
                continue
            start = time.perf_counter()
            runs = [
                run(Federation(images, tokens, data, seed), options, arguments.split)
                for seed in seeds
            ]
            means = [[fmean(x) for x in zip(*at, strict=True)] for at in zip(*runs, strict=True)]
            shown = "  ".join(
                f"{t}: {accuracy:5.2f} ({loss:.3f})"
                for t, (accuracy, loss) in zip(SHOWN, means, strict=True)
            )
            seconds = (time.perf_counter() - start) / len(seeds)
            print(f"  {name:24} {shown}  {seconds:4.0f} s a run", flush=True)
            figures.append({"scenario": scenario, "name": name, "seeds": seeds, "runs": runs})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
