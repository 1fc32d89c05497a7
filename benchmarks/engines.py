"""Seconds and memory of a round on each engine: in process, over a wire, on Flower.

    python benchmarks/engines.py --quick               2 sites, 2 rounds
    python benchmarks/engines.py --json figures.json   10 sites, 4 rounds
    python benchmarks/engines.py --scale               messages of 100 and 1,000 toy sites

FedAvg with the payloads of ViT-Ti (K = 12, D = 1,536, random weights) on a few small images, so
that what an engine adds shows. Engines run one after the other in processes of their own. A Flower
deployment is what `pfedseq flower up` starts: a SuperLink and one SuperNode for each site, all on
this machine; its memory is that of all its processes, a warm worker at each site among them.

`--scale` runs pFedSeq's round loop over real Flower records, packed and unpacked, with toy clients
in this process: what remains is the server, its learner, and the messages.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

CONFIG = """
[run]
methods = ["fedavg"]
rounds = {rounds}
checkpoint_every = {rounds}

[data]
name = "digits"
image_size = 32
num_clients = {sites}
max_images_per_client = 16

[model]
backbone = "random:vit-tiny"

[engine]
kind = "{kind}"
cohort = 1
device = "cpu"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(scale(given.one)))
        return
    figures = scales() if given.scale else engines(*((2, 2) if given.quick else (10, 4)))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


def engines(sites: int, rounds: int) -> dict[str, Any]:
    print(
        f"FedAvg, {sites} sites, ViT-Ti payloads; the median of {rounds - 1} rounds after the first"
    )
    figures: dict[str, Any] = {"sites": sites, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("local", "wire"):
            figures[kind] = in_process(Path(folder), kind, sites, rounds)
            show(kind, figures)
        figures["deployment"] = deployment(Path(folder), sites, rounds)
        show("deployment", figures)
    return figures


def show(name: str, figures: dict[str, Any]) -> None:
    own, first = figures[name], figures["local"]
    ratio = own["seconds"] / first["seconds"]
    print(f"  {name:12} {own['seconds']:8.2f} s a round ({ratio:6.1f} x)  {own['mib']:7.0f} MiB")


def round_seconds(out: Path) -> float:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return median(line["round_seconds"] for line in lines[1:])


def in_process(folder: Path, kind: str, sites: int, rounds: int) -> dict[str, float]:
    config, out = folder / f"{kind}.toml", folder / kind
    config.write_text(CONFIG.format(kind=kind, sites=sites, rounds=rounds))
    code = (
        "import resource, sys, pfedseq; pfedseq.run(pfedseq.load_config(sys.argv[1]), sys.argv[2]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, config, out], check=True, capture_output=True, text=True
    )
    return {"seconds": round_seconds(out), "mib": int(done.stdout.split()[-1]) / 1024}


def deployment(folder: Path, sites: int, rounds: int) -> dict[str, float]:
    from pfedseq.cli.loopback import Loopback

    config, out = folder / "deployment.toml", folder / "out"
    config.write_text(CONFIG.format(kind="local", sites=sites, rounds=rounds))
    federation = Loopback(folder / "federation")
    for _ in federation.start(sites, secure=False):
        pass
    try:
        command = [sys.executable, "-m", "pfedseq", "flower", "run", config, "--out", out]
        watch = subprocess.Popen(
            [*command, "--folder", federation.folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        most = 0.0
        while watch.poll() is None:
            most = max(most, memory(federation.folder))
            time.sleep(2)
        if watch.returncode:
            raise SystemExit(f"the deployment failed: see {federation.folder}")
        return {"seconds": round_seconds(out), "mib": most}
    finally:
        federation.stop()


def memory(folder: Path) -> float:
    """Proportional memory of all processes that work in the federation's folder."""
    total = 0
    for process in psutil.process_iter():
        try:
            home = process.environ().get("FLWR_HOME", "")
            if home.startswith(str(folder)):
                total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total / 2**20


def scales() -> dict[str, Any]:
    print(
        "pFedSeq over Flower's records, toy sites with K = 4, D = 64, L = 5, a round after warm-up"
    )
    figures = {}
    for sites in (100, 1000):
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(sites)],
            check=True,
            capture_output=True,
            text=True,
        )
        figures[str(sites)] = one = json.loads(done.stdout)
        print(
            f"  N = {sites:5}: {one['seconds']:7.2f} s a round, of which messages "
            f"{one['messages']:6.2f} s; {one['mib']:6.0f} MiB at the server"
        )
    return figures


def scale(sites: int) -> dict[str, float]:
    """One round, once the history is full; clients do next to nothing."""
    import torch

    from pfedseq.engines.flower.envelope import Envelope
    from pfedseq.engines.flower.records import Card, Request, read_reply
    from pfedseq.engines.wire import decode
    from pfedseq.federation import Reply, Setup
    from pfedseq.methods import find_method
    from pfedseq.params import Params

    class Messages:
        """Every call becomes Flower's records and back, once down and once up."""

        seconds = 0.0
        ids = range(sites)

        def participants(self, t: int) -> range:
            return self.ids

        def call(self, step: str, t: int, down: Any) -> dict[int, Reply]:
            start, replies = time.perf_counter(), {}
            for i, tensors in down.items():
                request = Request("r", "pfedseq", step, t, 0, i, 0, "", ())
                records = request.envelope(tensors).to_records()
                decode(Envelope.of_records(records).payload)
                update = Reply({"delta": 0.01 * torch.randn(4, 64)})
                reply = Card("s", "f", "b", "v").envelope(update).to_records()
                replies[i], _ = read_reply(Envelope.of_records(reply), None)
            self.seconds += time.perf_counter() - start
            return replies

    torch.set_num_threads(1)
    method = find_method("pfedseq")
    config = method.config(warmup_rounds=1, max_sequence_length=5)
    start = Params(torch.zeros(4, 64), torch.zeros(10))
    server = method.server(config, Setup(start, (10,) * sites, 7, 0, 10))
    messages = Messages()
    for t in range(1, 7):
        server.run_round(t, messages)
    messages.seconds, begun = 0.0, time.perf_counter()
    server.run_round(7, messages)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "messages": messages.seconds, "mib": peak}


if __name__ == "__main__":
    main()
