"""Times a server round of the Mamba learner, ours beside public Mambas, and prints the ratios.

    python benchmarks/learner.py --quick              the headline shape only, about two minutes
    python benchmarks/learner.py --json figures.json  every N and L, and the cost
    python benchmarks/learner.py --repeats 1          the same in a third of the time
    python benchmarks/learner.py --cost               a server round of 10 to 3,000 clients
    python benchmarks/learner.py --cost --quick       the same up to 1,000, a round of each
    python benchmarks/learner.py --cost --plot FILE   with a picture of the growth

Ours is the learner that a run has by default, with signed blocks; the public ones are Mamba as for
language. A round is one learner step (forward, backward along a direction, Adam) and one inference,
for K = 12 layers, D = 6,144 rows and M = 16 states. The fused learner always runs that whole round.
Its PyTorch fallback runs one layer; so do the others, or a slice of its rows where the graph would
take more than the limit below. Their seconds are multiplied up, which favours them (smaller
tensors, no gradients of 12 layers to hold). Each figure is the fastest of several rounds taken in
turn, so that a disturbance hits all; the processor seconds beside them, summed over threads, feel
other programs on the machine much less.

`--cost` measures the whole server as the clients become more: see learner_cost.py.

Memory is the peak of the resident set above what it was with inputs and parameters in place, of
one round in a process of its own.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from learner_cost import (
    BLOCKS,
    DEFAULT,
    LAYERS,
    ROWS,
    STATES,
    draw_growth,
    measure_costs,
    resident_kib,
)
from torch import Tensor, nn

from pfedseq.learners import MambaLearner
from pfedseq.learners.fused_mamba import fused_mamba

HEADLINE = (10, 20)
CLIENTS = (6, 10, 20, 50, 100)
LENGTHS = (5, 10, 20, 30)
GRAPH_LIMIT = 1 * 2**30
"""Bytes that a public Mamba's graph may take outside the headline shape."""


class Seconds(NamedTuple):
    """What one round took."""

    step: float
    inference: float
    processor: float
    """Of both together, summed over threads."""


@dataclass
class Contender:
    """A network on (rows, L, N), or ours on (K, D, L, N), and how many times it is the whole."""

    round: Callable[[], Seconds]
    times: float
    measured_on: str


def timed_round(
    network: nn.Module, window: Tensor, direction: Tensor, last_step: Callable[[Tensor], Tensor]
) -> Callable[[], Seconds]:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def run() -> Seconds:
        begin, processor = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        torch.autograd.backward(last_step(network(window)), -direction)
        optimizer.step()
        middle = time.perf_counter()
        with torch.no_grad():
            last_step(network(window))
        end = time.perf_counter()
        return Seconds(middle - begin, end - middle, time.process_time() - processor)

    return run


def default_learner(
    layers: int, clients: int, states: int, generator: torch.Generator
) -> MambaLearner:
    """As pFedSeq makes it, but for the projections that start at zero: zeros might be cheaper."""
    return MambaLearner(layers, clients, states, BLOCKS, signed=DEFAULT.signed, generator=generator)


def ours(kernel: str, clients: int, steps: int) -> Contender:
    generator = torch.Generator().manual_seed(0)
    # The fallback is slow enough to be measured on one layer, too: its layers run in turn.
    layers = 1 if kernel == "off" else LAYERS
    learner = default_learner(layers, clients, STATES, generator)
    window = 1e-2 * torch.randn(steps, clients, layers, ROWS, generator=generator)
    direction = 1e-2 * torch.randn(clients, layers, ROWS, generator=generator)
    run = timed_round(
        learner, window.permute(2, 3, 0, 1), direction.permute(1, 2, 0), lambda output: output
    )

    def with_kernel() -> Seconds:
        os.environ["PFEDSEQ_MAMBA_KERNEL"] = kernel
        fused_mamba.cache_clear()
        return run()

    return Contender(with_kernel, LAYERS / layers, "all" if layers == LAYERS else "1 layer")


def public(network: nn.Module, clients: int, steps: int, rows: int) -> Contender:
    generator = torch.Generator().manual_seed(0)
    window = 1e-2 * torch.randn(rows, steps, clients, generator=generator)
    direction = 1e-2 * torch.randn(rows, clients, generator=generator)
    run = timed_round(network, window, direction, lambda output: output[:, -1])
    measured_on = "1 layer" if rows == ROWS else f"1 layer, {rows} rows"
    return Contender(run, LAYERS * ROWS / rows, measured_on)


def mambapy_network(clients: int, pscan: bool) -> nn.Module:
    from mambapy.mamba import Mamba, MambaConfig

    network: nn.Module = Mamba(
        MambaConfig(d_model=clients, n_layers=BLOCKS, d_state=STATES, pscan=pscan)
    )
    return network


def transformers_network(clients: int) -> nn.Module:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaBlock

    config = MambaConfig(
        hidden_size=clients, state_size=STATES, num_hidden_layers=BLOCKS, residual_in_fp32=False
    )
    blocks = [MambaBlock(config, layer_idx=i) for i in range(BLOCKS)]
    for block in blocks:
        block.mixer.init_mamba_weights()
    return nn.Sequential(*blocks)


def make(name: str, clients: int, steps: int) -> Contender:
    if name == "ours, fused":
        return ours("auto", clients, steps)
    if name == "ours, fallback":
        return ours("off", clients, steps)
    rows = ROWS
    if (clients, steps) != HEADLINE:
        row_bytes = 20 * 4 * steps * 2 * clients * STATES  # about 20 (L, E, M) tensors
        rows = min(ROWS, GRAPH_LIMIT // row_bytes)
    if name == "transformers":
        return public(transformers_network(clients), clients, steps, rows)
    return public(mambapy_network(clients, name == "mambapy, pscan"), clients, steps, rows)


NAMES = ("ours, fused", "ours, fallback", "mambapy, pscan", "mambapy, loop", "transformers")


def compare(clients: int, steps: int, repeats: int) -> dict[str, Any]:
    """One shape, all contenders in turn; seconds are of the whole round."""
    contenders = {name: make(name, clients, steps) for name in NAMES}
    rounds: dict[str, list[Seconds]] = {name: [] for name in NAMES}
    for _ in range(repeats):
        for name, contender in contenders.items():
            rounds[name].append(contender.round())
    figures: dict[str, Any] = {}
    for name, contender in contenders.items():
        fastest = (min(seconds) * contender.times for seconds in zip(*rounds[name], strict=True))
        step, inference, processor = fastest
        figures[name] = {
            "step_seconds": step,
            "inference_seconds": inference,
            "round_seconds": step + inference,
            "processor_seconds": processor,
            "measured_on": contender.measured_on,
        }
    fused = figures["ours, fused"]
    for figure in figures.values():
        figure["ratio"] = figure["round_seconds"] / fused["round_seconds"]
        figure["processor_ratio"] = figure["processor_seconds"] / fused["processor_seconds"]
    return {"clients": clients, "steps": steps, "contenders": figures}


def peak_extra_mib(name: str, clients: int, steps: int) -> float:
    """Measured in a fresh process, on what `make` measures for that name."""
    command = [sys.executable, __file__, "--peak-of", name, str(clients), str(steps)]
    command += ["--threads", str(torch.get_num_threads())]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_own_peak(name: str, clients: int, steps: int) -> float:
    contender = make(name, clients, steps)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
    before = resident_kib("VmHWM")
    contender.round()
    return (resident_kib("VmHWM") - before) / 1024


def print_shape(shape: dict[str, Any]) -> None:
    inputs = LAYERS * ROWS * shape["steps"] * shape["clients"] * 4 / 2**20
    print(f"\nN = {shape['clients']}, L = {shape['steps']} (inputs {inputs:.0f} MiB)")
    for name, figure in shape["contenders"].items():
        print(
            f"  {name:15} step {figure['step_seconds']:8.2f} s"
            f"  inference {figure['inference_seconds']:7.2f} s"
            f"  x {figure['ratio']:6.1f}"
            f"  processor {figure['processor_seconds']:8.2f} s"
            f"  x {figure['processor_ratio']:6.1f}  ({figure['measured_on']})",
            flush=True,
        )


def headline(shape: dict[str, Any]) -> dict[str, float]:
    """The ratios of the headline shape; mambapy counts with the faster of its two scans."""
    contenders = shape["contenders"]
    ratio = {name: figure["ratio"] for name, figure in contenders.items()}
    processor = [contenders[name]["processor_ratio"] for name in NAMES if "mambapy" in name]
    return {
        "ratio_vs_mambapy": min(ratio["mambapy, pscan"], ratio["mambapy, loop"]),
        "processor_ratio_vs_mambapy": min(processor),
        "ratio_vs_mambapy_pscan": ratio["mambapy, pscan"],
        "ratio_vs_mambapy_loop": ratio["mambapy, loop"],
        "ratio_vs_transformers": ratio["transformers"],
        "ratio_vs_fallback": ratio["ours, fallback"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="the headline shape only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--cost", action="store_true", help="the cost by the number of clients")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the growth there (--cost)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak-of", nargs=3, metavar=("NAME", "N", "L"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # what the kernel goes by
    if arguments.peak_of:
        name, clients, steps = arguments.peak_of
        print(measure_own_peak(name, int(clients), int(steps)))
        return

    kernel = fused_mamba()
    if kernel is None:
        sys.exit("The C kernel is not built, so there is nothing to compare.")
    print(f"{arguments.threads} threads, kernel {kernel.variant}, load {os.getloadavg()[0]:.1f}")
    figures: dict[str, Any] = {
        "threads": arguments.threads,
        "kernel": kernel.variant,
        "torch": torch.__version__,
        "load_average_before": os.getloadavg()[0],
    }
    if arguments.cost or not arguments.quick:

        def keep(costs: dict[str, Any]) -> None:
            write(figures | costs, arguments.json)

        figures |= measure_costs(arguments.quick, arguments.repeats, arguments.threads, keep)
        if arguments.plot is not None:
            draw_growth(figures["growth"], arguments.plot)
    if arguments.cost:
        return
    shape = compare(*HEADLINE, arguments.repeats)
    print_shape(shape)
    figures |= headline(shape)
    figures["peak_extra_mib"] = peak_extra_mib("ours, fused", *HEADLINE)
    figures["shapes"] = [shape]
    print(f"\nAbove the inputs, fused: {figures['peak_extra_mib']:.0f} MiB")
    print(f"Faster than mambapy: {figures['ratio_vs_mambapy']:.1f} times")
    if not arguments.quick:
        figures["peak_extra_mib_fallback_one_layer"] = peak_extra_mib("ours, fallback", *HEADLINE)
        figures["peak_extra_mib_mambapy_one_layer"] = peak_extra_mib("mambapy, pscan", *HEADLINE)
        figures["peak_extra_mib_largest"] = peak_extra_mib("ours, fused", CLIENTS[-1], LENGTHS[-1])
        for key in ("fallback_one_layer", "mambapy_one_layer", "largest"):
            print(f"Above the inputs, {key}: {figures[f'peak_extra_mib_{key}']:.0f} MiB")
        for clients, steps in itertools.product(CLIENTS, LENGTHS):
            if (clients, steps) != HEADLINE:
                shape = compare(clients, steps, arguments.repeats)
                print_shape(shape)
                figures["shapes"].append(shape)
                write(figures, arguments.json)
    figures["load_average_after"] = os.getloadavg()[0]
    write(figures, arguments.json)


def write(figures: dict[str, Any], path: Path | None) -> None:
    """What is known so far, so that a long run may be cut short."""
    if path is not None:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(figures, indent=2) + "\n")
        os.replace(temporary, path)


if __name__ == "__main__":
    main()
