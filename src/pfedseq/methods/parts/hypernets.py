"""The MLP hypernetworks of pFedHN, pFedLA and PeFLL, and PeFLL's embedding network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from pfedseq.federation import MethodConfig, Setup, Tensors
from pfedseq.seeding import seeded

Built = TypeVar("Built", bound=nn.Module)

HIDDEN_LAYERS = 3
"""Hidden-to-hidden layers: with the first, pFedHN's and PeFLL's MLPs have 4 linear layers."""


class HypernetConfig(MethodConfig):
    """Options that pFedHN, pFedLA and PeFLL have in common."""

    hypernet_lr: float = Field(
        1e-3, gt=0, description="Adam's rate at the server; paper: 1e-3, Omniglot 5e-4"
    )
    hidden_dim: int = Field(100, ge=1, description="width of the hypernetwork; paper: 100")


class GeneratorConfig(HypernetConfig):
    """Options of pFedHN and PeFLL, whose hypernetwork generates adapters."""

    max_grad_norm: float = Field(
        50.0, gt=0, description="gradient clipping over all parameters of Adam; original: 50"
    )


def build(make: Callable[[], Built], setup: Setup, purpose: str) -> Built:
    """Build a network whose initial weights depend only on the run's seed and on `purpose`."""
    with seeded(setup.seed, purpose):
        network = make()
    return network.to(setup.initial.adapter.device)


def descriptor_dim(setup: Setup) -> int:
    """d = int(1 + N / 4): the length of a client's descriptor in pFedHN and PeFLL."""
    return int(1 + setup.num_clients / 4)


def build_generator(setup: Setup, hidden_dim: int) -> AdapterGenerator:
    """The generator h with this run's initial weights."""
    initial = setup.initial.adapter
    return build(
        lambda: AdapterGenerator(descriptor_dim(setup), hidden_dim, initial), setup, "generator"
    )


class AdapterGenerator(nn.Module):
    """h: descriptors v (n, d) ↦ adapters θ (n, K, D): an MLP, then one linear head per layer.

    The K heads read the same features, so they are one linear map to K · D numbers. It starts
    with weight 0 and bias θ^0: every descriptor gives θ^0, whose LoRA is zero, so that round 1
    begins at the pre-trained model as it does for every other method. PyTorch's default would
    give a random B of about the size of A, and with it random features.
    """

    def __init__(self, input_dim: int, hidden_dim: int, initial: Tensor) -> None:
        super().__init__()
        self.shape = initial.shape
        layers: list[nn.Module] = [nn.Linear(input_dim, hidden_dim)]
        for _ in range(HIDDEN_LAYERS):
            layers += [nn.ReLU(), nn.Linear(hidden_dim, hidden_dim)]
        self.body = nn.Sequential(*layers)
        self.heads = nn.Linear(hidden_dim, initial.numel())
        nn.init.zeros_(self.heads.weight)
        with torch.no_grad():
            self.heads.bias.copy_(initial.flatten())

    def forward(self, descriptors: Tensor) -> Tensor:
        """θ (n, K, D)."""
        generated: Tensor = self.heads(self.body(descriptors))
        return generated.view(-1, *self.shape)


class LayerWeights(nn.Module):
    """One client's hypernetwork in pFedLA: its embedding ↦ α_i (K, N), whose rows sum to 1.

    The heads' weights start uniform in (0, 1) and their biases at 0: on the non-negative
    features that a ReLU leaves, all outputs are then positive and α_i begins near 1 / N.
    """

    def __init__(self, client: int, num_layers: int, num_clients: int, hidden_dim: int) -> None:
        super().__init__()
        self.client, self.shape = client, (num_layers, num_clients)
        self.embedding = nn.Parameter(torch.randn(hidden_dim))
        layers: list[nn.Module] = []
        for _ in range(HIDDEN_LAYERS):
            layers += [nn.Linear(hidden_dim, hidden_dim), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.heads = nn.Linear(hidden_dim, num_layers * num_clients)
        nn.init.uniform_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)

    def forward(self) -> Tensor:
        """α_i (K, N); a row that the ReLU leaves all zero falls back to the client's own adapter.

        Such a row has no gradient of its own; it can return when the features under it change.
        """
        raw = functional.relu(self.heads(self.body(self.embedding))).view(self.shape)
        total = raw.sum(1, keepdim=True)
        own = functional.one_hot(torch.tensor(self.client), self.shape[1]).to(raw)
        dead = total == 0
        return torch.where(dead, own, raw / torch.where(dead, 1.0, total))


class Standardise(nn.Module):
    """v ↦ (v − mean) / deviation: two scalars, fitted once and stored with the network."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("deviation", torch.ones(()))

    def fit(self, descriptors: Tensor) -> None:
        """Fit both scalars to all entries of `descriptors`; if all are equal, only shift."""
        deviation = descriptors.std(correction=0)
        self.mean.copy_(descriptors.mean())
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1.0))

    def forward(self, descriptors: Tensor) -> Tensor:
        """The same shape, standardised."""
        return (descriptors - self.mean) / self.deviation


class EmbeddingNetwork(nn.Module):
    """f of PeFLL: images (B, 3, 32, 32) and labels (B,) ↦ embeddings (B, d); a LeNet.

    The original concatenates the one-hot label as C constant channels. Without padding, a
    convolution of a constant channel is that constant times the sum of the kernel, so the label
    adds one number per output channel: the same function with 3 channels convolved, not 3 + C.
    """

    def __init__(self, num_classes: int, output_dim: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3 + num_classes, 16, kernel_size=5)
        self.second = nn.Conv2d(16, 32, kernel_size=5)
        self.third = nn.Linear(32 * 5 * 5, 120)
        self.fourth = nn.Linear(120, 84)
        self.last = nn.Linear(84, output_dim)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """f(x, y) (B, d)."""
        of_pixels, of_labels = self.first.weight.split([3, self.first.in_channels - 3], dim=1)
        shift = of_labels.sum((2, 3)).T[labels]  # (B, 16)
        x = functional.conv2d(images, of_pixels, self.first.bias) + shift[:, :, None, None]
        x = functional.max_pool2d(functional.relu(x), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        x = functional.relu(self.third(x.flatten(1)))
        embeddings: Tensor = self.last(functional.relu(self.fourth(x)))
        return embeddings


class VectorEmbedding(nn.Module):
    """f of PeFLL for texts: vectors (B, F) and labels (B,) ↦ embeddings (B, d); an MLP.

    The last layers are the LeNet's. The one-hot label is concatenated: its part of the first
    product is a column of the weights.
    """

    def __init__(self, num_features: int, num_classes: int, output_dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_features + num_classes, 120)
        self.second = nn.Linear(120, 84)
        self.last = nn.Linear(84, output_dim)

    def forward(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """f(x, y) (B, d)."""
        features = vectors.shape[1]
        of_vectors, of_labels = self.first.weight[:, :features], self.first.weight[:, features:]
        x = functional.linear(vectors, of_vectors, self.first.bias) + of_labels.T[labels]
        embeddings: Tensor = self.last(functional.relu(self.second(functional.relu(x))))
        return embeddings


def embedding_network(
    shape: tuple[int, ...], num_classes: int, output_dim: int
) -> EmbeddingNetwork | VectorEmbedding:
    """The network f for sketches of the given shape: small images, or vectors."""
    if len(shape) == 1:
        return VectorEmbedding(shape[0], num_classes, output_dim)
    return EmbeddingNetwork(num_classes, output_dim)


def embed(weights: Tensors, sketches: Tensor, labels: Tensor) -> Tensor:
    """f(x, y) (B, d) with the given weights, whose shapes determine C and d."""
    num_classes = weights["first.weight"].shape[1] - sketches.shape[1]
    with torch.device("meta"):  # a skeleton: draws no random numbers
        skeleton = embedding_network(
            tuple(sketches.shape[1:]), num_classes, len(weights["last.bias"])
        )
    embeddings: Tensor = functional_call(skeleton, weights, (sketches, labels))
    return embeddings
