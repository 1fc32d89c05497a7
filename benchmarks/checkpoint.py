"""What a checkpoint costs beside a round, and whether rounds stay as quick and small as they were.

    python benchmarks/checkpoint.py --quick               fewer repeats, fewer rounds
    python benchmarks/checkpoint.py --json figures.json

The first part has the paper's sizes: 10 clients, ViT-B/16 with rank 2 (K = 12, D = 6,144), 100
classes and, for pFedSeq, a full history of 20 rounds. A round's time is not waited for: one
gradient of ViT-B on a batch of 32 is measured, and counted as often as CIFAR-100's 10 clients with
4,050 training images each take one, on all cores at once and without the server or any testing; so
the share that is printed is more than the true one. The second part is several hundred rounds of
pFedSeq on tiny tasks with a checkpoint after each.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from client import seconds_of

from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.states import MemoryStates
from pfedseq.federation import Reply, Setup
from pfedseq.methods import METHODS
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.params import Params
from pfedseq.runs.checkpoint import Checkpoints

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.toys import make_setup, quadratic_federation, random_centers

CLIENTS, LAYERS, DIM, CLASSES, FEATURES = 10, 12, 6144, 100, 768
BATCHES_A_ROUND = CLIENTS * -(-4050 // 32)


def written(folder: Path, before: dict[Path, int]) -> tuple[int, dict[Path, int]]:
    """Bytes in files that are new or were replaced since `before`."""
    now = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    return sum(p.stat().st_size for p in now if before.get(p) != now[p]), now


def checkpoint_cost(method: str, saves: int) -> dict[str, float]:
    """Seconds and megabytes of a checkpoint at the paper's sizes, all clients changed."""
    initial = Params(torch.zeros(LAYERS, DIM), torch.zeros(CLASSES * (FEATURES + 1)))
    setup = Setup(initial, (4050,) * CLIENTS, 80, 0, num_classes=CLASSES)
    server = METHODS[method].server(METHODS[method].config(), setup)
    rng = torch.Generator().manual_seed(0)
    seconds, megabytes = [], []
    with tempfile.TemporaryDirectory() as place:
        checkpoints = Checkpoints(Path(place), MemoryStates(), {})
        files: dict[Path, int] = {}
        for t in range(1, 23 + saves):
            delta = 1e-3 * torch.randn(CLIENTS, LAYERS, DIM, generator=rng)
            heads = delta.new_ones(CLIENTS, len(initial.head))
            full = {"delta": delta, "adapter": delta, "head": heads}
            if method == "pfedseq":
                server.history.append(delta)
                server.adapters = server.adapters + delta
            else:
                server.update(
                    t, {i: Reply({k: v[i] for k, v in full.items()}) for i in range(CLIENTS)}
                )
            for i in range(CLIENTS):
                checkpoints.states.put(i, {"head": torch.randn(len(initial.head), generator=rng)})
            start = time.perf_counter()
            checkpoints.save(t, server)
            seconds.append(time.perf_counter() - start)
            count, files = written(Path(place), files)
            megabytes.append(count / 1e6)
        on_disk = sum(p.stat().st_size for p in Path(place).rglob("*") if p.is_file()) / 1e6
    last = seconds[-saves:]
    return {
        "median_seconds": sorted(last)[len(last) // 2],
        "slowest_seconds": max(last),
        "megabytes_written": megabytes[-1],
        "megabytes_on_disk": on_disk,
    }


def batch_seconds(repeats: int) -> float:
    """One gradient of ViT-B/16 at 224 pixels on a batch of 32, on all cores."""
    torch.set_num_threads(os.cpu_count() or 1)
    model = AdaptedModel(load_backbone("random:vit-base"), AdapterConfig(), CLASSES, 0)
    phi = Params(model.initial.adapter.requires_grad_(), model.initial.head.requires_grad_())
    images, labels = torch.randn(32, 3, 224, 224), torch.randint(CLASSES, (32,))

    def gradient() -> None:
        logits = model.classify(phi.head, model.features(phi.adapter, model.inputs(images)))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        torch.autograd.grad(loss, [phi.adapter, phi.head])

    return min(seconds_of(gradient) for _ in range(repeats))


def many_rounds(rounds: int) -> dict[str, Any]:
    """Seconds a round and memory, early and late, of pFedSeq on quadratic toys."""
    torch.set_num_threads(1)
    method, centers, sizes = METHODS["pfedseq"], random_centers(4, 2, 50, 5), (1, 2, 3, 4)
    config = method.config(lr=0.1, warmup_rounds=2, max_sequence_length=10)
    server = method.server(config, make_setup(centers, sizes, rounds))
    seconds: list[float] = []
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        checkpoints = Checkpoints(Path(place), MemoryStates(), {})
        clients = LocalClients(
            method.client, config, quadratic_federation(centers, sizes), states=checkpoints.states
        )
        last = time.perf_counter()

        def after(outcome: Any) -> None:
            nonlocal last
            checkpoints.save(outcome.t, server)
            now = time.perf_counter()
            seconds.append(now - last)
            memory.append(resident_mib())
            last = time.perf_counter()

        run_rounds(server, clients, range(1, rounds + 1), after)
        files = sum(1 for p in Path(place).rglob("*") if p.is_file())
    part = rounds // 5

    def middle(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    early, late = slice(part, 2 * part), slice(-part, None)
    return {
        "rounds": rounds,
        "median_seconds_early": middle(seconds[early]),
        "median_seconds_late": middle(seconds[late]),
        "late_to_early_seconds": middle(seconds[late]) / middle(seconds[early]),
        "mib_early": middle(memory[early]),
        "mib_late": middle(memory[late]),
        "files_at_the_end": files,
    }


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    quick = arguments.quick
    batch = batch_seconds(1 if quick else 3)
    figures: dict[str, Any] = {"load_average": os.getloadavg()[0], "cores": os.cpu_count()}
    figures["vit_base_batch_seconds"] = batch
    figures["round_seconds_at_least"] = batch * BATCHES_A_ROUND
    for method in ("pfedseq", "fedavg", "pfedhn"):
        cost = checkpoint_cost(method, 5 if quick else 15)
        cost["share_of_a_round"] = cost["median_seconds"] / figures["round_seconds_at_least"]
        figures[method] = cost
        print(f"{method}: {json.dumps(cost, indent=2)}", flush=True)
    figures["many_rounds"] = many_rounds(200 if quick else 600)
    print(json.dumps({k: v for k, v in figures.items() if k not in METHODS}, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
