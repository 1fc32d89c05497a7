"""Requests per second of the service: clients together in one pass, and adapters swapped.

    python benchmarks/serve.py --quick               the demo's ViT, 8 clients
    python benchmarks/serve.py --json figures.json   also ViT-Ti at 96 and at 224 pixels
    python benchmarks/serve.py --many 1000,10000     latency and memory with so many clients

"Swapped" is the common way to serve many adapters: PEFT's own model with all of them loaded, and
`set_adapter` before each request's forward pass. "One by one" are this package's models, an image
at a time. "Together" is `pfedseq serve`: what waits shares a pass, each row under its own adapter.
All three stand behind the same HTTP service; another process sends the same requests to each, over
so many connections at once, and they take turns. Each figure is the best turn. "In process" is the
same without HTTP and without decoding.
"""

import argparse
import asyncio
import io
import json
import logging
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from numpy.typing import NDArray
from peft import PeftModel
from PIL import Image
from serve_many import measure_many
from torch import Tensor
from transformers import ViTForImageClassification
from transformers.utils import logging as transformers_logging

from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.params import Params
from pfedseq.serving.generations import Served
from pfedseq.serving.service import Limits, make_service
from pfedseq.serving.together import ModelsTogether
from pfedseq.workloads.images.published import write_backbone
from pfedseq.workloads.images.reader import ImageReader
from pfedseq.workloads.personal import PersonalModel

CLASSES = tuple(f"class {number}" for number in range(10))
Images = Sequence[NDArray[np.uint8]]


def make_models(backbone_name: str, size: int, clients: int) -> list[PersonalModel]:
    """Clients with adapters that differ."""
    backbone = load_backbone(backbone_name, size)
    model = AdaptedModel(backbone, AdapterConfig(alpha=16), len(CLASSES), seed=0)
    rng = torch.Generator().manual_seed(0)
    return [
        PersonalModel(
            model,
            Params(
                model.initial.adapter
                + 0.05 * torch.randn(model.initial.adapter.shape, generator=rng),
                model.initial.head + 0.05 * torch.randn(model.initial.head.shape, generator=rng),
            ),
            CLASSES,
            ImageReader(backbone),
        )
        for _ in range(clients)
    ]


class Swapped(ModelsTogether):
    """PEFT's model with every client's adapter loaded; each request sets its own."""

    def __init__(self, models: Sequence[PersonalModel], folder: Path) -> None:
        super().__init__(models)
        write_backbone(models[0].reader.encoder, folder / "backbone")
        for number, one in enumerate(models):
            one.save(folder / str(number))
        base = ViTForImageClassification.from_pretrained(
            folder / "backbone", num_labels=len(CLASSES)
        )
        self.peft = PeftModel.from_pretrained(base, folder / "0", adapter_name="0").eval()
        for number in range(1, len(models)):
            self.peft.load_adapter(folder / str(number), adapter_name=str(number))
        self.peft.eval()

    @torch.no_grad()
    def probabilities(self, rows: Sequence[int], images: Images) -> Tensor:
        found = []
        for row, image in zip(rows, images, strict=True):
            self.peft.set_adapter(str(row))
            found.append(self.peft(pixel_values=self.models[0].inputs([image])).logits)
        return torch.cat(found).softmax(1)


@contextmanager
def running(together: ModelsTogether, batch: int) -> Iterator[int]:
    """The service on a free port."""
    names = tuple(str(number) for number in range(len(together.models)))
    app = make_service(Served(together, names, None, ""), Limits(batch=batch, seconds=600))
    config = uvicorn.Config(app, port=0, log_level="warning", ws="none", access_log=False)
    server, bound = uvicorn.Server(config), config.bind_socket()
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def send(port: int, bodies: list[bytes], requests: int, connections: int, clients: int) -> float:
    """Requests answered per second; refuses any answer but 200."""

    async def worker(numbers: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            body = bodies[number % len(bodies)]
            head = (
                f"POST /predict?client={number % clients}&top=1 HTTP/1.1\r\nHost: x\r\n"
                f"Content-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(answer.partition("content-length:")[2].split()[0])
            content = await reader.readexactly(length)
            if " 200 " not in answer.splitlines()[0]:
                raise RuntimeError(f"{answer}{content!r}")
        writer.close()
        await writer.wait_closed()

    async def everyone() -> None:
        numbers = iter(range(requests))
        await asyncio.gather(*(worker(numbers) for _ in range(connections)))

    start = time.perf_counter()
    asyncio.run(everyone())
    return requests / (time.perf_counter() - start)


class Best:
    """The best turn of each way: by the clock, and by processor time, which others' work spares."""

    def __init__(self, ways: Sequence[str]) -> None:
        self.per_second = dict.fromkeys(ways, 0.0)
        self.cpu_ms = dict.fromkeys(ways, float("inf"))

    def note(self, way: str, rate: float, cpu_seconds: float, requests: int) -> None:
        self.per_second[way] = max(self.per_second[way], rate)
        self.cpu_ms[way] = min(self.cpu_ms[way], 1000 * cpu_seconds / requests)

    def figures(self) -> dict[str, Any]:
        rate, cost = self.per_second, self.cpu_ms
        return {
            "per_second": rate,
            "cpu_ms_each": cost,
            "together_over_swapped": rate["together"] / rate["swapped"],
            "together_over_one_by_one": rate["together"] / rate["one by one"],
            "together_over_swapped_by_cpu": cost["swapped"] / cost["together"],
        }


def in_process(together: ModelsTogether, images: Images, requests: int, batch: int) -> float:
    """Images per second without HTTP."""
    clients = len(together.models)
    start = time.perf_counter()
    for first in range(0, requests, batch):
        numbers = range(first, min(first + batch, requests))
        together.probabilities(
            [number % clients for number in numbers],
            [images[number % len(images)] for number in numbers],
        )
    return requests / (time.perf_counter() - start)


def make_bodies(size: int) -> list[bytes]:
    """Images as they are sent."""
    shades = np.random.default_rng(0).integers(0, 256, (16, size, size, 3), dtype=np.uint8)
    bodies = []
    for one in shades:
        file = io.BytesIO()
        Image.fromarray(one).save(file, "JPEG")
        bodies.append(file.getvalue())
    return bodies


def measure(
    backbone: str, size: int, clients: int, requests: int, connections: int, turns: int
) -> dict[str, Any]:
    models, bodies = make_models(backbone, size, clients), make_bodies(size)
    images = [models[0].read(("x", body)) for body in bodies]
    with tempfile.TemporaryDirectory() as folder:
        swapped, together = Swapped(models, Path(folder)), ModelsTogether(models)
    rows = [number % clients for number in range(len(images))]
    torch.testing.assert_close(
        swapped.probabilities(rows, images),
        together.probabilities(rows, images),
        rtol=1e-3,
        atol=1e-4,
    )
    ways = {"swapped": (swapped, 1), "one by one": (together, 1), "together": (together, 64)}
    http, alone = Best(list(ways)), Best(list(ways))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as sender:
        for _ in range(turns):
            for name, (answering, batch) in ways.items():
                cpu = time.process_time()
                rate = in_process(answering, images, requests, batch)
                alone.note(name, rate, time.process_time() - cpu, requests)
                with running(answering, batch) as port:
                    cpu = time.process_time()
                    asked = (port, bodies, requests, connections, clients)
                    rate = sender.submit(send, *asked).result()
                    http.note(name, rate, time.process_time() - cpu, requests)
    return {
        "backbone": backbone,
        "image_size": size,
        "clients": clients,
        "requests": requests,
        "connections": connections,
        "http": http.figures(),
        "in_process": alone.figures(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="the demo's ViT alone")
    parser.add_argument("--many", metavar="N,…", help="numbers of clients, and nothing else")
    parser.add_argument("--in-memory", type=int, default=1000, help="models that --many keeps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    figures: dict[str, Any] = {
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "load_average_before": os.getloadavg()[0],
    }
    if arguments.many:
        models, bodies = make_models("demo", 32, 8), make_bodies(32)
        for clients in map(int, arguments.many.split(",")):
            found = measure_many(models, bodies, clients, arguments.in_memory, 2000)
            figures[f"{clients} clients"] = found
            print(json.dumps(found, indent=2), flush=True)
        write_figures(figures, arguments.json)
        return
    cases = {"demo_32": ("demo", 32, 8, 300 if arguments.quick else 600, 64, 2)}
    if not arguments.quick:
        cases["vit_tiny_96"] = ("random:vit-tiny", 96, 8, 300, 64, 2)
        cases["vit_tiny_224"] = ("random:vit-tiny", 224, 8, 150, 64, 2)
    for name, case in cases.items():
        figures[name] = measure(*case)
        print(f"{name}: {json.dumps(figures[name], indent=2)}", flush=True)
    write_figures(figures, arguments.json)


def write_figures(figures: dict[str, Any], file: Path | None) -> None:
    figures["load_average_after"] = os.getloadavg()[0]
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
