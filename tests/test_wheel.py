"""Installed, not only cloned: the wheel in an environment of its own, outside the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "pyproject.toml", "setup.py", "README.md", "LICENSE")
BUILT = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
TWO_ROUNDS = ("--rounds", "2", "--set", "methods.pfedseq.warmup_rounds=1")
FEW = ("--set", "data.max_images_per_client=40")


def call(*command, cwd, **variables):
    """Run a command with nothing of this repository in its environment; what it printed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(folder, **variables):
    """The wheel of a copy of the sources in which nothing is built yet."""
    copy = folder / "sources"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=BUILT)
        else:
            shutil.copy(ROOT / name, copy)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder)
    call(sys.executable, "-m", "pip", "wheel", *options, copy, cwd=folder, **variables)
    shutil.rmtree(copy)
    (wheel,) = folder.glob("pfedseq-*.whl")
    return wheel


def install(wheel, folder):
    """The commands of an environment that holds the wheel, and its dependencies from this one."""
    environment = folder / "environment"
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    (site,) = environment.glob("lib/python*/site-packages")
    # A .pth adds folders but follows no .pth in them, so a clone installed there stays unseen.
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("\n".join(sorted(here)))
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    call(*pip, "install", "--no-deps", "--quiet", wheel, cwd=folder)
    where = call(python, "-c", "import pfedseq; print(pfedseq.__file__)", cwd=folder)
    assert where.startswith(str(environment)), "the wheel is tested, not the clone"
    return environment / "bin"


def members(wheel):
    return zipfile.ZipFile(wheel).namelist()


def assert_demo_runs(commands, folder):
    empty = folder / "empty"
    empty.mkdir()
    call(commands / "pfedseq", "run", "demo", *TWO_ROUNDS, *FEW, "--out", "out", cwd=empty)
    summary = json.loads((empty / "out" / "summary.json").read_text())
    assert {name: m["rounds"] for name, m in summary["methods"].items()} == {
        "pfedseq": 2,
        "local": 2,
        "fedavg": 2,
    }
    assert sorted(path.name for path in empty.iterdir()) == ["out"]


def test_the_demo_runs_from_the_wheel(tmp_path):
    wheel = build_wheel(tmp_path)
    names = members(wheel)
    assert "pfedseq/presets/lab/pacs.toml" in names
    assert "pfedseq/serving/page/index.html" in names
    assert "pfedseq/py.typed" in names
    if shutil.which(sysconfig.get_config_var("CC").split()[0]):
        assert any(re.search(r"/_mamba_kernel\.(so|pyd)$", name) for name in names)
    assert re.fullmatch(r"pfedseq-[\d.]+-py3-none-\w+\.whl", wheel.name), "for every Python"
    commands = install(wheel, tmp_path)
    assert "lab/pacs" in call(commands / "pfedseq", "presets", cwd=tmp_path)
    assert_demo_runs(commands, tmp_path)


def test_it_installs_and_runs_without_a_c_compiler(tmp_path):
    wheel = build_wheel(tmp_path, CC=str(tmp_path / "no-compiler"))
    assert not any("_mamba_kernel" in name for name in members(wheel))
    assert_demo_runs(install(wheel, tmp_path), tmp_path)
