"""Seconds of a whole round of local training: clients in one pass, one after another, PFLlib-like.

    python benchmarks/round.py --quick               few batches, N = 10 and 1000
    python benchmarks/round.py --json figures.json   more batches, N in 10, 20, 100, 1000

A round is `clients.call("train", …)` of FedAvg: reading, normalising, gradients, steps and the
messages, without the server and without testing. "One after another" is the same engine with
clients_per_pass = 1: a client at a time on each core. The PFLlib-like loop keeps a deep copy of
the model for every client and its images as normalised tensors, as PFLlib does, which stores them
decoded; it stacks a batch of them and leaves the cores to PyTorch. With adapters in the last 4
of 12 blocks it still runs all 12 forwards, and backwards only the 4. "bfloat16" is
`model.precision` here and PyTorch's autocast there. All take turns, and each figure is the fastest
turn. Of N clients each way runs once in a process of its own, for the
memory's sake; deep copies of 1,000 models do not fit.

The share of the peak counts the products that cannot be avoided (`client.py` says which) and
divides by what square products reach on all cores at once, measured between the turns.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from client import peak_flops, seconds_of, work
from peft import inject_adapter_in_model
from torch import nn

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.engines.grouping import automatic_size
from pfedseq.engines.local import LocalClients
from pfedseq.methods import find_method
from pfedseq.model.adapted import AdaptedModel, Precision
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import peft_config
from pfedseq.model.backbone import Backbone, load_backbone
from pfedseq.model.task import ExampleSite
from pfedseq.workloads.images.source import ImageSource, with_tokens

CLASSES, LR = 100, 0.01
CORES = os.cpu_count() or 1


def make_sites(
    backbone: Backbone,
    clients: int,
    images_each: int,
    batch_size: int,
    layers: str = "all",
    precision: Precision = "float32",
) -> list[ExampleSite]:
    """Clients with noise to train on; the images of a thousand of them are a few, repeated."""
    rng, different = np.random.default_rng(0), min(clients * images_each, 640)
    size = backbone.image_size
    pixels = rng.integers(0, 256, (different, 3, size, size), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, different)
    images = ImageSet("noise", pixels, labels, tuple(map(str, range(CLASSES))))
    adapter = AdapterConfig(layers=layers)
    model = AdaptedModel(backbone, adapter, CLASSES, seed=0, precision=precision)
    source = ImageSource(images, backbone.mean, backbone.std, torch.device("cpu"))
    none = np.arange(0)
    data = [
        ClientData(
            str(i), np.arange(i * images_each, (i + 1) * images_each) % different, none, none
        )
        for i in range(clients)
    ]
    if model.prefix is not None:
        source = with_tokens(source, model.prefix, data, "float32", None)
    return [ExampleSite(i, model, source, d, batch_size, seed=0) for i, d in enumerate(data)]


def engine_round(sites: list[ExampleSite], together: int) -> Callable[[], object]:
    method = find_method("fedavg")
    config = method.config(lr=LR)
    clients = LocalClients(method.client, config, sites, threads=CORES, clients_per_pass=together)
    down = {i: sites[0].model.initial.tensors() for i in clients.ids}
    return lambda: clients.call("train", 1, down)


def pfllib_like_round(
    backbone: Backbone, sites: list[ExampleSite], *, autocast: bool = False
) -> Callable[[], object]:
    """A model for every client, trained in turn as PEFT's documentation does."""
    model, images = sites[0].model, sites[0].source.images

    def personal_model() -> nn.ModuleDict:
        vit = copy.deepcopy(backbone.model)
        inject_adapter_in_model(peft_config(model.adapter_config, model.depth), vit)
        return nn.ModuleDict({"vit": vit, "head": nn.Linear(backbone.feature_dim, CLASSES)})

    models = [personal_model() for _ in sites]
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (backbone.mean, backbone.std))
    examples = [(torch.from_numpy(pixels).float() / 255 - mean) / std for pixels in images.images]

    def train() -> None:
        torch.set_num_threads(CORES)
        for site, one in zip(sites, models, strict=True):
            optimizer = torch.optim.SGD([p for p in one.parameters() if p.requires_grad], lr=LR)
            one.train()
            for batch in site.task(1, "train").batches(1):
                indices = site.data.train[batch.numpy()]
                pixels = torch.stack([examples[int(i)] for i in indices])
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    logits = one["head"](one["vit"](pixels).last_hidden_state[:, 0])
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits.float(), site.source.labels(indices)).backward()
                optimizer.step()
        torch.set_num_threads(1)

    return train


def fastest(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    seconds = dict.fromkeys(contenders, float("inf"))
    for turn in range(repeats + 1):
        for name, contender in contenders.items():
            taken = seconds_of(contender)
            if turn > 0:  # the first turn pays for what is made once
                seconds[name] = min(seconds[name], taken)
    return seconds


def peak_of_all_cores() -> float:
    """Floating-point operations a second when every core multiplies on its own."""
    with ThreadPoolExecutor(CORES, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return sum(pool.map(lambda _: peak_flops(), range(CORES)))


def demo(quick: bool, repeats: int) -> dict[str, Any]:
    backbone = load_backbone("demo")
    sites = make_sites(backbone, 10, 24 if quick else 80, 8)
    size = automatic_size(len(sites), 8)
    seconds = fastest(
        {
            "shared pass": engine_round(sites, size),
            "one after another": engine_round(sites, 1),
            "PFLlib-like": pfllib_like_round(backbone, sites),
        },
        repeats,
    )
    return {"clients_per_pass": size, "seconds": seconds}


def vit_tiny(quick: bool, repeats: int) -> dict[str, Any]:
    backbone = load_backbone("random:vit-tiny", 112)
    clients, each, batch_size = 8, 16 if quick else 48, 16
    sites = make_sites(backbone, clients, each, batch_size)
    upper = make_sites(backbone, clients, each, batch_size, "last 4")
    rounded = make_sites(backbone, clients, each, batch_size, precision="bfloat16")
    size, peak = automatic_size(clients, batch_size), peak_of_all_cores()
    seconds = fastest(
        {
            "shared pass": engine_round(sites, size),
            "one after another": engine_round(sites, 1),
            "bfloat16": engine_round(rounded, size),
            "last 4": engine_round(upper, size),
            "PFLlib-like": pfllib_like_round(backbone, sites),
            "PFLlib-like, bfloat16": pfllib_like_round(backbone, sites, autocast=True),
            "PFLlib-like, last 4": pfllib_like_round(backbone, upper),
        },
        repeats,
    )
    peak = max(peak, peak_of_all_cores())
    flops = work(backbone, 112)[0] * clients * each
    return {
        "clients_per_pass": size,
        "seconds": seconds,
        "peak_gflops": peak / 1e9,
        "share_of_matmul_peak": flops / seconds["shared pass"] / peak,
        "share_one_after_another": flops / seconds["one after another"] / peak,
    }


WAYS = ("shared pass", "one after another", "PFLlib-like")
MOST_COPIES = 100
"""Clients up to which every one can have a model of its own."""


def many_clients(way: str, count: int, images_each: int) -> dict[str, Any]:
    """A round of ViT-Ti at 96 pixels with so many clients, in this process."""
    backbone = load_backbone("random:vit-tiny", 96)
    sites = make_sites(backbone, count, images_each, min(16, images_each))
    if way == "PFLlib-like":
        one_round = pfllib_like_round(backbone, sites)
    else:
        size = automatic_size(count, images_each) if way == "shared pass" else 1
        one_round = engine_round(sites, size)
    seconds = seconds_of(one_round)
    return {"seconds": seconds, "peak_mib": peak_mib()}


def peak_mib() -> float:
    """The most memory this process has had; `getrusage` would count its parent's, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def rounds_of(count: int, images_each: int) -> dict[str, Any]:
    """Every way that fits into memory, each in a process of its own."""
    found: dict[str, Any] = {"clients": count, "images_each": images_each}
    for way in WAYS if count <= MOST_COPIES else WAYS[:2]:
        arguments = ["--way", way, "--clients", str(count), "--images", str(images_each)]
        command = [sys.executable, __file__, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[way] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few batches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--images", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(many_clients(arguments.way, arguments.clients, arguments.images)))
        return
    quick = arguments.quick
    repeats = arguments.repeats or (2 if quick else 4)
    figures: dict[str, Any] = {
        "cores": CORES,
        "torch": torch.__version__,
        "load_average_before": os.getloadavg()[0],
    }

    def note(name: str, part: Any) -> None:
        figures[name] = part
        print(f"{name}: {json.dumps(part, indent=2)}", flush=True)

    note("demo", demo(quick, repeats))
    seconds = figures["demo"]["seconds"]
    note("shared_pass_speedup_demo", seconds["one after another"] / seconds["shared pass"])
    note("speedup_vs_pfllib_like_demo", seconds["PFLlib-like"] / seconds["shared pass"])
    note("vit_tiny_112", vit_tiny(quick, repeats))
    seconds = figures["vit_tiny_112"]["seconds"]
    note("share_of_matmul_peak", figures["vit_tiny_112"]["share_of_matmul_peak"])
    note("prefix_speedup", seconds["shared pass"] / seconds["last 4"])
    note("speedup_vs_pfllib_like", seconds["PFLlib-like"] / seconds["shared pass"])
    note("bfloat16_speedup", seconds["shared pass"] / seconds["bfloat16"])
    note("speedup_vs_pfllib_like_bfloat16", seconds["PFLlib-like"] / seconds["bfloat16"])
    note("speedup_vs_pfllib_like_last_4", seconds["PFLlib-like, last 4"] / seconds["last 4"])
    sizes = [(10, 4), (1000, 1)] if quick else [(10, 16), (20, 16), (100, 16), (1000, 4)]
    note("rounds", [rounds_of(count, images) for count, images in sizes])
    note("peak_mib_1000_clients", figures["rounds"][-1]["shared pass"]["peak_mib"])
    figures["load_average_after"] = os.getloadavg()[0]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
