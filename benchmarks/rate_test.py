"""How good is the rate that `training.lr = "auto"` finds?

    python benchmarks/rate_test.py --vit vit_tiny.safetensors --pacs pacs.zip --cifar100 cifar100 \
        --omniglot omniglot --minilm all-MiniLM-L6-v2 --store images

Scenarios of `defaults.py`, with rates in units of the model, with plain rates and with AdamW.
Printed are the rate that the test finds and the validation accuracy (loss) at the end of pFedSeq's
mean adapter alone, at that rate and at a quarter, half, twice and four times it. Nothing is chosen
by these figures.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from defaults import METHODS, scenarios, write_docstrings

import pfedseq
from pfedseq.runs.folder import RunFolder

UNITS: dict[str, dict[str, Any]] = {
    "model": {},
    "plain": {"rate_units": "plain"},
    "AdamW": {"optimizer": "adamw"},
}
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def run_one(values: dict[str, Any], seed: int, lr: float | str) -> dict[str, float]:
    """The rate, and validation accuracy and loss at the end."""
    training = values["training"] | {"lr": lr}
    if lr != "auto" and training.get("optimizer") != "adamw":
        training["head_lr"] = lr
    config = pfedseq.make_config(
        values
        | {
            "run": {**values["run"], "methods": ["pfedseq"], "seed": seed},
            "training": training,
            "methods": {"pfedseq": METHODS["frozen"]},
        }
    )
    with tempfile.TemporaryDirectory() as place:
        pfedseq.run(config, Path(place) / "run")
        folder = RunFolder(Path(place) / "run")
        used = pfedseq.load_config(folder.path / "config.toml").training.lr
        last = [r for r in folder.records() if r.scores][-1].scores
    assert last is not None
    losses = [loss for loss in last.validation["loss"] if loss is not None]
    return {"lr": used, "accuracy": last.validation_mean, "loss": fmean(losses)}


def main() -> None:
    """Run what is missing, and print a row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("vit", "pacs", "cifar100", "omniglot", "minilm"):
        parser.add_argument(f"--{name}", default="", help="a local copy")
    parser.add_argument("--store", default="", help="where prepared images are kept")
    parser.add_argument("--out", default="rate_test.jsonl", help="one line per finished run")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--only", default="", help="names of scenarios, separated by semicolons")
    parser.add_argument("--units", default=",".join(UNITS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.docstrings = f"{Path(arguments.out).with_suffix('')}_docstrings.csv"
    write_docstrings(Path(arguments.docstrings))
    chosen = scenarios(arguments)
    names = arguments.only.split(";") if arguments.only else list(chosen)
    out = Path(arguments.out)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["scenario"], row["units"], row["factor"]): row for row in rows}

    def at(scenario: str, units: str, factor: float, lr: float | str) -> Any:
        key = (scenario, units, factor)
        if key not in done:
            values = {**chosen[scenario], "training": UNITS[units]}
            row = {"scenario": scenario, "units": units, "factor": factor}
            row |= run_one(values, arguments.seed, lr)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            done[key] = row
        return done[key]

    print(f"| | units | found | {' | '.join(f'× {factor:g}' for factor in FACTORS)} |")
    print("| --- | --- | ---: |" + " ---: |" * len(FACTORS))
    for scenario in names:
        for units in arguments.units.split(","):
            lr = at(scenario, units, 1.0, "auto")["lr"]
            cells = [at(scenario, units, factor, factor * lr) for factor in FACTORS]
            texts = [f"{100 * c['accuracy']:.1f} ({c['loss']:.3f})" for c in cells]
            print(f"| {scenario} | {units} | {lr:.3g} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
