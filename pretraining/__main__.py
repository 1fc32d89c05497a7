"""Make the demos' backbones again: `python -m pretraining --model vit|llm --out FOLDER`."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import ViTModel
from transformers.utils import logging

from pfedseq.model.backbone import load_backbone
from pfedseq.model.language_model import LanguageModel
from pretraining.language import LanguageSettings, pretrain_language
from pretraining.probe import digit_probe_accuracies
from pretraining.training import PIXEL_MEAN, PIXEL_STD, PretrainingSettings, pretrain


def main() -> None:
    """Pretrain and save; of the ViT, say how well a linear probe does on the features."""
    parser = argparse.ArgumentParser(prog="python -m pretraining", description=__doc__)
    parser.add_argument("--model", choices=("vit", "llm"), default="vit", help="for which demo")
    parser.add_argument("--out", type=Path, help="folder to write; default: runs/demo_MODEL")
    parser.add_argument("--steps", type=int, help="default: those of the published weights")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    usual = (LanguageSettings if arguments.model == "llm" else PretrainingSettings)().steps
    steps = usual if arguments.steps is None else arguments.steps
    if steps < 1:
        parser.error(f"--steps must be at least 1, not {steps}")
    out = arguments.out or Path(f"runs/demo_{arguments.model}")
    out.mkdir(parents=True, exist_ok=True)  # find out now whether it can be written

    # Sums over threads are not associative: one thread makes the weights a function of the seed.
    torch.set_num_threads(1)
    start = time.monotonic()
    if arguments.model == "llm":
        settings = LanguageSettings(seed=arguments.seed, steps=steps)
        save_language_model(pretrain_language(settings, lambda said: print(said, flush=True)), out)
    else:
        model = pretrain(
            PretrainingSettings(seed=arguments.seed, steps=steps),
            report=lambda progress: print(progress, flush=True),
        )
        save(model, out)
    print(f"Wrote {out} after {(time.monotonic() - start) / 60:.1f} minutes.")
    for name in ("random:demo", str(out)) if arguments.model == "vit" else ():
        many, few = digit_probe_accuracies(load_backbone(name))
        print(f"Linear probe on digits, {name}: {many:.1%} (200 training images: {few:.1%})")


def save(model: ViTModel, folder: Path) -> None:
    """Write transformers' own format; no file is ever there in part."""
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "image_mean": [PIXEL_MEAN] * 3,
        "image_std": [PIXEL_STD] * 3,
        "size": {"height": model.config.image_size, "width": model.config.image_size},
    }

    def write(place: Path) -> None:
        model.save_pretrained(place)
        written = place / "preprocessor_config.json"
        written.write_text(json.dumps(preprocessor, indent=2) + "\n", encoding="utf-8")

    _replace_files(folder, write)


def save_language_model(language: LanguageModel, folder: Path) -> None:
    """The same for a language model with its tokenizer, in half precision."""

    def write(place: Path) -> None:
        language.model.half().save_pretrained(place)
        language.tokenizer.save_pretrained(place)

    _replace_files(folder, write)


def _replace_files(folder: Path, write: Callable[[Path], None]) -> None:
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        write(Path(temporary))
        for file in Path(temporary).iterdir():
            os.replace(file, folder / file.name)


if __name__ == "__main__":
    main()
