"""Seconds and memory of a round on each engine: in process, over a wire, on Flower.

    python benchmarks/engines.py --quick               2 sites, 2 rounds
    python benchmarks/engines.py --json figures.json   10 sites, 4 rounds
    python benchmarks/engines.py --scale 100,1000      a round of so many toy sites

FedAvg with the payloads of ViT-Ti (K = 12, D = 1,536, random weights; or of `--backbone`) on a few
small images, so that what an engine adds shows. Engines run one after the other in processes of
their own. Flower's simulation (where Ray is installed) runs the sites as Ray actors on all cores; a
deployment is what `pfedseq flower up` starts: a SuperLink and a process for each site, all on this
machine. The memory of both is that of all their processes.

`--scale` plays one round of pFedSeq with a full history over the Flower engine: every message and
every reply is a Flower message, made into bytes and back, answered by a toy client with a folder of
its own. Sites answer one after the other in this process, and what they take is told apart from
what the messages and the server take.
"""

import argparse
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
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
backbone = "{backbone}"

[engine]
kind = "{kind}"
clients_per_pass = 1
device = "cpu"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sites", type=int, help="default: 10, or 2 with --quick")
    parser.add_argument("--rounds", type=int, help="default: 4, or 2 with --quick")
    parser.add_argument("--backbone", default="random:vit-tiny", help="for example demo")
    parser.add_argument("--scale", metavar="N,N", help="only this: rounds of so many toy sites")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(scale(given.one)))
        return
    if given.scale:
        figures = scales([int(count) for count in given.scale.split(",")])
    else:
        sites, rounds = given.sites or (2 if given.quick else 10), given.rounds
        figures = engines(sites, rounds or (2 if given.quick else 4), given.backbone)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


def engines(sites: int, rounds: int, backbone: str) -> dict[str, Any]:
    print(f"FedAvg, {sites} sites, {backbone}; the median of {rounds - 1} rounds after the first")
    figures: dict[str, Any] = {"sites": sites, "rounds": rounds, "backbone": backbone}

    def config(kind: str) -> str:
        return CONFIG.format(kind=kind, sites=sites, rounds=rounds, backbone=backbone)

    with tempfile.TemporaryDirectory() as folder:
        for kind in ("local", "wire"):
            figures[kind] = in_process(Path(folder), kind, config(kind))
            show(kind, figures)
        if find_spec("ray"):
            figures["simulation"] = simulation(Path(folder) / "simulation", sites, config("local"))
            show("simulation", figures)
        else:
            print("  simulation   left out: it needs pip install 'flwr[simulation]'")
        figures["deployment"] = deployment(Path(folder) / "deployment", sites, config("local"))
        show("deployment", figures)
        own, alone = figures["deployment"], figures["local"]["seconds"]
        overhead = own["seconds"] - alone
        print(f"  Flower adds {overhead:.2f} s a round; a site takes {own['site_mib']:.0f} MiB")
    return figures


def show(name: str, figures: dict[str, Any]) -> None:
    own, first = figures[name], figures["local"]
    ratio = own["seconds"] / first["seconds"]
    print(f"  {name:12} {own['seconds']:8.2f} s a round ({ratio:6.1f} x)  {own['mib']:7.0f} MiB")


def round_seconds(out: Path) -> float:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return median(line["round_seconds"] for line in lines[1:])


def in_process(folder: Path, kind: str, text: str) -> dict[str, float]:
    config, out = folder / f"{kind}.toml", folder / kind
    config.write_text(text)
    code = (
        "import resource, sys, pfedseq; pfedseq.run(pfedseq.load_config(sys.argv[1]), sys.argv[2]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, config, out], check=True, capture_output=True, text=True
    )
    return {"seconds": round_seconds(out), "mib": int(done.stdout.split()[-1]) / 1024}


def deployment(folder: Path, sites: int, text: str) -> dict[str, float]:
    from pfedseq.deployment.loopback import Loopback

    folder.mkdir()
    config, out = folder / "run.toml", folder / "out"
    config.write_text(text)
    federation = Loopback(folder / "federation")
    for _ in federation.start(sites, secure=False):
        pass
    try:
        command = [sys.executable, "-m", "pfedseq", "flower", "run", str(config)]
        command += ["--out", str(out), "--folder", str(federation.folder)]
        return watched(command, out, folder)
    finally:
        federation.stop()


def simulation(folder: Path, sites: int, text: str) -> dict[str, float]:
    """As docs/howto/deploying.md has it: a SuperLink of its own, whose sites are Ray actors."""
    from pfedseq.deployment.loopback import (
        CONNECTION,
        HOST,
        Loopback,
        Started,
        copy_app,
        free_ports,
        stop,
    )

    folder.mkdir()
    config, out = folder / "run.toml", folder / "out"
    config.write_text(text)
    here = Loopback(folder)
    copy_app(here.app)
    (port,) = free_ports(1)
    here.write_connection(port, None)
    environment = here.environment() | {"RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "log").open("wb") as log:
        link = subprocess.Popen(
            ["flower-superlink", "--simulation", "--insecure", "--host", HOST, "--port", str(port)],
            env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    begun = psutil.Process(link.pid).create_time()
    try:
        wait_for(HOST, port)
        values = {"config": config, "out": out, "sites": folder / "sites"}
        text = " ".join(f'{key}="{value}"' for key, value in values.items())
        here.flwr(
            "run", str(here.app), CONNECTION, "--run-config", text,
            "--federation-config", f"num-supernodes={sites}",
        )  # fmt: skip
        while not (out / "config.toml").exists():
            time.sleep(0.5)
        return watched([sys.executable, "-m", "pfedseq", "flower", "watch", str(out)], out, folder)
    finally:
        stop([Started("superlink", link.pid, begun, "log", port, [])])
        link.wait()


def wait_for(host: str, port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"nobody listens on {host}:{port}")


def watched(command: list[str], out: Path, folder: Path) -> dict[str, float]:
    """What a federation's run takes whose processes have their FLWR_HOME in `folder`."""
    watch = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most, largest = 0.0, 0.0
    try:
        while watch.poll() is None:
            together, site = memory(folder)
            most, largest = max(most, together), max(largest, site)
            time.sleep(2)
    finally:
        watch.kill()
    if watch.returncode:
        raise SystemExit(f"the run failed: {(out / 'federation.json').read_text()}")
    return {"seconds": round_seconds(out), "mib": most, "site_mib": largest}


def memory(folder: Path) -> tuple[float, float]:
    """Proportional memory of all processes that work in the federation's folder, and the memory
    that the largest site shares with no other process."""
    total, largest = 0, 0
    for process in psutil.process_iter():
        try:
            home = process.environ().get("FLWR_HOME", "")
            if home.startswith(str(folder)):
                taken = process.memory_full_info()
                total += taken.pss
                if "site" in process.cmdline():
                    largest = max(largest, taken.uss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total / 2**20, largest / 2**20


def scales(counts: list[int]) -> dict[str, Any]:
    print("pFedSeq on Flower's messages, toy sites with K = 4, D = 64, a history of L = 5 rounds")
    print("                seconds a round            |  memory  |  megabytes")
    print("      N     all  messages  learner  sites  |  server  |  payloads  history  learner")
    figures = {}
    for sites in counts:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(sites)],
            check=True,
            capture_output=True,
            text=True,
        )
        figures[str(sites)] = one = json.loads(done.stdout)
        print(
            f"  {sites:5} {one['seconds']:7.2f}  {one['messages']:8.2f}  {one['learner']:7.2f}  "
            f"{one['sites']:5.2f}  | {one['mib']:4.0f} MiB |  "
            f"{one['payloads']:8.2f}  {one['history']:7.2f}  {one['networks']:7.2f}"
        )
    return figures


def scale(sites: int) -> dict[str, float]:
    """One round on a full history; the learner's share is what `Server.update` takes."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.deployment.grid import InProcessGrid, connect, federation
    from tests.toys import make_setup, quadratic_federation, random_centers

    from pfedseq.methods import find_method
    from pfedseq.runs.checkpoint import server_state

    spent = {"sites": 0.0, "learner": 0.0}

    def timed(part: str, work: Any) -> Any:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                spent[part] += time.perf_counter() - start

        return run

    torch.set_num_threads(1)
    method = find_method("pfedseq")
    config = method.config(lr=0.1, warmup_rounds=1, max_sequence_length=5)
    centers = random_centers(sites, num_layers=4, adapter_dim=64, head_dim=10)
    sizes = (10,) * sites
    server = method.server(config, make_setup(centers, sizes, 7))
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        server.history.append(0.01 * torch.randn(sites, 4, 64, generator=rng))
    with tempfile.TemporaryDirectory() as folder:
        toys = quadratic_federation(centers, sizes)
        names = [str(i) for i in range(sites)]
        all_sites = federation(Path(folder), method, config, toys, names)
        clients = connect(InProcessGrid(all_sites), sites, seconds=3600.0)
        for site in all_sites:
            site.reply = timed("sites", site.reply)
        server.update = timed("learner", server.update)
        start = time.perf_counter()
        server.run_round(7, clients)
        seconds = time.perf_counter() - start
    size = {"history": 0, "networks": 0}
    for name, tensor in server_state(server).items():
        part = {"history": "history", "learner": "networks", "optimizer": "networks"}
        if (kind := part.get(name.split("/")[0])) is not None:
            size[kind] += tensor.numel() * tensor.element_size()
    return {
        "seconds": seconds,
        "messages": seconds - sum(spent.values()),
        **spent,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "payloads": 2 * sites * 4 * 64 * 4 / 1e6,
        **{kind: count / 1e6 for kind, count in size.items()},
    }


if __name__ == "__main__":
    main()
