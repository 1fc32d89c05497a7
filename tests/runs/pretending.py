"""Runs on the processor, and the same shared out to a pretended device: `FOLDER VARIANT…`.

A process of its own, since a pretended device is there for good. It fails where tensors of two
devices meet; the test compares what both kinds of run left.
"""

import sys
from pathlib import Path

import torch

from pfedseq.config import make_config
from pfedseq.learners import layerwise
from pfedseq.methods import METHODS
from pfedseq.runs import world
from pfedseq.runs.run import run
from pfedseq.workloads import workload
from tests.every_method import OPTIONS
from tests.pretended_device import DEVICE  # before any backward pass: autograd counts devices once

COMMON = {
    "run": {"rounds": 2, "methods": ["fedavg"]},
    "data": {
        "name": "digits",
        "partition": "dirichlet",
        "alpha": 1.0,
        "num_clients": 3,
        "max_images_per_client": 16,
    },
    "model": {"backbone": "random:demo"},
    "adapter": {"layers": "last 2"},
    "auxiliary": {"num_images": 8},
    "training": {"lr": 0.02, "batch_size": 4},
    "engine": {"clients_per_pass": 2, "device": "cpu"},
    "methods": OPTIONS
    | {
        "pfedseq": {"warmup_rounds": 1, "max_sequence_length": 2},
        "perada": {"distillation_steps": 2, "distillation_batch_size": 4},
    },
}
NOTES = "client,label,text\n" + "".join(
    f"{'abc'[n % 3]},{('good', 'bad')[n % 2]},{('fine', 'poor')[n % 2]} day {n}\n"
    for n in range(30)
)


def variants(folder):
    """All methods, and what else passes through code of its own, by name."""
    notes = folder / "notes.csv"
    notes.write_text(NOTES)
    return {
        "some": {"run": {"rounds": 2, "methods": ["pfedseq", "perada"]}},
        "methods": {"run": {"rounds": 2, "methods": list(METHODS)}},
        "dora": {"adapter": {"kind": "dora", "layers": "all"}},
        "ia3": {"adapter": {"kind": "ia3"}, "engine": {"kind": "wire"}},
        "dropout": {"adapter": {"dropout": 0.3}},
        "no tokens": {"model": {"tokens": "none"}},
        "noise": {"privacy": {"noise": 0.1}},
        "rounded": {"federation": {"payload": "float16"}},
        "text": {
            "run": {"rounds": 2, "methods": ["fedavg", "perada"]},
            "data": {"name": "text", "source": str(notes)},
            "model": {"backbone": "random:bert-tiny"},
        },
    }


def config_of(variant):
    sections = {name: COMMON.get(name, {}) | variant.get(name, {}) for name in {*COMMON, *variant}}
    if variant.get("data"):
        sections["data"] = variant["data"]
    return make_config(sections)


def main(folder, names):
    every = variants(folder)
    chosen = {name: every[name] for name in names}
    for name, variant in chosen.items():
        run(config_of(variant), folder / "processor" / name)
    try:
        torch.ones(2).to(DEVICE) + torch.ones(2)
        sys.exit("the pretended device lets tensors of the processor pass")
    except RuntimeError as problem:
        print(problem)
    world.pick_devices = workload.pick_devices = lambda wanted: [DEVICE, torch.device("cpu")]
    # PyTorch's recomputation in the backward pass aborts on tensors of another make.
    layerwise.checkpoint = lambda network, rows, **_: network(rows)
    for name, variant in chosen.items():
        run(config_of(variant), folder / "pretended" / name)
        print(name, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
