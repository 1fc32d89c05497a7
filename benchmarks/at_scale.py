"""Accuracy with a hundred clients of which a part takes part in each round.

    python benchmarks/at_scale.py --vit vit_tiny.safetensors --cifar100 cifar100 --pacs pacs.zip \
        --store images --out at_scale.jsonl
    python benchmarks/at_scale.py … --only "CIFAR-100, 20 %" --seeds 100 --split validation

CIFAR-100 is cut by Dir(0.1) into 100 clients, PACS' four domains into 30 each; adapters are in the
last two blocks of ViT-Ti at 96 pixels, and all other options are the defaults. Compared are pFedSeq
with Appendix A's learner over all clients (dense) and with the one that does not grow with them
(pooled), a learner that is never trained (frozen), the same with server momentum, FedAvg, FedAvg
with server momentum (FedAvgM), FedRep and Local. Every finished run is a line of `--out`; what is
there already is not run again. Printed is the client mean of the accuracy in % and of the loss,
mean and standard deviation over seeds, from what has finished.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import pfedseq
from pfedseq.runs.folder import RunFolder

Key = tuple[str, str, int]
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "pFedSeq, dense": ("pfedseq", {"mixing": "dense"}),
    "pFedSeq, pooled": ("pfedseq", {"mixing": "pooled"}),
    "frozen": ("pfedseq", {"ablation": "frozen"}),
    "frozen, server momentum": ("pfedseq", {"ablation": "frozen", "server_momentum": 0.9}),
    "FedAvg": ("fedavg", {}),
    "FedAvgM": ("fedavgm", {}),
    "FedRep": ("fedrep", {}),
    "Local": ("local", {}),
}


def scenarios(places: argparse.Namespace, rounds: int) -> dict[str, dict[str, Any]]:
    """Data, backbone, the adapters' place, participation and rounds, by name."""
    images = {
        "image_size": 96,
        "train_fraction": 0.6,
        "validation_fraction": 0.25,
        **({"store": places.store} if places.store else {}),
    }
    cifar = {
        **{"name": "cifar100", "source": places.cifar100, "partition": "dirichlet", "alpha": 0.1},
        **{"num_clients": 100, "max_images_per_client": 60},
    }
    pacs = {
        **{"name": "pacs", "source": places.pacs, "partition": "owners", "split_owners": 30},
        "max_images_per_client": 50,
    }
    common = {
        "model": {"backbone": places.vit},
        "adapter": {"layers": "last 2"},
        "run": {"rounds": rounds, "evaluate_every": max(1, rounds // 4), "checkpoint_every": 10},
    }
    return {
        f"{name}, {participation:.0%}".replace("%", " %"): {
            **common,
            "data": {**data, **images},
            "federation": {"participation": participation},
        }
        for name, data in (("CIFAR-100", cifar), ("PACS", pacs))
        for participation in (0.2, 1.0)
    }


def run_one(values: dict[str, Any], form: str, seed: int) -> dict[str, Any]:
    """Accuracy and loss on test and validation images at the end, and the validation curve."""
    method, options = FORMS[form]
    config = pfedseq.make_config(
        {
            **values,
            "run": {**values["run"], "methods": [method], "seed": seed},
            "methods": {method: options},
        }
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        pfedseq.run(config, Path(place) / "run")
        records = [r for r in RunFolder(Path(place) / "run").records() if r.scores]
    last = records[-1].scores
    assert last is not None
    return {
        "test": last.client_mean,
        "test_loss": fmean(x for x in last.test["loss"] if x is not None),
        "validation": last.validation_mean,
        "validation_loss": fmean(x for x in last.validation["loss"] if x is not None),
        "curve": [[r.round, r.scores.validation_mean] for r in records if r.scores],
        "seconds": time.perf_counter() - start,
    }


def table(done: dict[Key, dict[str, Any]], names: list[str], split: str) -> str:
    """Markdown: a row for each form; cells of fewer seeds say how many they have."""
    lines = [f"| | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    most = max((sum(key[:2] == k[:2] for k in done) for key in done), default=0)
    for form in FORMS:
        cells = []
        for scenario in names:
            found = [row for key, row in done.items() if key[:2] == (scenario, form)]
            accuracies = [100 * row[split] for row in found]
            if not found:
                cells.append("")
                continue
            spread = f" ± {stdev(accuracies):.1f}" if len(found) > 1 else ""
            fewer = f", {len(found)} of {most} seeds" if len(found) < most else ""
            loss = fmean(row[f"{split}_loss"] for row in found)
            cells.append(f"{fmean(accuracies):.1f}{spread} ({loss:.3f}){fewer}")
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    for name in ("vit", "cifar100", "pacs"):
        parser.add_argument(f"--{name}", default="", help="a local copy")
    parser.add_argument("--store", default="", help="where prepared images are kept")
    parser.add_argument("--out", default="at_scale.jsonl", help="one line per finished run")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="CIFAR-100, 20 %", help="scenarios, with semicolons")
    parser.add_argument("--forms", default=";".join(FORMS), help="forms, with semicolons")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--print", action="store_true", help="only print what has finished")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {
        name: values
        for name, values in scenarios(arguments, arguments.rounds).items()
        if name in arguments.only.split(";")
    }
    out, seeds = Path(arguments.out), [int(seed) for seed in arguments.seeds.split(",")]
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(r["scenario"], r["form"], r["seed"]): r for r in rows if r["seed"] in seeds}
    missing = [
        (scenario, form, seed)
        for seed in seeds
        for scenario in chosen
        for form in arguments.forms.split(";")
        if (scenario, form, seed) not in done
    ]
    for scenario, form, seed in [] if arguments.print else missing:
        found = run_one(chosen[scenario], form, seed)
        row = {"scenario": scenario, "form": form, "seed": seed, **found}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        done[scenario, form, seed] = row
    print(table(done, list(chosen), arguments.split))


if __name__ == "__main__":
    main()
