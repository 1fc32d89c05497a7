"""What the README and docs/howto/serving.md tell people to type, from a run to an answer, works."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
QUICK = [
    *("--rounds", "1", "--method", "pfedseq", "--set", "data.max_images_per_client=24"),
    *("--set", "methods.pfedseq.warmup_rounds=1"),
]


def blocks(page, language):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def lines(block):
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def serve_until_healthy(words):
    """Start the service on a free port, ask it whether it works, and stop it."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    try:
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        return httpx.get(f"{address}healthz", trust_env=False).json()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_the_readmes_way_from_a_run_to_answers(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shades = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    Image.fromarray(shades).save("digit.png")
    (block,) = blocks("README.md", "sh")
    typed = lines(block)
    assert [words[:2] for words in typed] == [
        ["pfedseq", verb] for verb in ("run", "report", "export", "predict", "serve")
    ]
    for words in typed[:4]:
        code, out, err = command(*words[1:], *(QUICK if words[1] == "run" else ()))
        assert code == 0, err
    predicted = re.fullmatch(r"digit\.png: (\d) \(\d+ %\)\n", out)
    assert predicted
    assert (tmp_path / "exported/client_03/README.md").exists()

    (code,) = blocks("README.md", "py")
    names = {}
    exec(code, names)
    pixels = np.broadcast_to((shades / 255 - 0.5) / 0.5, (1, 3, 32, 32)).astype(np.float32)
    logits = names["model"].eval()(pixel_values=torch.from_numpy(pixels)).logits
    assert str(int(logits.argmax())) == predicted[1]

    pytest.importorskip("fastapi", reason="needs the extra `serve`")
    assert serve_until_healthy(typed[4])["clients"] == 10


def test_every_line_of_the_page_on_serving_works(
    finished, photos, command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    shutil.copytree(finished, "runs/tiles")
    shutil.copytree(photos, "photos")
    Path("photos/mill/whole/099.png").unlink()
    shutil.copytree(photos / "mill/cracked", "archive/of/last/year")
    for name in Path("archive/of/last/year").iterdir():
        Image.open(name).save(name.with_suffix(".jpg"))
    shutil.copytree(photos / "quarry/cracked", "more-photos")
    shutil.copy(photos / "mill/whole/001.png", "photo.png")
    Path("tiles.toml").write_text(
        '[run]\nmethods = ["fedavg"]\nrounds = 1\n[data]\nname = "folder"\nsource = "photos"\n'
        'layout = "owner/class"\nstore = "store"\n'
    )
    predict, export, start, serve = (lines(b) for b in blocks("docs/howto/serving.md", "sh"))
    for words in [*predict, *export, *start]:
        code, _, err = command(*words[1:])
        assert code == 0, (words, err)
    assert Path("merged/mill/merged/model.safetensors").exists()
    assert Path("runs/again/adapters/fedavg/quarry").is_dir()

    (code,) = blocks("docs/howto/serving.md", "python")
    capsys.readouterr()
    exec(code, {})
    answer = capsys.readouterr().out.strip()
    _, out, _ = command(*predict[0][1:5], "photo.png")
    assert out.startswith(f"photo.png: {answer} (")

    install, run, ask = serve
    assert install[-1] == "pfedseq[serve]"
    assert run == ["pfedseq", "serve", "runs/tiles"]
    assert ask[1:3] == ["--data-binary", "@photo.png"]
    assert ask[3] == "http://127.0.0.1:8000/predict?client=mill&compare=true"
