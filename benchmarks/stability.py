"""Does pFedSeq ever fall below its own mean adapter?

    python benchmarks/stability.py --out stability.jsonl
    python benchmarks/stability.py --only "demo;turned digits" --seeds 0,1,2 --rates 1,2 --out …

Every case is run with pFedSeq and with its mean adapter alone (`frozen`: a learner that is never
trained, and no groups), at the config's rates and at twice those, heads included, and evaluated
every second round (lab presets: every fifth). Every finished run is a line of `--out`; what is
there already is not run again. Printed is, for each case and rate, the largest number of points
that pFedSeq is below `frozen` on test data at any evaluation from round W + 5 on, with its seed and
round, and how far both get. Nothing is chosen by these figures; test data are used because
validation sets are small (the demo's have 130 images), so that the largest of many differences
would be noise.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import pfedseq
from pfedseq.runs.folder import RunFolder

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "demo": ("demo", {}),
    "turned digits": (
        "demo",
        {
            "run.rounds": 40,
            "data.partition": "iid",
            "data.scanner_turn": 90,
            "data.train_fraction": 0.6,
        },
    ),
    "PACS": ("lab/pacs", {}),
    "CIFAR-100": ("lab/cifar100", {}),
    "Omniglot": ("lab/omniglot", {}),
}
ABLATIONS = ("none", "frozen")
SETTLED = 5
"""Rounds after the warm-up from which a fall counts."""
Key = tuple[str, float, int, str]


def run_one(case: str, rate: float, seed: int, ablation: str, places: Any) -> dict[str, Any]:
    """The test curve of a run, and W."""
    preset, changed = CASES[case]
    own = {"vit": "model.backbone"} if preset != "demo" else {}
    given = {option: getattr(places, name) for name, option in own.items() if getattr(places, name)}
    if source := getattr(places, case.lower().replace("-", ""), ""):
        given["data.source"] = source
    if preset != "demo":
        given["model.precision"] = places.precision
        if places.store:
            given["data.store"] = places.store
    section = pfedseq.load_config(preset, _settings(given)).method_config("pfedseq")
    given |= changed | {
        "run.methods": ["pfedseq"],
        "run.seed": seed,
        "run.evaluate_every": 2 if preset == "demo" else 5,
        "methods.pfedseq.ablation": ablation,
        **({"methods.pfedseq.group_cosine": 0} if ablation == "frozen" else {}),
        "methods.pfedseq.lr": rate * section.lr,
        "methods.pfedseq.head_lr": rate * section.lr * section.head_ratio,
    }
    config = pfedseq.load_config(preset, _settings(given))
    with tempfile.TemporaryDirectory() as place:
        pfedseq.run(config, Path(place) / "run")
        records = [r for r in RunFolder(Path(place) / "run").records() if r.scores]
    curve = [[r.round, r.scores.client_mean] for r in records if r.scores]
    warmup = config.method_config("pfedseq").warmup(config.run.rounds)
    return {"curve": curve, "warmup": warmup}


def _settings(options: dict[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in options.items()]


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("vit", "pacs", "cifar100", "omniglot"):
        parser.add_argument(f"--{name}", default="", help="a local copy")
    parser.add_argument("--store", default="", help="where prepared images are kept")
    parser.add_argument("--precision", default="float32", help="of the lab presets' products")
    parser.add_argument("--out", default="stability.jsonl", help="one line per finished run")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rates", default="1,2", help="multiples of the config's rates")
    parser.add_argument("--only", default="", help="names of cases, separated by semicolons")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = Path(arguments.out)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(r["case"], r["rate"], r["seed"], r["ablation"]): r for r in rows}
    cases = arguments.only.split(";") if arguments.only else list(CASES)
    rates = [float(rate) for rate in arguments.rates.split(",")]
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for case in cases:
        for seed in seeds:
            for rate in rates:
                for ablation in ABLATIONS:
                    if (case, rate, seed, ablation) not in done:
                        row = {"case": case, "rate": rate, "seed": seed, "ablation": ablation}
                        row |= run_one(case, rate, seed, ablation, arguments)
                        with out.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                        done[case, rate, seed, ablation] = row
    print(table(done, cases, rates))


def table(done: dict[Key, dict[str, Any]], cases: list[str], rates: list[float]) -> str:
    """Markdown; a case has the seeds that were run, which may be more than were asked for."""
    lines = [
        "| | rates | seeds | pFedSeq | `frozen` | largest fall below `frozen` |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for case in cases:
        for rate in rates:
            seeds = sorted({s for c, r, s, _ in done if (c, r) == (case, rate)})
            pairs = [[done[case, rate, seed, which] for which in ABLATIONS] for seed in seeds]
            ends = [fmean(100 * pair[k]["curve"][-1][1] for pair in pairs) for k in (0, 1)]
            fall, t, seed = max(
                (100 * (theirs - ours), t, seed)
                for seed, (one, other) in zip(seeds, pairs, strict=True)
                for (t, ours), (_, theirs) in zip(one["curve"], other["curve"], strict=True)
                if t >= one["warmup"] + SETTLED
            )
            lines.append(
                f"| {case} | × {rate:g} | {len(seeds)} | {ends[0]:.1f} | {ends[1]:.1f} "
                f"| {fall:.1f} (seed {seed}, round {t}) |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
