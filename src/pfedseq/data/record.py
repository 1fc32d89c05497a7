"""A record of a run's images and partition, stored with its results and compared on resuming."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import FederatedData
from pfedseq.words import count

DataRecord = dict[str, Any]
"""The content of partition.json."""

SPLITS = {"train": "training", "validation": "validation", "test": "test"}


def data_record(data: FederatedData) -> DataRecord:
    """The images by checksum, the classes, and every client's images by index."""
    examples = data.examples
    return {
        "data": examples.name,
        "unit": examples.unit,
        "num_images": len(examples.labels),
        "images_sha256": examples.fingerprint,
        "labels_sha256": _sha256(examples.labels),
        "class_names": list(examples.class_names),
        "notes": list(examples.notes),
        "clients": [
            {
                "name": client.name,
                **{split: getattr(client, split).tolist() for split in SPLITS},
                "class_counts": {
                    split: np.bincount(
                        examples.labels[getattr(client, split)],
                        minlength=len(examples.class_names),
                    ).tolist()
                    for split in SPLITS
                },
            }
            for client in data.clients
        ],
    }


def train_count(client: Mapping[str, Any]) -> int:
    """|D_i| of a client in a record; only the count is known for a federation's site."""
    train = client["train"]
    return train if isinstance(train, int) else len(train)


def difference(then: DataRecord, now: DataRecord, *, division: bool = True) -> str | None:
    """The first difference, as the end of a sentence; None if the data are the same.

    Without `division` only the images are compared, not the partition.
    """
    unit = then.get("unit", "image")
    if then["num_images"] != now["num_images"]:
        return f"{count(then['num_images'], unit)} then, {now['num_images']:,} now"
    for key, sentence in (
        ("class_names", "the classes have different names"),
        ("labels_sha256", f"some {unit}s have a different label"),
        ("images_sha256", f"some {unit}s have changed"),
    ):
        if then.get(key) != now.get(key):
            return sentence
    return _other_division(then["clients"], now["clients"], unit) if division else None


def _other_division(then: list[Any], now: list[Any], unit: str) -> str | None:
    names_then, names_now = ([client["name"] for client in clients] for clients in (then, now))
    for gone in sorted(set(names_then) - set(names_now)):
        return f"the client {gone} is gone"
    for new in sorted(set(names_now) - set(names_then)):
        return f"the client {new} is new"
    for before, after in zip(then, now, strict=True):
        for split, called in SPLITS.items():
            if before[split] != after[split]:
                return f"the client {before['name']} has different {called} {unit}s"
    return None


def _sha256(values: NDArray[np.int64]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").tobytes()).hexdigest()
