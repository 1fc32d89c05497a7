"""Rounds of thousands of clients on one machine, and what the learner's forms are worth there.

    python benchmarks/many_clients.py                      100 rounds of 1,000 and 10,000 clients
    python benchmarks/many_clients.py --quick              200 clients, a few rounds
    python benchmarks/many_clients.py --accuracy lab/cifar100 --seeds 0,1,2 \\
        --set data.num_clients=100 --set federation.participation=0.2

The first part plays pFedSeq's rounds on toy clients (K = 4, D = 1,024; every one answers through
the engine that a run has) of which a tenth takes part in each, with a checkpoint after every
`--checkpoint-every` rounds; each N in a process of its own. Printed are the medians of the first
and the last third of the rounds, so that growth from round to round would show, and of memory both
what the process holds and what of it is in use: the difference is free memory that the C library
keeps (`pfedseq.engines.heap`).

The second runs a preset or config once for each form and seed: pFedSeq dense and pooled, FedAvg,
FedRep and Local, and what `--also` names. Printed is the mean over seeds of the client mean, on the
validation images (to choose by, on seeds from 100 on) or with `--split test`.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from learner_cost import resident_kib

from pfedseq.config import load_config
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import RoundOutcome, run_rounds
from pfedseq.engines.states import MemoryStates
from pfedseq.methods import METHODS
from pfedseq.runs.checkpoint import Checkpoints
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import run

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.toys import make_setup, quadratic_federation, random_centers

LAYERS, DIM, HEAD, PARTICIPATION = 4, 1024, 10, 0.1
FORMS = {
    "pFedSeq, dense": ("pfedseq", ["mixing=dense", "row_share=1.0"]),
    "pFedSeq, dense, a tenth of the rows": ("pfedseq", ["mixing=dense", "row_share=0.1"]),
    "pFedSeq, pooled": ("pfedseq", ["mixing=pooled"]),
    "FedAvg": ("fedavg", []),
    "FedRep": ("fedrep", []),
    "Local": ("local", []),
}


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def kept_free_mib() -> float:
    """Memory that the program has freed and the C library keeps."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Heap
    return float(mallinfo2().fordblks) / 2**20


def simulate(clients: int, rounds: int, checkpoint_every: int) -> dict[str, Any]:
    """Rounds of pFedSeq with a tenth of the clients in each, in this process."""
    torch.set_num_threads(1)
    method, sizes = METHODS["pfedseq"], (10,) * clients
    config = method.config(lr=0.1, warmup_rounds=2)
    centers = random_centers(clients, LAYERS, DIM, HEAD)
    server = method.server(config, make_setup(centers, sizes, rounds))
    conditions = FederationConfig(participation=PARTICIPATION)
    found: dict[str, list[float]] = {"round": [], "server": [], "save": [], "mib": []}
    found["used_mib"] = []
    with tempfile.TemporaryDirectory() as place:
        checkpoints = Checkpoints(Path(place), MemoryStates(), {})
        sites = quadratic_federation(centers, sizes)
        engine = LocalClients(method.client, config, sites, states=checkpoints.states)

        def after(outcome: RoundOutcome) -> None:
            if outcome.t % checkpoint_every == 0:
                start = time.perf_counter()
                checkpoints.save(outcome.t, server)
                found["save"].append(time.perf_counter() - start)
            found["round"].append(outcome.round_seconds - outcome.evaluate_seconds)
            found["server"].append(outcome.server_seconds)
            found["mib"].append(resident_kib("VmRSS") / 1024)
            found["used_mib"].append(found["mib"][-1] - kept_free_mib())

        run_rounds(server, engine, range(1, rounds + 1), after, rounds + 1, conditions)
        on_disk = sum(p.stat().st_size for p in Path(place).rglob("*") if p.is_file())
    return {
        "clients": clients,
        "rounds": rounds,
        "mixing": server.learner.mixing,
        **{f"{name}_early": median(some[: _third(some)]) for name, some in found.items()},
        **{f"{name}_late": median(some[-_third(some) :]) for name, some in found.items()},
        "peak_mib": resident_kib("VmHWM") / 1024,
        "checkpoints_mb": on_disk / 1e6,
    }


def _third(rounds: list[float]) -> int:
    return max(1, len(rounds) // 3)


def print_rounds(one: dict[str, Any]) -> None:
    print(
        f"  {one['clients']:6,} clients, {one['mixing']}:"
        f" round {one['round_early']:6.2f} → {one['round_late']:6.2f} s,"
        f" of it server {one['server_early']:5.2f} → {one['server_late']:5.2f} s,"
        f" checkpoint {one['save_early']:5.2f} → {one['save_late']:5.2f} s,"
        f" memory {one['mib_early']:5.0f} → {one['mib_late']:5.0f} MiB,"
        f" of it in use {one['used_mib_early']:5.0f} → {one['used_mib_late']:5.0f} MiB,"
        f" two checkpoints {one['checkpoints_mb']:6.0f} MB",
        flush=True,
    )


def accuracy(
    source: str, overrides: list[str], seeds: list[int], forms: dict[str, Any], split: str
) -> list[dict[str, Any]]:
    """The client mean after the last round of each form, by seed; printed as they come."""
    figures = []
    for title, (name, options) in forms.items():
        own = [f"methods.{name}.{option}" for option in options]
        found = []
        for seed in seeds:
            settings = [*overrides, *own, f"run.seed={seed}", f'run.methods=["{name}"]']
            with tempfile.TemporaryDirectory() as place:
                run(load_config(source, settings), place)
                scores = RunFolder(Path(place)).records()[-1].scores
            over = scores.over_clients(split=split) if scores is not None else None
            assert over is not None  # the last round is evaluated
            found.append(over.client_mean)
        print(f"  {title:36} {fmean(found):7.4f}  {found}", flush=True)
        figures.append({"form": title, "seeds": seeds, split: found})
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="200 clients, 6 rounds")
    parser.add_argument("--clients", default="1000,10000")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--checkpoint-every", type=int, default=1, metavar="ROUNDS")
    parser.add_argument("--accuracy", metavar="CONFIG", help="compare the forms on this config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--only", help="forms by name, with semicolons")
    parser.add_argument("--also", action="append", default=[], metavar="METHOD")
    parser.add_argument("--seeds", default="100,101")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds = 6 if arguments.quick else arguments.rounds
    if arguments.one is not None:
        print(json.dumps(simulate(arguments.one, rounds, arguments.checkpoint_every)))
        return
    figures: dict[str, Any] = {}
    if arguments.accuracy is not None:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        print(f"{arguments.accuracy}, {arguments.split}, seeds {arguments.seeds}: client mean")
        wanted = FORMS if arguments.only is None else arguments.only.split(";")
        forms = {name: FORMS[name] for name in wanted}
        forms |= {name: (name, []) for name in arguments.also}
        figures["accuracy"] = accuracy(
            arguments.accuracy, arguments.settings, seeds, forms, arguments.split
        )
    else:
        figures["rounds"] = []
        for clients in [200] if arguments.quick else map(int, arguments.clients.split(",")):
            command = [sys.executable, __file__, "--one", str(clients), "--rounds", str(rounds)]
            command += ["--checkpoint-every", str(arguments.checkpoint_every)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            figures["rounds"].append(json.loads(done.stdout))
            print_rounds(figures["rounds"][-1])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
