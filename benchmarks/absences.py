"""What absent clients, gaps in the history and private updates cost on a setting of one's choice.

    python benchmarks/absences.py participation lab/cifar100 --seeds 0,1,2
    python benchmarks/absences.py gaps lab/cifar100 --seeds 100,101,102
    python benchmarks/absences.py privacy lab/cifar100 --seeds 0,1,2 --set privacy.clip=0.5

`participation`: test accuracy of pFedSeq, FedAvg and FedRep with all, half and 30 % of the clients
in a round. `gaps`: what pFedSeq's history may hold of absent clients, by validation accuracy and
loss, since an option is chosen by it. `privacy`: test accuracy of FedAvg and pFedSeq with noise
(σ 0: none, and nothing is clipped), and ε.

A run that is finished is not made again, and one that was cut off goes on: the same command may be
stopped and given again, and several processes may share it. `--finished` prints what there is.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from pfedseq.config import load_config
from pfedseq.experiments.statistics import MeanStd
from pfedseq.methods import METHODS
from pfedseq.report.progress import SequenceDisplay
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.scores import Scores
from pfedseq.runs.sweep import Entry, single, sweep

Arm = tuple[str, str, list[str]]
"""A row's method, what the row is called, and what it sets."""

PARTICIPATION = (1.0, 0.5, 0.3)
NOISE = (0.0, 0.1, 1.0, 4.0)
QUICK = [
    "run.rounds=2",
    "data.num_clients=3",
    "data.max_images_per_client=24",
    "methods.pfedseq.warmup_rounds=1",
]


def participation_arms() -> list[Arm]:
    """Three methods at three rates."""
    return [
        (method, f"{100 * rate:g} %", [f"federation.participation={rate}"])
        for method in ("pfedseq", "fedavg", "fedrep")
        for rate in PARTICIPATION
    ]


def gap_arms() -> list[Arm]:
    """Three policies at the rates that leave gaps."""
    return [
        (
            "pfedseq",
            f"{100 * rate:g} %, {gap}",
            [f"federation.participation={rate}", f"methods.pfedseq.history_gap={gap}"],
        )
        for rate in PARTICIPATION[1:]
        for gap in ("zero", "last", "decayed")
    ]


def privacy_arms() -> list[Arm]:
    """Two methods under rising noise."""
    return [
        (method, f"σ {noise:g}", [f"privacy.noise={noise}"] if noise else [])
        for method in ("fedavg", "pfedseq")
        for noise in NOISE
    ]


TABLES: dict[str, Callable[[], list[Arm]]] = {
    "participation": participation_arms,
    "gaps": gap_arms,
    "privacy": privacy_arms,
}


def figures(table: str, scores: Scores) -> dict[str, float]:
    """What a table shows of a run's last evaluation; a choice is made on validation alone."""
    if table != "gaps":
        return {
            "test accuracy": 100 * scores.client_mean,
            "worst client": 100 * scores.worst_client,
        }
    if scores.validation_mean is None:
        raise SystemExit("no client holds validation examples: set data.validation_fraction")
    losses = [loss for loss in scores.validation_loss if loss is not None]
    return {
        "validation accuracy": 100 * scores.validation_mean,
        "validation loss": fmean(losses),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("config", nargs="?", default="demo", help="a preset or a .toml file")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    parser.add_argument("--out", type=Path, help="folder; default runs/absences-TABLE")
    parser.add_argument("--finished", action="store_true", help="run nothing")
    parser.add_argument("--quick", action="store_true", help="three clients, two rounds")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(arguments)
    out = options.out or Path("runs") / f"absences-{options.table}"
    seeds = [int(seed) for seed in options.seeds.split(",")]
    common = [*(QUICK if options.quick else []), *options.set]
    arms = TABLES[options.table]()
    entries = {
        (method, row, seed): Entry(
            f"{method}-{''.join(c for c in row if c.isascii() and c not in ' %')}/seed_{seed}",
            single(load_config(options.config, [*common, *sets]), method, seed),
        )
        for seed in seeds
        for method, row, sets in arms
    }
    if not options.finished:
        with SequenceDisplay(len(entries), out) as display:
            sweep(list(entries.values()), out, display.announce, tell=print)
    rows = []
    for method, row, _ in arms:
        folders = [RunFolder(out / entries[method, row, seed].label) for seed in seeds]
        done = [folder for folder in folders if folder.summary.exists()]
        found = []
        for folder in done:
            scores = folder.by_method()[method][-1].scores
            assert scores is not None  # the last round is always evaluated
            found.append(figures(options.table, scores))
        line: dict[str, object] = {"method": METHODS[method].title, "row": row, "seeds": len(done)}
        shown = []
        for name in found[0] if found else ():
            values = MeanStd.of([one[name] for one in found])
            line[name] = [values.mean, values.std]
            shown.append(f"{name} {values.mean:7.3f} ± {values.std:.3f}")
        if done and (epsilon := done[0].read_summary().epsilon) is not None:
            line["epsilon"] = epsilon
            shown.append(f"ε {epsilon:.3g}")
        rows.append(line)
        print(f"{METHODS[method].title:8} {row:16} {len(done)} seeds  {'  '.join(shown)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
