"""Every command of docs/howto/deploying.md, in its order, on one machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "deploying.md"


def blocks(simulation):
    """The commands of the section on simulation, or of all the others."""
    sections = re.split(r"^(?=## )", GUIDE.read_text(encoding="utf-8"), flags=re.M)
    wanted = [s for s in sections if s.startswith("## In simulation") == simulation]
    return re.findall(r"^```sh\n(.*?)^```", "".join(wanted), re.M | re.S)


def bash(folder, commands, at_the_end):
    """Run them as one script that stops at the first failure, and stops what it started."""
    script = f"set -euxo pipefail\ntrap '{at_the_end}' EXIT\n" + "\n".join(commands)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PFEDSEQ_CACHE": str(folder / "cache"), "PATH": path},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def make_images(folder, sites):
    for number, site in enumerate(sites):
        for label, colour in {"dark": 40, "light": 200}.items():
            (folder / site / "images" / label).mkdir(parents=True)
            for k in range(10):
                shade = (colour + k, colour + 10 * number, colour)
                place = folder / site / "images" / label / f"{k}.png"
                Image.new("RGB", (32, 32), shade).save(place)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_the_guide_works_as_it_stands(tmp_path):
    make_images(tmp_path, ("clinic-a", "clinic-b", "clinic-c"))
    install, *commands = blocks(simulation=False)
    assert install.startswith("pip install")
    printed = bash(
        tmp_path,
        commands,
        "pfedseq flower down || true; kill ${NODES:-} ${LINK:-} $(cat proxy/nginx.pid) || true",
    )
    assert "finished" in printed, "pfedseq flower status saw the trial's end"
    assert (tmp_path / "results" / "summary.json").exists()
    for site in ("clinic-a", "clinic-b", "clinic-c"):
        assert list((tmp_path / site / "state").glob("*/pfedseq/model/adapter_model.safetensors"))
    assert "clinic-a/images/dark/0.png" in printed, "predictions at the site"


@pytest.mark.slow
def test_the_simulation_works_as_it_stands(tmp_path):
    pytest.importorskip("ray", reason="Flower's simulation needs pip install 'flwr[simulation]'")
    bash(tmp_path, blocks(simulation=True), "kill ${SIMULATION:-} || true")
    assert (tmp_path / "simulated" / "summary.json").exists()
    assert len(list((tmp_path / "simulated-sites").glob("site_*/*/pfedseq/model"))) == 4


def test_no_command_is_left_out():
    """Every block of the guide is one that the tests above run."""
    text = GUIDE.read_text(encoding="utf-8")
    fences = re.findall(r"^```(.*)$", text, re.M)
    assert set(fences) == {"sh", ""}
    assert len(blocks(True)) + len(blocks(False)) == fences.count("sh")
