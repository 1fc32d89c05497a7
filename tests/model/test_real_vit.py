"""The real ViT-Ti/16 in timm format: exact, ImageNet-quality, and particular about its input."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pretraining.probe import extract_features
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from pfedseq.model.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, load_backbone
from tests.model.timm_vit import plain_forward

SHARED_DATA = Path(
    os.environ.get("PFEDSEQ_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared/data")
)
WEIGHTS = SHARED_DATA / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
PACS = SHARED_DATA / "pacs/pacs_128.zip"

pytestmark = pytest.mark.skipif(
    not (WEIGHTS.is_file() and PACS.is_file()),
    reason=f"needs the real ViT-Ti/16 and PACS under {SHARED_DATA} (or PFEDSEQ_SHARED_DATA)",
)

IMAGENET_CLASSES = {"dog": range(151, 269), "elephant": (101, 385, 386), "guitar": (402, 546)}
"""Indices among ImageNet's 1000 classes: dog breeds, elephants, guitars."""


def pacs_photos(classes: list[str], per_class: int, size: int) -> tuple[Tensor, np.ndarray]:
    """Images (n, 3, size, size) in [0, 1] and labels (n,): the first photos of each class."""
    images, labels = [], []
    with zipfile.ZipFile(PACS) as archive:
        names = sorted(archive.namelist())
        for label, class_name in enumerate(classes):
            chosen = [n for n in names if n.startswith(f"PACS/photo/{class_name}/")][:per_class]
            for name in chosen:
                image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
                image = image.resize((size, size), Image.Resampling.BICUBIC)
                images.append(torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255)
                labels.append(label)
    return torch.stack(images), np.array(labels)


def test_forward_is_that_of_plain_timm() -> None:
    backbone = load_backbone(str(WEIGHTS))
    assert (backbone.feature_dim, backbone.num_layers, backbone.image_size) == (192, 12, 224)
    images = 2 * torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)) - 1
    tensors = load_file(WEIGHTS)
    with torch.no_grad():
        actual = backbone.model(pixel_values=images).last_hidden_state
        expected = plain_forward(tensors, images, heads=3)
        # This network's largest activations are nearly a thousand times its typical ones, so single
        # precision leaves about 1e-4 in a few tokens of either computation: the class token is
        # compared as a whole, and every number in double precision.
        error = (actual - expected)[:, 0].norm() / expected[:, 0].norm()
        assert error < 1e-5
        actual = backbone.model.double()(pixel_values=images.double()).last_hidden_state
        expected = plain_forward({k: v.double() for k, v in tensors.items()}, images.double(), 3)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


def probe_accuracy(backbone: Backbone, images: Tensor, labels: np.ndarray) -> float:
    """Linear probe: even-numbered images train, odd-numbered ones test."""
    features = extract_features(backbone, images, batch_size=32).numpy()
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probe.fit(features[::2], labels[::2])
    return float(probe.score(features[1::2], labels[1::2]))


def test_features_are_far_above_random_initialisation_at_96_pixels() -> None:
    classes = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
    images, labels = pacs_photos(classes, per_class=24, size=96)
    pretrained = probe_accuracy(load_backbone(str(WEIGHTS), image_size=96), images, labels)
    random = probe_accuracy(load_backbone("random:vit-tiny", image_size=96), images, labels)
    print(f"PACS photos at 96 px: pretrained {pretrained:.3f}, random {random:.3f}")
    assert pretrained > 0.65
    assert pretrained > random + 0.3


def imagenet_accuracy(backbone: Backbone, images: Tensor, labels: np.ndarray) -> float:
    """Share of images that the file's own 1000-class head puts into a right class."""
    file = load_file(WEIGHTS)
    features = extract_features(backbone, images, batch_size=32)
    predictions = functional.linear(features, file["head.weight"], file["head.bias"]).argmax(-1)
    right = [set(indices) for indices in IMAGENET_CLASSES.values()]
    hits = [int(p) in right[label] for p, label in zip(predictions, labels, strict=True)]
    return sum(hits) / len(hits)


def test_wrong_normalisation_is_noticed() -> None:
    """ImageNet's mean and std, which DeiT and DINO want, cost this network accuracy."""
    images, labels = pacs_photos(list(IMAGENET_CLASSES), per_class=12, size=224)
    own = load_backbone(str(WEIGHTS))
    wrong = load_backbone(str(WEIGHTS), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    own_accuracy = imagenet_accuracy(own, images, labels)
    wrong_accuracy = imagenet_accuracy(wrong, images, labels)
    print(f"right class of 1000: own normalisation {own_accuracy:.3f}, wrong {wrong_accuracy:.3f}")
    assert own_accuracy > 0.7
    assert wrong_accuracy < own_accuracy - 0.1
