"""What the learner's options do on a federation whose every optimum is known.

    python benchmarks/learner_options.py              about two minutes
    python benchmarks/learner_options.py --json figures.json

Ten clients, K = 2 layers of 256 numbers. Client i's training optimum is a_i = g + c_i + p_i + e_i:
what all share, what its group of clients shares, what is its own, and what is only in its training
data; its test optimum lacks e_i. A round moves θ_i by κ h ⊙ (a_i − θ_i) and some noise, with
curvatures h between 0.1 and 1, so there is no local training to wait for. Printed is the mean of
½ h ⊙ (θ_i − a_i + e_i)², times 10⁴, over two seeds: Local ends at what e costs, FedRep at what
c and p cost, and a good calibration below both.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.federation import Reply, Setup
from pfedseq.methods.pfedseq import PFedSeqConfig, PFedSeqServer
from pfedseq.params import Params

CLIENTS, LAYERS, ROWS, SIZE = 10, 2, 256, 0.01
WARM_UP, LENGTH, ROUNDS, SEEDS = 10, 10, 40, (0, 1)
SHOWN = (10, 11, 15, 20, 40)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain: newest, random projections": {"residual": "newest", "zero_projections": False},
    "newest": {"residual": "newest"},
    "none": {"residual": "none"},
    "none, rate 0.01": {"residual": "none", "learner_lr": 0.01},
    "drift 0.8": {"momentum": 0.0},
    "drift 0.8, momentum 0.5": {"momentum": 0.5},
    "drift 0.8, momentum 0.9 (default)": {},
    "drift 0.5, momentum 0.9": {"drift_decay": 0.5},
    "drift 0.9, momentum 0.9": {"drift_decay": 0.9},
    "default, rate 0.01": {"learner_lr": 0.01},
    "default, rate 0.01, 5 steps": {"learner_lr": 0.01, "learner_steps": 5},
    "the same, bound 0.3": {"learner_lr": 0.01, "learner_steps": 5, "max_calibration": 0.3},
}


class Federation(NamedTuple):
    """Optima (N, K, D) on training and on test data, and curvatures (1, K, D)."""

    train: Tensor
    test: Tensor
    curvature: Tensor


def federation(seed: int, groups: int) -> Federation:
    rng = torch.Generator().manual_seed(seed)

    def draw(count: int, size: float) -> Tensor:
        return size * SIZE * torch.randn(count, LAYERS, ROWS, generator=rng)

    shared, own, noise = draw(1, 1.0), draw(CLIENTS, 0.5), draw(CLIENTS, 1.0)
    members = torch.arange(CLIENTS) % groups
    test = shared + draw(groups, 1.0)[members] + own
    return Federation(test + noise, test, 0.1 + 0.9 * torch.rand(1, LAYERS, ROWS, generator=rng))


def updates(world: Federation, adapters: Tensor, speed: float, rng: torch.Generator) -> Tensor:
    noisy = world.train + 0.3 * SIZE * torch.randn(world.train.shape, generator=rng)
    return speed * world.curvature * (noisy - adapters)


def test_loss(world: Federation, adapters: Tensor) -> float:
    return float((world.curvature * (adapters - world.test).square()).mean()) / 2 * 1e4


def losses(name: str, seed: int, groups: int, speed: float) -> list[float]:
    """The test loss after every round; `name` is Local, FedRep or a key of OPTIONS."""
    world, rng = federation(seed, groups), torch.Generator().manual_seed(seed + 99)
    start = Params(torch.zeros(LAYERS, ROWS), torch.zeros(1))
    server = None
    if name in OPTIONS:
        chosen = {"warmup_rounds": WARM_UP, "max_sequence_length": LENGTH, **OPTIONS[name]}
        setup = Setup(start, (1,) * CLIENTS, ROUNDS, seed)
        server = PFedSeqServer(PFedSeqConfig(**chosen), setup)
    adapters, found = start.adapter.expand(CLIENTS, -1, -1), []
    for t in range(1, ROUNDS + 1):
        deltas = updates(world, adapters, speed, rng)
        if server is not None:
            server.update(t, {i: Reply({"delta": deltas[i]}) for i in range(CLIENTS)})
            adapters = server.adapters
        elif name == "Local":
            adapters = adapters + deltas
        else:
            adapters = (adapters + deltas).mean(0, keepdim=True).expand_as(adapters)
        found.append(test_loss(world, adapters))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = []
    for groups, speed in ((CLIENTS, 0.1), (CLIENTS, 0.5), (3, 0.1), (3, 0.5)):
        kind = "every client by itself" if groups == CLIENTS else f"{groups} groups of clients"
        print(f"\n{kind}, κ = {speed}; test loss after round {', '.join(map(str, SHOWN))}")
        for name in ("Local", "FedRep", *OPTIONS):
            try:
                runs = [losses(name, seed, groups, speed) for seed in SEEDS]
            except InputError:  # an update that is not finite
                print(f"  {name:34} diverged", flush=True)
                figures.append({"groups": groups, "speed": speed, "name": name, "loss": None})
                continue
            mean = [fmean(column) for column in zip(*runs, strict=True)]
            print(f"  {name:34}", *(f"{mean[t - 1]:7.3f}" for t in SHOWN), flush=True)
            figures.append({"groups": groups, "speed": speed, "name": name, "loss": mean})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
