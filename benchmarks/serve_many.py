"""The service with many clients: seconds to start, p50 and p99 of a request, and memory.

    python benchmarks/serve.py --many 100,1000,10000

Each client has a folder of its own. `pfedseq serve` runs in a process of its own, as a user starts
it, with as many models in memory as `--in-memory` says; this process sends requests over a few
connections. Clients are drawn alike ("uniform", the worst case for what is kept in memory) or as
1/rank ("zipf", where a few ask for most).
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pfedseq.workloads.personal import PersonalModel


def write_models(models: list[PersonalModel], clients: int, folder: Path) -> None:
    """A folder for each client; a few models are written, the others are copies by name."""
    for number, one in enumerate(models):
        replace(one, about={"client": f"c{number}", "number": number, "num_train": 10}).save(
            folder / f"c{number:05d}"
        )
    for number in range(len(models), clients):
        like, own = folder / f"c{number % len(models):05d}", folder / f"c{number:05d}"
        shutil.copytree(like, own)
        about = own / "personal_model.json"
        text = about.read_text(encoding="utf-8")
        text = text.replace(f'"c{number % len(models)}"', f'"c{number}"')
        text = text.replace(f'"number": {number % len(models)},', f'"number": {number},')
        about.write_text(text, encoding="utf-8")


def send(port: int, bodies: list[bytes], clients: list[int], connections: int) -> list[float]:
    """Seconds of each request, in the order of their ends; refuses any answer but 200."""

    async def worker(numbers: Any, took: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number, client in numbers:
            body = bodies[number % len(bodies)]
            head = (
                f"POST /predict?client=c{client}&top=1 HTTP/1.1\r\nHost: x\r\n"
                f"Content-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            start = time.perf_counter()
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(answer.partition("content-length:")[2].split()[0]))
            took.append(time.perf_counter() - start)
            if " 200 " not in answer.splitlines()[0]:
                raise RuntimeError(answer)
        writer.close()
        await writer.wait_closed()

    async def everyone() -> list[float]:
        numbers, took = iter(enumerate(clients)), []
        await asyncio.gather(*(worker(numbers, took) for _ in range(connections)))
        return took

    return asyncio.run(everyone())


def memory(pid: int, field: str) -> float:
    """MiB of a process, as the kernel counts them: VmRSS or VmHWM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"the kernel says nothing of {field}")


def measure_many(
    models: list[PersonalModel], bodies: list[bytes], clients: int, in_memory: int, requests: int
) -> dict[str, Any]:
    """Both distributions of clients, one after the other, on one service."""
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, clients + 1)
    drawn = {
        "uniform": rng.integers(0, clients, requests),
        "zipf": rng.choice(clients, requests, p=shares / shares.sum()),
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "models"
        write_models(models, clients, folder)
        start = time.perf_counter()
        options = ["--port", "0", "--models-in-memory", str(in_memory), "--no-log-requests"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pfedseq", "serve", str(folder), *options],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            figures: dict[str, Any] = {
                "clients": clients,
                "in_memory": in_memory,
                "seconds_to_start": round(time.perf_counter() - start, 2),
                "mib_at_start": memory(process.pid, "VmRSS"),
            }
            port = int(line.split()[3].rstrip("/").rpartition(":")[2])
            for name, numbers in drawn.items():
                for connections in (1, 16):
                    some = numbers[: requests // 4] if connections == 1 else numbers
                    took = np.array(send(port, bodies, some.tolist(), connections))
                    figures[f"{name}, {connections} at a time"] = {
                        "p50_ms": round(1000 * float(np.quantile(took, 0.5)), 1),
                        "p99_ms": round(1000 * float(np.quantile(took, 0.99)), 1),
                    }
            figures["mib_at_end"] = memory(process.pid, "VmRSS")
            figures["mib_at_most"] = memory(process.pid, "VmHWM")
        finally:
            process.terminate()
            process.wait(60)
    return figures
