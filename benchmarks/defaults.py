"""What a user gets who sets nothing but data and backbone.

    python benchmarks/defaults.py --vit vit_tiny.safetensors --pacs pacs.zip --cifar100 cifar100 \
        --omniglot omniglot --minilm all-MiniLM-L6-v2 --out defaults.jsonl
    python benchmarks/defaults.py … --only "digits, demo ViT" --seeds 100 --split validation

Every scenario has a [data] section, a backbone and a number of rounds, and no other option. Each is
run with Local, FedAvg, FedRep, pFedSeq's mean adapter alone (`frozen`: a learner that is never
trained, and no groups) and pFedSeq.
Every finished run is a line of `--out`; what is there already is not run again. Printed is the
client mean of the accuracy in %, mean over seeds, and the lowest validation accuracy that pFedSeq
has below `frozen` from round W + 5 on: how far it ever falls.
"""

import argparse
import csv
import importlib
import json
import re
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

import pfedseq
from pfedseq.runs.folder import RunFolder

METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {},
    "fedrep": {},
    "frozen": {"ablation": "frozen", "group_cosine": 0},
    "pfedseq": {},
}
ATTENTION, MLP = ("query", "value"), ("mlp_in", "mlp_out")
SCIPY = ("fft", "integrate", "interpolate", "linalg", "ndimage")
SCIPY += ("optimize", "signal", "sparse", "spatial", "stats")
FEW = {"train_fraction": 0.6, "validation_fraction": 0.25}


def scenarios(places: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By name: what a user would write."""
    digits = {"name": "digits", "scanners": True, "num_clients": 10, "image_size": 32}
    store = {"store": places.store} if places.store else {}
    pacs = {"name": "pacs", "source": places.pacs, "partition": "owners", **FEW, **store}
    cifar = {
        "name": "cifar100",
        "source": places.cifar100,
        "partition": "dirichlet",
        **FEW,
        **store,
    }
    omniglot = {"name": "omniglot", "source": places.omniglot, "partition": "owners"} | store | FEW
    skewed = {"partition": "dirichlet", "alpha": 0.4, "scanner_turn": 20, "train_fraction": 0.3}
    turned = {"partition": "iid", "scanner_turn": 90, "train_fraction": 0.6}
    all_of_them: dict[str, dict[str, Any]] = {
        "digits, demo ViT": {
            "data": {**digits, **skewed, "validation_fraction": 0.25},
            "adapter": {"rank": 2, "alpha": 16, "targets": [*ATTENTION, *MLP]},  # as the demo
            "run": {"rounds": 24},
        },
        "turned digits, demo ViT": {
            "data": {**digits, **turned, "max_images_per_client": 100},
            "run": {"rounds": 24},
        },
        "CIFAR-100, demo ViT": {
            "data": {**cifar, "alpha": 0.1, "num_clients": 8, "max_images_per_client": 200}
            | {"image_size": 32},
            "run": {"rounds": 20},
        },
        "PACS, demo ViT": {
            "data": {**pacs, "image_size": 32, "max_images_per_client": 250},
            "run": {"rounds": 20},
        },
        "PACS, ViT-Ti at 96": {
            "data": {**pacs, "image_size": 96, "max_images_per_client": 120},
            "model": {"backbone": places.vit},
            "run": {"rounds": 12},
        },
        "CIFAR-100, ViT-Ti at 96": {
            "data": {**cifar, "alpha": 0.1, "num_clients": 6, "max_images_per_client": 100}
            | {"image_size": 96},
            "model": {"backbone": places.vit},
            "run": {"rounds": 12},
        },
        "Omniglot, ViT-Ti at 96": {
            "data": {**omniglot, "num_clients": 5, "max_images_per_client": 120, "image_size": 96},
            "model": {"backbone": places.vit},
            "run": {"rounds": 12},
        },
        "PACS, ViT-Ti at 224": {
            "data": {**pacs, "image_size": 224, "max_images_per_client": 50},
            "model": {"backbone": places.vit},
            "run": {"rounds": 6},
        },
        "docstrings, MiniLM": {
            "data": {"name": "text", "source": places.docstrings, "max_tokens": 32, **FEW},
            "model": {"backbone": places.minilm},
            "run": {"rounds": 10},
        },
    }
    return all_of_them


def write_docstrings(place: Path) -> None:
    """Real texts that every installation has: which part of SciPy does a docstring belong to?

    Four clients, Dirichlet(0.4) over ten parts, 80 texts each: the first paragraph after the name.
    """
    draw = np.random.default_rng(0)
    texts = {part: sorted(_paragraphs(part)) for part in SCIPY}
    with place.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "label", "text"])
        for part in SCIPY:
            draw.shuffle(texts[part])
        for client in ("anna", "bob", "chen", "dora"):
            shares = draw.dirichlet([0.4] * len(SCIPY))
            for part, count in zip(SCIPY, draw.multinomial(80, shares), strict=True):
                for _ in range(min(count, len(texts[part]))):
                    rows.writerow([client, part, texts[part].pop()])


def _paragraphs(part: str) -> set[str]:
    module = importlib.import_module(f"scipy.{part}")
    docs = [getattr(module, name).__doc__ or "" for name in sorted(module.__all__)]
    parts = [re.split(r"\n\s*\n", doc) for doc in docs]
    found = (" ".join(p.split()) for doc in parts for p in doc[:4] if "(" not in p[:40])
    return {text[:400] for text in found if len(text) > 30 and not text.startswith("Parameters")}


def run_one(values: dict[str, Any], name: str, seed: int) -> dict[str, Any]:
    """Test and validation accuracy at the end, and the validation curve."""
    method = "pfedseq" if name == "frozen" else name
    config = pfedseq.make_config(
        {
            **values,
            "run": {**values["run"], "methods": [method], "seed": seed, "evaluate_every": 2},
            "methods": {method: METHODS[name]},
        }
    )
    with tempfile.TemporaryDirectory() as place:
        pfedseq.run(config, Path(place) / "run")
        records = [r for r in RunFolder(Path(place) / "run").records() if r.scores]
    last = records[-1].scores
    assert last is not None
    moved = records[-1].server.get("distance_rms", [])
    return {
        "test": last.client_mean,
        "test_loss": fmean(x for x in last.test["loss"] if x is not None),
        "validation": last.validation_mean,
        "curve": [
            [r.round, r.scores.validation_mean, r.scores.client_mean] for r in records if r.scores
        ],
        "moved": max(moved, default=None),
    }


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("vit", "pacs", "cifar100", "omniglot", "minilm"):
        parser.add_argument(f"--{name}", default="", help="a local copy")
    parser.add_argument("--store", default="", help="where prepared images are kept")
    parser.add_argument("--out", default="defaults.jsonl", help="one line per finished run")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="", help="names of scenarios, separated by semicolons")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.docstrings = f"{Path(arguments.out).with_suffix('')}_docstrings.csv"
    write_docstrings(Path(arguments.docstrings))
    chosen = scenarios(arguments)
    if arguments.only:
        chosen = {name: chosen[name] for name in arguments.only.split(";")}
    out = Path(arguments.out)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["scenario"], row["method"], row["seed"]): row for row in rows}
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for seed in seeds:
        for scenario, values in chosen.items():
            for name in METHODS:
                if (scenario, name, seed) not in done:
                    found = run_one(values, name, seed)
                    row = {"scenario": scenario, "method": name, "seed": seed, **found}
                    with out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    done[scenario, name, seed] = row
    print(table(done, list(chosen), seeds, arguments.split))


def table(
    done: dict[tuple[str, str, int], dict[str, Any]], names: list[str], seeds: list[int], split: str
) -> str:
    """Markdown."""
    lines = [
        f"| | {' | '.join(METHODS)} | largest fall |",
        "| --- |" + " ---: |" * (len(METHODS) + 1),
    ]
    for scenario in names:
        cells = []
        for name in METHODS:
            values = [100 * done[scenario, name, seed][split] for seed in seeds]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{fmean(values):.1f}{spread}")
        falls = []
        for seed in seeds:
            ours, theirs = (
                {t: validation for t, validation, _ in done[scenario, name, seed]["curve"]}
                for name in ("pfedseq", "frozen")
            )
            warmup = min(10, max(2, max(ours) // 6))
            falls += [100 * (theirs[t] - ours[t]) for t in ours if t >= warmup + 5]
        cells.append(f"{max(falls, default=0):.1f}")
        lines.append(f"| {scenario} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
