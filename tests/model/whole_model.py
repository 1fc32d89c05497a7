"""A personal model as others put it together: transformers and PEFT alone."""

from pathlib import Path

import torch
from peft import PeftModel
from transformers import ViTForImageClassification


def load_with_peft(base: str | Path, adapter: Path, num_labels: int) -> torch.nn.Module:
    classifier = ViTForImageClassification.from_pretrained(base, num_labels=num_labels)
    return PeftModel.from_pretrained(classifier, adapter).eval()
