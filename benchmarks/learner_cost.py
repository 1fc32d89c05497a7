"""What a server round of pFedSeq costs as the clients become more: benchmarks/learner.py --cost.

Growth is measured on the project's own server in a process for each N: `PFedSeqServer.update` with
everyone's replies of K = 12 layers by D = 6,144 rows and a history of L = 20 rounds behind it, so
all that the server does: checks, history, Eq. (5), Eq. (1), calibrations. The dense form is also
measured with Eq. (5) on a tenth of the rows. Seconds are the fastest of several rounds; the
processor's, summed over threads, feel other programs less. The peak is that of the whole process,
with Python, PyTorch and the replies.

What the dense form's cost is made of is told by processor seconds: one layer and one piece of work
(512 rows) of the fused learner, multiplied up to all of them and divided by the threads. The
states' share is what is saved when M goes from 16 to 1; Adam's part, which does not depend on the
rows, is timed by itself.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from pfedseq.federation import Reply, Setup
from pfedseq.learners import MambaLearner
from pfedseq.learners.calibration import LearnerConfig
from pfedseq.learners.running_sums import RunningSums
from pfedseq.methods.pfedseq import PFedSeqConfig, PFedSeqServer
from pfedseq.params import Params

DEFAULT = LearnerConfig()
LAYERS, ROWS, STATES, BLOCKS = 12, 6144, DEFAULT.state_dim, DEFAULT.num_blocks
LENGTH = DEFAULT.max_sequence_length
GROWTH = ((10, "dense"), (100, "dense"), (10, "pooled"), (100, "pooled"))
GROWTH += ((1000, "pooled"), (3000, "pooled"))
ROW_SHARES = ((10, 1.0), (10, 0.1), (50, 1.0), (50, 0.1))
PIECE = 512
"""Rows that the kernel computes as one piece of work."""
PARTS = ((10, 20), (100, 20), (1000, 5))


def measure_costs(
    quick: bool, repeats: int, threads: int, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Growth over N; without `quick` also shares of rows and parts of the dense form's cost.

    `keep` receives all figures so far after each of them.
    """
    figures: dict[str, Any] = {"growth": [], "row_shares": [], "cost": []}
    print(f"\nA server round, K = {LAYERS}, D = {ROWS:,}, L = {LENGTH}")
    for clients, mixing in GROWTH:
        if quick and clients > 1000:
            continue
        found = _in_own_process(clients, mixing, "auto", 1 if quick else repeats, threads)
        figures["growth"].append(found)
        _print_round(found)
        if clients == 1000:
            figures["seconds_n1000"] = found["seconds"]
            figures["processor_seconds_n1000"] = found["processor_seconds"]
            figures["peak_mib_n1000"] = found["peak_mib"]
        keep(figures)
    if not quick:
        print("\nDense, trained on a share of the rows")
        for clients, share in ROW_SHARES:
            found = _in_own_process(clients, "dense", share, repeats, threads)
            figures["row_shares"].append(found)
            _print_round(found)
            keep(figures)
        print("\nWhat the dense form's cost is made of")
        for clients, steps in PARTS:
            figures["cost"].append(_parts(clients, steps, repeats, threads))
            _print_parts(figures["cost"][-1])
            keep(figures)
    return figures


def _print_round(found: dict[str, Any]) -> None:
    print(
        f"  N = {found['clients']:5}, {found['mixing']:6}, {found['rows']:5,} rows:"
        f" {found['seconds']:7.2f} s, processor {found['processor_seconds']:7.2f} s,"
        f" peak {found['peak_mib']:6.0f} MiB",
        flush=True,
    )


def draw_growth(growth: list[dict[str, Any]], path: Path) -> None:
    """Seconds and memory over N, both axes logarithmic, with a line that grows as N."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, key, label in (
        (left, "processor_seconds", "processor seconds a round"),
        (right, "peak_mib", "peak memory of the server, MiB"),
    ):
        for mixing in ("dense", "pooled"):
            points = [(one["clients"], one[key]) for one in growth if one["mixing"] == mixing]
            axes.plot(*zip(*points, strict=True), marker="o", label=mixing)
        last = next(one for one in reversed(growth) if one["mixing"] == "pooled")
        ends = (10, last["clients"])
        axes.plot(
            ends, [last[key] * n / ends[1] for n in ends], ":", color="grey", label="grows as N"
        )
        axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=label)
        axes.grid(alpha=0.3)
    left.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _in_own_process(
    clients: int, mixing: str, row_share: float | Literal["auto"], repeats: int, threads: int
) -> dict[str, Any]:
    command = [sys.executable, __file__, str(clients), mixing, json.dumps(row_share)]
    command += [str(repeats), str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_rounds(
    clients: int, mixing: str, row_share: float | Literal["auto"], repeats: int
) -> dict[str, Any]:
    """Rounds of a server whose history is full, in this process."""
    options = {"mixing": mixing, "row_share": row_share, "warmup_rounds": 0}
    config = PFedSeqConfig.model_validate(options)
    initial = Params(torch.zeros(LAYERS, ROWS), torch.zeros(10))
    server = PFedSeqServer(config, Setup(initial, (1,) * clients, 100, seed=0))

    def deltas(t: int) -> torch.Tensor:
        rng = torch.Generator().manual_seed(t)
        return 1e-3 * torch.randn(clients, LAYERS, ROWS, generator=rng)

    full = 1 if isinstance(server.history, RunningSums) else LENGTH - 1
    for t in range(1, full + 1):  # running sums cost the same whatever they hold
        server.history.append(deltas(t))
    taken = []
    for t in range(full + 1, full + 2 + repeats):  # the first makes Adam's memory
        replies = {i: Reply({"delta": delta}) for i, delta in enumerate(deltas(t))}
        begin, processor = time.perf_counter(), time.process_time()
        server.update(t, replies)
        taken.append((time.perf_counter() - begin, time.process_time() - processor))
    seconds, processor = (min(some) for some in zip(*taken[1:], strict=True))
    return {
        "clients": clients,
        "mixing": mixing,
        "seconds": seconds,
        "processor_seconds": processor,
        "peak_mib": resident_kib("VmHWM") / 1024,
        "million_weights": sum(p.numel() for p in server.learner.parameters()) / 1e6,
        "rows": config.num_rows(ROWS, clients),
    }


def resident_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {field}")


def _parts(clients: int, steps: int, repeats: int, threads: int) -> dict[str, float]:
    """What a round of the dense fused learner is made of, in seconds on so many threads."""

    def fastest(states: int) -> tuple[float, float, int]:
        """Of the network on a piece of one layer, and of Adam; and the weights of one layer."""
        rng = torch.Generator().manual_seed(0)
        # As pFedSeq makes it, but for projections that start at zero: zeros might be cheaper.
        learner = MambaLearner(1, clients, states, BLOCKS, signed=DEFAULT.signed, generator=rng)
        window = 1e-2 * torch.randn(steps, clients, 1, PIECE, generator=rng)
        direction = 1e-2 * torch.randn(clients, 1, PIECE, generator=rng).permute(1, 2, 0)
        optimizer, taken = torch.optim.Adam(learner.parameters(), lr=1e-3), []
        for _ in range(repeats + 1):  # the first makes Adam's memory
            begin = time.process_time()
            optimizer.zero_grad()
            torch.autograd.backward(learner(window.permute(2, 3, 0, 1)), -direction)
            with torch.no_grad():
                learner(window.permute(2, 3, 0, 1))
            middle = time.process_time()
            optimizer.step()
            taken.append((middle - begin, time.process_time() - middle))
        network, adam = (min(seconds) for seconds in zip(*taken[1:], strict=True))
        return network, adam, sum(p.numel() for p in learner.parameters())

    network, adam, weights = fastest(STATES)
    with_one_state, _, _ = fastest(1)
    scale = LAYERS * ROWS / PIECE / threads
    return {
        "clients": clients,
        "steps": steps,
        "round_seconds": network * scale + adam * LAYERS / threads,
        "states_share": 1 - with_one_state / network,
        "adam_seconds": adam * LAYERS / threads,
        "million_weights": weights * LAYERS / 1e6,
        "window_gib": LAYERS * ROWS * steps * clients * 4 / 2**30,
    }


def _print_parts(part: dict[str, float]) -> None:
    print(
        f"  N = {part['clients']:4}, L = {part['steps']:2}: {part['round_seconds']:8.1f} s a round,"
        f" states {part['states_share']:4.0%}, Adam {part['adam_seconds']:6.2f} s,"
        f" {part['million_weights']:7.2f} M weights, window {part['window_gib']:5.2f} GiB",
        flush=True,
    )


if __name__ == "__main__":  # one N in a process of its own
    number, form, share, rounds, cores = sys.argv[1:]
    torch.set_num_threads(1)  # as an engine has it
    os.environ["OMP_NUM_THREADS"] = cores  # what the learner goes by
    print(json.dumps(measure_rounds(int(number), form, json.loads(share), int(rounds))))
