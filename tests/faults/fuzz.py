"""Broken and hostile files for every parser: each must be read, or refused in one sentence.

A target starts from sound bytes, breaks them, and hands them to the reader. Anything but a result
or an `InputError` counts as a fault, and so does taking longer than ten seconds or more than two
gigabytes beyond what the process had:

    python -m tests.faults.fuzz --inputs 100000
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import pickle
import random
import resource
import signal
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import constants
from PIL import Image

from pfedseq.config import load_config
from pfedseq.data.decode import decode
from pfedseq.data.file_tree import FileTree
from pfedseq.data.safe_pickle import read_pickle
from pfedseq.engines.states import MemoryStates
from pfedseq.engines.wire import decode as decode_message
from pfedseq.engines.wire import encode
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.presets import find_config
from pfedseq.runs.checkpoint import Checkpoint, Checkpoints
from pfedseq.runs.folder import RunFolder
from pfedseq.workloads.personal import PersonalModel
from tests.model.some_models import personal_model
from tests.toys import make_setup, random_centers

SECONDS, BYTES = 10, 2 * 2**30
_WORDS = (b"", b"0", b"-1", b"1e999", b"nan", b"null", b"[]", b"{}", b'"', b"\\u0000", b"../../x")
_NUMBERS = (0, -1, 2**31, 2**63, 2**64, -(2**63), 1e308, float("nan"), "", "x", None, [], {}, True)

Target = Callable[[random.Random], object]


def broken(sound: bytes, rng: random.Random) -> bytes:
    """The same bytes with a few random faults."""
    data = bytearray(sound)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[place:]
            case 2:
                del data[place : place + rng.randrange(1, 40)]
            case 3:
                data[place:place] = rng.choice(_WORDS)
            case 4:
                data[place:place] = rng.randbytes(rng.randrange(1, 20))
            case 5:
                start = rng.randrange(len(data) + 1)
                data[place:place] = data[start : start + rng.randrange(1, 60)]
            case 6:
                data[place : place + 8] = rng.choice(
                    (b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7)
                )
    return bytes(data)


def broken_json(text: str, rng: random.Random) -> str:
    """The same JSON with some of its values exchanged or lost: it still parses."""
    values = json.loads(text)
    for _ in range(rng.choice((1, 1, 3))):
        table = values
        while isinstance(table, (dict, list)) and table:
            key = rng.choice(list(table)) if isinstance(table, dict) else rng.randrange(len(table))
            if not isinstance(table[key], (dict, list)) or rng.random() < 0.3:
                if rng.random() < 0.2:
                    del table[key]
                else:
                    table[key] = rng.choice(_NUMBERS)
                break
            table = table[key]
    return json.dumps(values)


def spoil(path: Path, rng: random.Random) -> None:
    """Break one file in place."""
    if path.suffix in (".json", ".jsonl") and rng.random() < 0.6:
        head, _, rest = (
            path.read_text().partition("\n")
            if path.suffix == ".jsonl"
            else (path.read_text(), "", "")
        )
        path.write_text(broken_json(head, rng) + ("\n" + rest if rest else ""))
    else:
        path.write_bytes(broken(path.read_bytes(), rng))


def targets(work: Path) -> dict[str, Target]:
    """Every parser, by what it reads."""
    return {
        "config": _config(work),
        "message": _message(),
        "checkpoint": _checkpoint(work),
        "adapter": _adapter(work),
        "image": _image(),
        "archive": _archive(work),
        "pickle": _pickle(),
        "run folder": _run_folder(work),
    }


def _config(work: Path) -> Target:
    sound = [find_config(name).read_bytes() for name in ("demo", "lab/pacs", "cifar100")]
    path = work / "broken.toml"

    def read(rng: random.Random) -> object:
        path.write_bytes(broken(rng.choice(sound), rng))
        return load_config(path)

    return read


def _message() -> Target:
    tensors = {"adapter": torch.randn(3, 4), "head": torch.randn(5), "n": torch.tensor(3)}
    sound = encode(tensors, {"loss": 1.5})
    return lambda rng: decode_message(broken(sound, rng))


def _checkpoint(work: Path) -> Target:
    method, centers = METHODS["pfedseq"], random_centers(2)
    config = method.config()

    def fresh() -> Checkpoints:
        return Checkpoints(work / "checkpoint", MemoryStates(), {"version": "1"})

    server = method.server(config, make_setup(centers, (1, 1)))
    saved = fresh()
    for t in (1, 2):
        saved.states.put(0, {"head": torch.randn(3) * t})
        saved.save(t, server)
    sound = {path: path.read_bytes() for path in (work / "checkpoint").rglob("*.*")}
    manifests = [path for path in sound if path.suffix == ".json"]

    def read(rng: random.Random) -> object:
        for path, content in sound.items():
            path.write_bytes(content)
        if rng.random() < 0.5:
            spoil(rng.choice(list(sound)), rng)
        else:  # a hostile manifest whose checksum is right
            body = json.loads(broken_json(rng.choice(manifests).read_text(), rng))
            body.pop("sha256", None)
            try:
                made = Checkpoint(body["round"], body["made_with"], body["owners"])
                text = made.to_json()
            except (KeyError, TypeError, ValueError):
                return None
            for path in manifests:
                path.write_text(text)
        fresh_server = method.server(config, make_setup(centers, (1, 1)))
        return fresh().load(fresh_server, torch.device("cpu"), lambda _: None)

    return read


def _adapter(work: Path) -> Target:
    model = AdaptedModel(load_backbone("demo"), AdapterConfig(), 3, 0)
    folder = work / "adapter"
    personal_model(model, model.initial, ("a", "b", "c")).save(folder)
    sound = {path: path.read_bytes() for path in folder.iterdir()}

    def read(rng: random.Random) -> object:
        for path, content in sound.items():
            path.write_bytes(content)
        spoil(rng.choice(list(sound)), rng)
        return PersonalModel.load(folder, model)

    return read


def _image() -> Target:
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8))
    deep = Image.fromarray(np.random.default_rng(0).integers(0, 4096, (24, 20)).astype(np.uint16))
    sound = []
    for image, kinds in (
        (pixels, ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")),
        (deep, ("PNG", "TIFF")),
    ):
        for kind in kinds:
            file = io.BytesIO()
            image.save(file, kind)
            sound.append(file.getvalue())
    return lambda rng: decode(("an image", broken(rng.choice(sound), rng)), 16)


def _archive(work: Path) -> Target:
    content = {"a/1.png": b"x" * 500, "a/2.png": b"y" * 70, "b/3.png": b""}
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    sound = {
        ".zip": zipped.getvalue(),
        ".tar": tarred.getvalue(),
        ".tar.gz": gzip.compress(tarred.getvalue(), mtime=0),
    }

    def read(rng: random.Random) -> object:
        suffix = rng.choice(list(sound))
        path = work / f"archive{suffix}"
        path.write_bytes(broken(sound[suffix], rng))
        tree = FileTree(path)
        for name in tree.images()[:5]:
            try:
                tree.read(name)
            except InputError:
                continue
        return tree.folders()

    return read


def _pickle() -> Target:
    values = {b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"labels": [1, 2, 3], "n": "ü"}
    sound = [pickle.dumps(values, protocol) for protocol in (0, 2, 4)]
    return lambda rng: read_pickle(broken(rng.choice(sound), rng), "a pickle")


def _run_folder(work: Path) -> Target:
    folder = RunFolder(work / "run")
    folder.path.mkdir()
    columns = {"examples": [1], "accuracy": [0.5], "loss": [1.0]}
    scores = {"headline": "accuracy", "clients": [0], "test": columns, "validation": columns}
    cost = {"bytes_up": 1, "bytes_down": 1, "client_seconds": 1.0, "server_seconds": 1.0}
    cost |= {"evaluate_seconds": 1.0}
    line = json.dumps({"method": "local", "round": 1, **scores, **cost})
    client = {"name": "a", "train": [0], "validation": [1], "test": [2]}
    sound = {
        folder.metrics: line + "\n" + line.replace('"round": 1', '"round": 2') + "\n",
        folder.partition: json.dumps({"num_images": 3, "clients": [client]}),
    }

    def read(rng: random.Random) -> object:
        for path, text in sound.items():
            path.write_text(text)
        folder.summary.unlink(missing_ok=True)
        folder.write_summary()
        spoil(rng.choice([*sound, folder.summary]), rng)
        folder.read_data()
        folder.read_summary()
        return folder.records()

    return read


class Trouble(Exception):
    """It took too long."""


def _too_long(number: int, frame: object) -> None:
    raise Trouble(f"took longer than {SECONDS} seconds")


def attack(target: Target, seed: int) -> str:
    """`read`, `refused`, or what went wrong, of one broken input."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    try:
        target(random.Random(seed))
    except InputError as problem:
        return "refused" if str(problem).strip() else "an empty sentence"
    except (Exception, RecursionError, MemoryError) as problem:
        return f"{type(problem).__name__}: {problem}"
    else:
        return "read"
    finally:
        signal.alarm(0)


def hold_memory() -> None:
    """From now on this process may take only so much more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, resource.RLIM_INFINITY))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what became of the inputs, by target; 1 where anything went wrong."""
    parser = argparse.ArgumentParser(description="Feed broken files to every parser.")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--targets", default="")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    constants.HF_HUB_OFFLINE = True  # the name of a backbone that was broken is on no hub
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        found = targets(Path(folder))
        wanted = options.targets.split(",") if options.targets else list(found)
        hold_memory()
        for name in wanted:
            start, results = time.monotonic(), Counter[str]()
            for number in range(-(-options.inputs // len(wanted))):
                seed = options.seed + number
                result = attack(found[name], seed)
                if result not in ("read", "refused"):
                    faults += 1
                    if results["faults"] < 5:
                        print(f"  {name}, seed {seed}: {result[:300]}", flush=True)
                    result = "faults"
                results[result] += 1
            counts = ", ".join(
                f"{results[kind]:,} {kind}" for kind in ("read", "refused", "faults")
            )
            print(f"{name}: {counts}, {time.monotonic() - start:.0f} s", flush=True)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
