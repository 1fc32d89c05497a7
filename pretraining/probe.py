"""How good are frozen features? A linear classifier on the class token, on real digits."""

from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from pfedseq.model.backbone import Backbone


def digit_probe_accuracies(
    backbone: Backbone, train_sizes: Sequence[int] = (1347, 200)
) -> list[float]:
    """Test accuracy of logistic regression on standardised features of scikit-learn's digits.

    Each of `train_sizes` is how many of the 1,797 images train one probe, stratified by digit; it
    is tested on all others.
    """
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    images = functional.interpolate(images, size=backbone.image_size, mode="bicubic").clamp(0, 1)
    features = extract_features(backbone, images.expand(-1, 3, -1, -1)).numpy()
    accuracies = []
    for size in train_sizes:
        train_x, test_x, train_y, test_y = train_test_split(
            features, digits.target, train_size=size, stratify=digits.target, random_state=0
        )
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        accuracies.append(float(probe.fit(train_x, train_y).score(test_x, test_y)))
    return accuracies


def extract_features(backbone: Backbone, images: Tensor, batch_size: int = 256) -> Tensor:
    """Class tokens (n, feature_dim) of images (n, 3, size, size) in [0, 1]."""
    mean = torch.tensor(backbone.mean).view(3, 1, 1)
    std = torch.tensor(backbone.std).view(3, 1, 1)
    with torch.no_grad():
        tokens = [
            backbone.model(pixel_values=(batch - mean) / std).last_hidden_state[:, 0]
            for batch in torch.split(images, batch_size)
        ]
    return torch.cat(tokens)
