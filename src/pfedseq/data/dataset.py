"""Data sets in memory: examples, labels, and their division among clients."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageSet:
    """Labelled images of one source, before partitioning."""

    unit: ClassVar[str] = "image"
    """The word for one example."""
    name: str
    images: NDArray[np.uint8]
    """(n, 3, size, size), in memory or a read-only memory map."""
    labels: NDArray[np.int64]
    """(n,) class indices."""
    class_names: tuple[str, ...]
    owners: NDArray[np.int64] | None = None
    """(n,) the natural client of each image (writer, domain), if the data names one."""
    owner_names: tuple[str, ...] = ()
    is_test: NDArray[np.bool_] | None = None
    """(n,) the source's own test images, if any; used with `data.keep_test_split`."""
    fingerprint: str | None = None
    """Changes when a pixel does; None for images generated for each run."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, such as how many files were left out."""
    groups: NDArray[np.int64] | None = None
    """(n,) the patient, subject or scene of each image, kept on one side of a split."""
    is_validation: NDArray[np.bool_] | None = None
    """(n,) the source's own validation images, if it also has test images."""
    hashes: NDArray[np.uint64] | None = None
    """(n, 2) checksum and difference hash, if a split must detect copies."""
    window: tuple[float, float] | None = None
    """The grey values mapped to black and white for images of more than 8 bits; None: per image."""


@dataclass(frozen=True)
class TextSet:
    """Labelled texts; fields shared with `ImageSet` have the same meaning."""

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


class Turn(NamedTuple):
    """One message of a dialogue."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


@dataclass(frozen=True)
class Dialogue:
    """A prompt and the answer that a language model learns."""

    turns: tuple[Turn, ...]
    """The messages before the answer; empty if a plain text is learnt as a whole."""
    answer: str


@dataclass(frozen=True)
class DialogueSet:
    """Dialogues without labels; fields shared with `ImageSet` have the same meaning."""

    unit: ClassVar[str] = "dialogue"
    class_names: ClassVar[tuple[str, ...]] = ()
    """Always empty: dialogues have no classes."""
    name: str
    dialogues: tuple[Dialogue, ...]
    owners: NDArray[np.int64] | None
    owner_names: tuple[str, ...]
    is_test: NDArray[np.bool_] | None
    fingerprint: str
    notes: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    """(n,) the conversation of each answer, kept on one side of a split."""
    is_validation: NDArray[np.bool_] | None = None
    hashes: NDArray[np.uint64] | None = None
    """(n, 2) checksum of a dialogue, and of the dialogue without case and spaces."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n,) zeros: partitions treat all dialogues as one class."""
        return np.zeros(len(self.dialogues), dtype=np.int64)


ExampleSet = ImageSet | TextSet | DialogueSet


@dataclass(frozen=True)
class ClientData:
    """The examples of one client, as indices into an `ExampleSet`."""

    name: str
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class FederatedData:
    """Examples and their division among clients, a function of config and seed."""

    examples: ExampleSet
    clients: tuple[ClientData, ...]
    notes: tuple[str, ...] = ()
    """Remarks for the user, such as copies and clients that were left out."""


def all_images(client: ClientData) -> NDArray[np.int64]:
    """Indices of all images of a client, each once."""
    return np.unique(np.concatenate([client.train, client.validation, client.test]))
