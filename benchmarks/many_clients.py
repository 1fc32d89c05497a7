"""Rounds of thousands of clients on one machine: time, memory and checkpoints.

    python benchmarks/many_clients.py                      100 rounds of 1,000 and 10,000 clients
    python benchmarks/many_clients.py --quick              200 clients, a few rounds

Plays pFedSeq's rounds on toy clients (K = 4, D = 1,024; each answers through the engine of a run),
of which a tenth takes part in each round, with a checkpoint after every `--checkpoint-every`
rounds; each N in a process of its own. Printed are the medians of the first and the last third of
the rounds, which show growth from round to round: seconds by the clock and of the processor, what
the process holds in memory after a round, and what of it the program has allocated. (The
difference is the interpreter, its libraries, and freed memory that the C library keeps:
`pfedseq.engines.heap`.) Accuracy at scale is measured by at_scale.py.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from learner_cost import resident_kib

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import RoundOutcome, run_rounds
from pfedseq.engines.states import MemoryStates
from pfedseq.methods import METHODS
from pfedseq.runs.checkpoint import Checkpoints

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.toys import make_setup, quadratic_federation, random_centers

LAYERS, DIM, HEAD, PARTICIPATION = 4, 1024, 10, 0.1


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_mib() -> float:
    """Memory that the program has allocated and not freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Heap
    heap = mallinfo2()
    return float(heap.uordblks + heap.hblkhd) / 2**20


def simulate(clients: int, rounds: int, checkpoint_every: int) -> dict[str, Any]:
    """Rounds of pFedSeq with a tenth of the clients in each, in this process."""
    torch.set_num_threads(1)
    method, sizes = METHODS["pfedseq"], (10,) * clients
    config = method.config(lr=0.1, warmup_rounds=2)
    centers = random_centers(clients, LAYERS, DIM, HEAD)
    server = method.server(config, make_setup(centers, sizes, rounds))
    conditions = FederationConfig(participation=PARTICIPATION)
    names = ("round", "server", "processor", "save", "mib", "allocated_mib")
    found: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as place:
        checkpoints = Checkpoints(Path(place), MemoryStates(), {})
        sites = quadratic_federation(centers, sizes)
        engine = LocalClients(method.client, config, sites, states=checkpoints.states)

        begin = time.process_time()

        def after(outcome: RoundOutcome) -> None:
            nonlocal begin
            found["processor"].append(time.process_time() - begin)
            found["round"].append(outcome.round_seconds - outcome.evaluate_seconds)
            found["server"].append(outcome.server_seconds)
            found["mib"].append(resident_kib("VmRSS") / 1024)
            found["allocated_mib"].append(allocated_mib())
            if outcome.t % checkpoint_every == 0:
                start = time.perf_counter()
                checkpoints.save(outcome.t, server)
                found["save"].append(time.perf_counter() - start)
            begin = time.process_time()

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
    def growth(name: str, digits: int) -> str:
        return f"{one[f'{name}_early']:.{digits}f} → {one[f'{name}_late']:.{digits}f}"

    print(
        f"  {one['clients']:6,} clients, {one['mixing']}: round {growth('round', 2)} s,"
        f" of it server {growth('server', 2)} s, processor {growth('processor', 2)} s,"
        f" checkpoint {growth('save', 2)} s, memory {growth('mib', 0)} MiB,"
        f" allocated {growth('allocated_mib', 0)} MiB, peak {one['peak_mib']:.0f} MiB,"
        f" two checkpoints {one['checkpoints_mb']:.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="200 clients, 6 rounds")
    parser.add_argument("--clients", default="1000,10000")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--checkpoint-every", type=int, default=1, metavar="ROUNDS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds = 6 if arguments.quick else arguments.rounds
    if arguments.one is not None:
        print(json.dumps(simulate(arguments.one, rounds, arguments.checkpoint_every)))
        return
    figures: dict[str, Any] = {"rounds": []}
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
