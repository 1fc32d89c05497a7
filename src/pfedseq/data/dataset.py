"""What a data set is to the rest of pfedseq: examples, labels, and who holds which of them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageSet:
    """Labelled images of one source, before they are dealt to clients."""

    unit: ClassVar[str] = "image"
    """What one of them is called."""
    name: str
    images: NDArray[np.uint8]
    """(n, 3, size, size), in memory or a read-only memory map."""
    labels: NDArray[np.int64]
    """(n,) class indices."""
    class_names: tuple[str, ...]
    owners: NDArray[np.int64] | None = None
    """(n,) the natural client of each image (drawer, domain), where the data names one."""
    owner_names: tuple[str, ...] = ()
    is_test: NDArray[np.bool_] | None = None
    """(n,) the source's own test images, where it has any; used with `data.keep_test_split`."""
    fingerprint: str | None = None
    """Changes when a pixel does; None for images that are made anew for each run."""
    notes: tuple[str, ...] = ()
    """What a user should know, such as how many files were left out."""
    groups: NDArray[np.int64] | None = None
    """(n,) the patient, subject or scene of each image: one side of a split holds all of it."""
    is_validation: NDArray[np.bool_] | None = None
    """(n,) the source's own validation images, where it has test images beside them."""
    hashes: NDArray[np.uint64] | None = None
    """(n, 2) checksum and difference hash, where a split must know of copies."""
    window: tuple[float, float] | None = None
    """The grey values of deep images that became black and white; None: each image's own."""


@dataclass(frozen=True)
class TextSet:
    """Labelled texts; the fields that it shares with `ImageSet` mean the same."""

    unit: ClassVar[str] = "text"
    name: str
    texts: tuple[str, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    owners: NDArray[np.int64] | None
    owner_names: tuple[str, ...]
    is_test: NDArray[np.bool_] | None
    fingerprint: str
    notes: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    is_validation: NDArray[np.bool_] | None = None
    hashes: NDArray[np.uint64] | None = None
    """(n, 2) checksum of a text, and of the text without case and spaces."""


ExampleSet = ImageSet | TextSet


@dataclass(frozen=True)
class ClientData:
    """The examples of one client, as indices into an `ExampleSet`."""

    name: str
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class FederatedData:
    """One set of examples and its division among clients: a function of config and seed."""

    examples: ExampleSet
    clients: tuple[ClientData, ...]
    notes: tuple[str, ...] = ()
    """What a user should know of the division, such as copies and clients that were left out."""


def all_images(client: ClientData) -> NDArray[np.int64]:
    """Indices of all images of a client, each once."""
    return np.unique(np.concatenate([client.train, client.validation, client.test]))
