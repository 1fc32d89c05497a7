"""Make the demo's backbone again: `python -m pretraining --out FOLDER`."""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from transformers import ViTModel
from transformers.utils import logging

from pfedseq.model.backbone import load_backbone
from pretraining.probe import digit_probe_accuracies
from pretraining.training import PIXEL_MEAN, PIXEL_STD, PretrainingSettings, pretrain


def main() -> None:
    """Pretrain, save, and say how well a linear probe does on the features."""
    defaults = PretrainingSettings()
    parser = argparse.ArgumentParser(prog="python -m pretraining", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo_vit"), help="folder to write")
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, not {arguments.steps}")
    arguments.out.mkdir(parents=True, exist_ok=True)  # find out now whether it can be written

    # Sums over threads are not associative: one thread makes the weights a function of the seed.
    torch.set_num_threads(1)
    start = time.monotonic()
    model = pretrain(
        PretrainingSettings(seed=arguments.seed, steps=arguments.steps),
        report=lambda progress: print(progress, flush=True),
    )
    save(model, arguments.out)
    print(f"Wrote {arguments.out} after {(time.monotonic() - start) / 60:.1f} minutes.")
    for name in ("random:demo", str(arguments.out)):
        many, few = digit_probe_accuracies(load_backbone(name))
        print(f"Linear probe on digits, {name}: {many:.1%} (200 training images: {few:.1%})")


def save(model: ViTModel, folder: Path) -> None:
    """Write transformers' own format; no file is ever there in part."""
    logging.disable_progress_bar()
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "image_mean": [PIXEL_MEAN] * 3,
        "image_std": [PIXEL_STD] * 3,
        "size": {"height": model.config.image_size, "width": model.config.image_size},
    }
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        model.save_pretrained(temporary)
        written = Path(temporary, "preprocessor_config.json")
        written.write_text(json.dumps(preprocessor, indent=2) + "\n", encoding="utf-8")
        for file in Path(temporary).iterdir():
            os.replace(file, folder / file.name)


if __name__ == "__main__":
    main()
