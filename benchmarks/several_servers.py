"""Messages between a front process and learner processes that hold a group of layers each.

    python benchmarks/several_servers.py                    1,000 replies to four processes
    python benchmarks/several_servers.py --quick            100 replies

What docs/howto/deploying.md designs under "Several servers", measured without a learner: the front
cuts the replies of a round (present clients, K = 12 layers, D = 6,144 rows) by layers, sends each
process its part over torch.distributed (gloo, TCP on this machine) and receives as many adapters
back. Printed are the bytes of each message and the median seconds of a round's steps.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from learner_cost import LAYERS, ROWS
from torch.multiprocessing.spawn import spawn

FRONT = 0


def take_part(rank: int, processes: int, place: str, present: int, rounds: int) -> None:
    """Play the rounds as the front (rank 0) or as one of the learner processes."""
    torch.set_num_threads(1)
    meeting = f"file://{place}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes + 1)
    part = torch.empty(present, LAYERS // processes, ROWS)
    if rank == FRONT:
        figures = as_front(part, processes, rounds)
        (Path(place) / "figures.json").write_text(json.dumps(figures))
    else:
        for _ in range(rounds):
            dist.recv(part, FRONT)
            dist.send(part, FRONT)
    dist.destroy_process_group()


def as_front(part: torch.Tensor, processes: int, rounds: int) -> dict[str, Any]:
    """Cut, send, receive and join; the adapters that return are the updates that were sent."""
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(len(part), LAYERS, ROWS, generator=generator)
    adapters = torch.empty_like(deltas)
    layers = deltas.split(LAYERS // processes, dim=1), adapters.split(LAYERS // processes, dim=1)
    seconds: dict[str, list[float]] = {"cut": [], "send": [], "receive": []}
    for _ in range(rounds):
        start = time.perf_counter()
        parts = [some.contiguous() for some in layers[0]]
        cut = time.perf_counter()
        for work in [dist.isend(some, rank + 1) for rank, some in enumerate(parts)]:
            work.wait()
        sent = time.perf_counter()
        for rank, some in enumerate(layers[1]):
            dist.recv(part, rank + 1)
            some.copy_(part)
        seconds["cut"].append(cut - start)
        seconds["send"].append(sent - cut)
        seconds["receive"].append(time.perf_counter() - sent)
    if not torch.equal(adapters, deltas):
        raise RuntimeError("what came back is not what was sent")
    return {
        "present": len(part),
        "processes": processes,
        "bytes_each": part.numel() * part.element_size(),
        "bytes_in_all": deltas.numel() * deltas.element_size(),
        **{f"{name}_seconds": median(some) for name, some in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="100 replies")
    parser.add_argument("--present", type=int, default=1000, help="replies in a round")
    parser.add_argument("--processes", default="2,4,12", help="divisors of 12, e.g. 4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    present, figures = 100 if arguments.quick else arguments.present, []
    for processes in map(int, arguments.processes.split(",")):
        with TemporaryDirectory() as place:
            given = (processes, place, present, arguments.rounds)
            spawn(take_part, given, nprocs=processes + 1)
            found = json.loads((Path(place) / "figures.json").read_text())
        figures.append(found)
        print(
            f"  {present:,} replies, {processes} processes: {found['bytes_each']:,} bytes each,"
            f" {found['bytes_in_all']:,} in all; cut {found['cut_seconds']:.2f} s,"
            f" send {found['send_seconds']:.2f} s, receive {found['receive_seconds']:.2f} s",
            flush=True,
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
