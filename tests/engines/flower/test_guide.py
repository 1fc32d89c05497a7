"""Every command of docs/deploying.md, in its order, on one machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[3] / "docs" / "deploying.md"


def blocks():
    return re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)


def make_images(folder, sites):
    for number, site in enumerate(sites):
        for label, colour in {"dark": 40, "light": 200}.items():
            (folder / site / "images" / label).mkdir(parents=True)
            for k in range(10):
                shade = (colour + k, colour + 10 * number, colour)
                place = folder / site / "images" / label / f"{k}.png"
                Image.new("RGB", (32, 32), shade).save(place)


def test_the_guide_works_as_it_stands(tmp_path):
    make_images(tmp_path, ("clinic-a", "clinic-b", "clinic-c"))
    install, *rest = blocks()
    assert install.startswith("pip install")
    stop = "trap 'pfedseq flower down || true; kill ${NODES:-} ${LINK:-} || true' EXIT\n"
    script = "set -euxo pipefail\n" + stop + "\n".join(rest)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cache = {"PFEDSEQ_CACHE": str(tmp_path / "cache"), "PATH": path}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | cache,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "finished" in done.stdout, "pfedseq flower status saw the trial's end"
    assert (tmp_path / "results" / "summary.json").exists()
    for site in ("clinic-a", "clinic-b", "clinic-c"):
        assert list((tmp_path / site / "state").glob("*/pfedseq/model/adapter_model.safetensors"))
    assert "clinic-a/images/dark/0.png" in done.stdout, "predictions at the site"
