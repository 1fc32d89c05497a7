"""`pfedseq doctor`: what this machine has, and whether it computes what it should."""

from __future__ import annotations

import os
import platform
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfedseq import __version__
from pfedseq.cli.options import Device

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy", "pydantic", "flwr")
ROUNDS, WARMUP = 3, 1
LARGEST_DIFFERENCE = 1e-3
"""Tolerated relative difference of two runs' adapters; float32 differs by about 1e-5."""


def doctor(
    device: Device = None,
    test: Annotated[
        bool, typer.Option("--test/--no-test", help="Also run the self-test of a few seconds.")
    ] = True,
) -> None:
    """Show versions and devices, and compare one short run on this machine's device with the CPU.

    The output is meant to be pasted into an issue. On a machine without a GPU the self-test
    compares the C kernel with PyTorch. Exit code 1 means that the two disagree.

    Examples:

    - `pfedseq doctor`

    - `pfedseq doctor --device cuda:1`
    """
    from pfedseq.workloads.devices import pick_devices

    chosen = pick_devices(device.split(",") if device else "auto")
    for name, value in [*_versions(), *_devices(chosen), ("kernel", _kernel()), *_variables()]:
        print(f"{name + ':':<13} {value}", flush=True)
    if test and not _self_test(chosen[0]):
        raise typer.Exit(1)


def _versions() -> Iterator[tuple[str, str]]:
    import torch

    yield "pfedseq", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", f"{platform.platform()}, {os.cpu_count()} cores"
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"
    yield "cuda", f"{torch.version.cuda or 'not in this build of PyTorch'}"


def _devices(chosen: list[torch.device]) -> Iterator[tuple[str, str]]:
    """The devices in use, and the default precision."""
    import torch

    for device in chosen:
        if device.type == "cuda":
            card = torch.cuda.get_device_properties(device)
            memory = f"{card.total_memory / 2**30:.1f} GiB"
            capability = f"compute capability {card.major}.{card.minor}"
            known = "yes" if torch.cuda.is_bf16_supported() else "no"
            yield str(device), f"{card.name}, {memory}, {capability}, bfloat16: {known}"
        else:
            yield "device", str(device)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    yield "precision", f"float32, TF32 {'on' if tf32 else 'off'}; model.precision changes it"


def _kernel() -> str:
    """Which variant of the learner's C kernel runs on the CPU."""
    from pfedseq.learners.fused_mamba import load_variant

    try:
        return f"{load_variant().variant}, for the learner on the CPU"
    except FileNotFoundError:
        return "not built: the learner runs in PyTorch; reinstall with a C compiler for speed"


def _variables() -> Iterator[tuple[str, str]]:
    """Environment variables that change what runs do."""
    prefixes = ("PFEDSEQ_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE")
    for name in sorted(os.environ):
        if name.startswith(prefixes) and "TOKEN" not in name:
            yield "variable", f"{name}={os.environ[name]}"


def _self_test(device: torch.device) -> bool:
    """Whether a short run on the device, or without the C kernel, gives the same adapters."""
    import torch

    print("self-test:    ", end="", flush=True)
    reference, reference_seconds = _short_run("cpu")
    if device.type != "cpu":
        name, (found, seconds) = str(device), _short_run(str(device))
    else:
        with _without_kernel():
            name, (found, seconds) = "cpu without the C kernel", _short_run("cpu")
    difference = float((found - reference).abs().max() / reference.abs().max())
    agrees = bool(torch.isfinite(found).all()) and difference < LARGEST_DIFFERENCE
    print(f"{ROUNDS} rounds of pFedSeq, 4 clients, on the CPU and on {name}")
    print(f"  difference   {difference:.1e} of the largest parameter: ", end="")
    print("they agree" if agrees else "TOO LARGE, please report this")
    print(f"  one round    {reference_seconds:.2f} s on the CPU, {seconds:.2f} s on {name}")
    return agrees


def _short_run(device: str) -> tuple[torch.Tensor, float]:
    """All clients' personal adapters and heads in one tensor, and the seconds of the last round."""
    import torch
    from safetensors.torch import load_file

    from pfedseq.config import make_config
    from pfedseq.runs.run import run

    config = make_config(
        {
            "run": {"methods": ["pfedseq"], "rounds": ROUNDS, "evaluate_every": ROUNDS},
            "data": {
                "name": "digits",
                "num_clients": 4,
                "image_size": 32,
                "max_images_per_client": 48,
            },
            "methods": {"pfedseq": {"warmup_rounds": WARMUP}},
            "engine": {"device": device},
        }
    )
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(config, Path(place) / "run", lambda record: ends.append(time.perf_counter()))
        files = sorted((Path(place) / "run" / "adapters").rglob("*.safetensors"))
        tensors = [x.flatten().double() for f in files for _, x in sorted(load_file(f).items())]
    return torch.cat(tensors), ends[-1] - ends[-2]


@contextmanager
def _without_kernel() -> Iterator[None]:
    """Let the learner run in PyTorch."""
    from pfedseq.learners import fused_mamba

    before = os.environ.get(fused_mamba._VARIABLE)
    os.environ[fused_mamba._VARIABLE] = "off"
    fused_mamba.fused_mamba.cache_clear()
    try:
        yield
    finally:
        os.environ.pop(fused_mamba._VARIABLE)
        if before is not None:
            os.environ[fused_mamba._VARIABLE] = before
        fused_mamba.fused_mamba.cache_clear()
