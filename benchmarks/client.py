"""Images per second of a client's training and testing, beside plain PEFT, and the share of peak.

    python benchmarks/client.py --quick               ViT-Ti at 112 pixels and other families
    python benchmarks/client.py --json figures.json   all sizes, and attention the other way too

A client here is what the engine runs: reading a batch from the image store's array, normalising it,
gradient, step. Plain PEFT is the same model with the same batches, the way its documentation
trains: modules, `backward()`, `torch.optim.SGD`; it tests with the adapter beside the weights,
where a client merges it first. The contenders take turns, and each figure is the fastest turn, so
that a disturbance hits all alike. "by hand" is SGD without the local optimiser, `momentum` and
`adamw` (with weight decay and clipping) are the client with other options of [training].

The share is of the machine's own matrix-product peak on as many threads, measured between turns.
What counts as work, for all contenders alike, is the products that cannot be avoided: forward; and
backward through activations, not into frozen weights; of the last block what the class token needs.
Normalisations, softmax, GELU and the adapter itself count as nothing, so 1 is out of reach.

CLIP, DINOv2, BERT and a Llama follow, by `families.py`: speed and memory beside plain PEFT.
"""

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from families import FAMILIES, measure_family, print_family
from peft import inject_adapter_in_model
from torch import nn

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.federation import MethodConfig
from pfedseq.methods.local import LocalClient
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import peft_config
from pfedseq.model.backbone import Backbone, load_backbone
from pfedseq.model.readout import EVALUATION_BATCH
from pfedseq.model.task import ExampleSite
from pfedseq.workloads.images.source import ImageSource

LR, CLASSES = 0.01, 100


class Case(NamedTuple):
    """A model, a size, and how many images are trained in a turn."""

    architecture: str
    image_size: int
    batch_size: int
    batches: int


HEADLINE = Case("vit-tiny", 112, 16, 4)
CASES = (
    Case("vit-tiny", 96, 16, 4),
    HEADLINE,
    Case("vit-tiny", 224, 16, 2),
    Case("vit-base", 224, 16, 1),
)


class Contender(NamedTuple):
    """Two things to time, each on all images of the case."""

    train: Callable[[], object]
    test: Callable[[], object]


OPTIMISERS = {
    "momentum": {"momentum": 0.9},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01, "clip_norm": 1.0},
}


def client(backbone: Backbone, case: Case) -> tuple[Contender, ExampleSite]:
    model = AdaptedModel(backbone, AdapterConfig(), CLASSES, seed=0)
    count, rng = case.batch_size * case.batches, np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 3, case.image_size, case.image_size), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, count)
    data = ImageSet("noise", images, labels, tuple(map(str, range(CLASSES))))
    source = ImageSource(data, backbone.mean, backbone.std, torch.device("cpu"))
    everything = np.arange(count)
    split = ClientData("0", everything, everything[:0], everything)
    site = ExampleSite(0, model, source, split, case.batch_size, seed=0)
    options = MethodConfig(lr=LR)
    return Contender(
        lambda: LocalClient(options, site.task(1, "train"), {}).fit(model.initial),
        lambda: site.task(1, "evaluate").score(model.initial, "test"),
    ), site


def by_hand(site: ExampleSite) -> Contender:
    """Local SGD without a local optimiser: φ − η ∇L, written out."""

    def train() -> None:
        task, phi = site.task(1, "train"), site.model.initial
        for batch in task.batches(1):
            phi = phi.descend(task.grad(phi, batch), LR)

    return Contender(train, lambda: None)


def optimised(site: ExampleSite, **options: Any) -> Contender:
    """The client with another optimiser."""
    config = MethodConfig(**{"lr": LR} | options)
    initial = site.model.initial
    return Contender(
        lambda: LocalClient(config, site.task(1, "train"), {}).fit(initial), lambda: None
    )


def plain_peft(backbone: Backbone, site: ExampleSite, attention: str) -> Contender:
    vit = copy.deepcopy(backbone.model)
    vit.set_attn_implementation(attention)
    inject_adapter_in_model(peft_config(site.model.adapter_config, site.model.depth), vit)
    head = nn.Linear(backbone.feature_dim, CLASSES)
    tuned = [p for p in vit.parameters() if p.requires_grad] + list(head.parameters())
    optimizer = torch.optim.SGD(tuned, lr=LR)
    source = site.source

    def train() -> None:
        vit.train()
        for batch in site.task(1, "train").batches(1):
            indices = site.data.train[batch.numpy()]
            logits = head(vit(source.pixels(indices)).last_hidden_state[:, 0])
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, source.labels(indices)).backward()
            optimizer.step()

    @torch.no_grad()
    def test() -> None:
        vit.eval()
        for start in range(0, len(site.data.test), EVALUATION_BATCH):
            indices = site.data.test[start : start + EVALUATION_BATCH]
            logits = head(vit(source.pixels(indices)).last_hidden_state[:, 0])
            float((logits.argmax(1) == source.labels(indices)).sum())

    return Contender(train, test)


def work(backbone: Backbone, image_size: int) -> tuple[float, float]:
    """Floating-point operations of one image that cannot be avoided: (training, testing)."""
    config = backbone.model.config
    width, inner, patch = config.hidden_size, config.intermediate_size, config.patch_size
    tokens, blocks = (image_size // patch) ** 2 + 1, config.num_hidden_layers
    embedding = 2 * (tokens - 1) * 3 * patch**2 * width
    projection, mlp = 2 * width**2, 4 * width * inner  # of one token
    linear = (blocks - 1) * tokens * (4 * projection + mlp)
    attention = (blocks - 1) * 4 * tokens**2 * width
    linear += 2 * tokens * projection + 2 * projection + mlp  # the last block: the class token's
    attention += 4 * tokens * width
    # Backward, a linear layer is one product (to its input), each of attention's two is two. The
    # first block's query, key and value have no input to go back to.
    backward = linear - 3 * tokens * projection + 2 * attention
    return embedding + linear + attention + backward, embedding + linear + attention


def peak_flops(side: int = 1024, seconds: float = 0.5) -> float:
    """Multiply-adds (counted as two) per second of a square product."""
    a, b, out = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
    torch.mm(a, b, out=out)
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        best = min(best, seconds_of(lambda: torch.mm(a, b, out=out)))
    return 2 * side**3 / best


def seconds_of(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measure(case: Case, repeats: int, attentions: tuple[str, ...]) -> dict[str, Any]:
    backbone = load_backbone(f"random:{case.architecture}", case.image_size)
    ours, site = client(backbone, case)
    contenders = {"pfedseq": ours, "by hand": by_hand(site)}
    contenders |= {name: optimised(site, **options) for name, options in OPTIMISERS.items()}
    for attention in attentions:
        contenders[f"peft, {attention}"] = plain_peft(backbone, site, attention)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    peak = 0.0
    for turn in range(repeats + 1):
        peak = max(peak, peak_flops())
        for name, contender in contenders.items():
            taken = seconds_of(contender.train), seconds_of(contender.test)
            if turn > 0:  # the first turn pays for what is made once
                seconds[name].append(taken)
    count = case.batch_size * case.batches
    train_work, test_work = work(backbone, case.image_size)
    figures = {}
    for name, turns in seconds.items():
        train, test = (count / min(column) for column in zip(*turns, strict=True))
        figures[name] = {
            "train_images_per_second": train,
            "train_share_of_peak": train * train_work / peak,
        }
        if name == "pfedseq" or name.startswith("peft"):
            figures[name] |= {
                "test_images_per_second": test,
                "test_share_of_peak": test * test_work / peak,
            }
    plain = figures["peft, sdpa"]
    return {
        "architecture": case.architecture,
        "image_size": case.image_size,
        "batch_size": case.batch_size,
        "peak_gflops": peak / 1e9,
        "train_ratio_vs_peft": ratio(figures["pfedseq"], plain, "train"),
        "test_ratio_vs_peft": ratio(figures["pfedseq"], plain, "test"),
        "train_ratio_vs_sgd": {
            name: ratio(figures[name], figures["pfedseq"], "train")
            for name in ("by hand", *OPTIMISERS)
        },
        "contenders": figures,
    }


def ratio(ours: dict[str, float], plain: dict[str, float], what: str) -> float:
    return ours[f"{what}_images_per_second"] / plain[f"{what}_images_per_second"]


def print_case(case: dict[str, Any]) -> None:
    print(
        f"\n{case['architecture']} at {case['image_size']} pixels, batch {case['batch_size']};"
        f" matrix products peak at {case['peak_gflops']:.0f} GFLOP/s"
    )
    for name, figure in case["contenders"].items():
        testing = ""
        if "test_images_per_second" in figure:
            testing = (
                f"   testing {figure['test_images_per_second']:7.1f} images/s"
                f" = {figure['test_share_of_peak']:.2f}"
            )
        print(
            f"  {name:12} training {figure['train_images_per_second']:7.1f} images/s"
            f" = {figure['train_share_of_peak']:.2f} of peak{testing}"
        )
    print(
        f"  pfedseq over peft: training x {case['train_ratio_vs_peft']:.2f},"
        f" testing x {case['test_ratio_vs_peft']:.2f}"
    )
    ratios = [f"{name} x {r:.3f}" for name, r in case["train_ratio_vs_sgd"].items()]
    print(f"  training over pfedseq's own SGD: {', '.join(ratios)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--quick", action="store_true", help="of the ViTs only ViT-Ti at 112 pixels"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--threads", type=int, default=1, help="PyTorch's; the engine gives each client one"
    )
    parser.add_argument("--repeats", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"{arguments.threads} thread(s), torch {torch.__version__}, load {os.getloadavg()[0]:.1f}"
    )
    figures: dict[str, Any] = {
        "threads": arguments.threads,
        "torch": torch.__version__,
        "load_average_before": os.getloadavg()[0],
        "cases": [],
    }
    for case in (HEADLINE,) if arguments.quick else CASES:
        attentions = ("sdpa",) if arguments.quick else ("sdpa", "eager")
        measured = measure(case, arguments.repeats, attentions)
        print_case(measured)
        figures["cases"].append(measured)
        if case is HEADLINE:
            figures["share_of_peak"] = measured["contenders"]["pfedseq"]["train_share_of_peak"]
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    figures["families"] = []
    print()
    for name in FAMILIES:
        figures["families"].append(measure_family(name, arguments.repeats))
        print_family(figures["families"][-1])
    figures["slowest_ratio_vs_peft"] = min(
        case[f"{what}_ratio_vs_peft"] for case in figures["cases"] for what in ("train", "test")
    )
    figures["load_average_after"] = os.getloadavg()[0]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
