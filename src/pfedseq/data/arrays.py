"""Clients' examples passed from Python as arrays, lists or torch data sets.

`{"site_a": (x, y), "site_b": data_set}`: x are images (uint8, or floats in [0, 1]; channels first
or last; or PIL images) or texts; y are class numbers or names. A data set yields pairs (x, y).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ExampleSet, ImageSet, TextSet
from pfedseq.data.decode import decode
from pfedseq.data.duplicates import image_hashes
from pfedseq.data.text import text_hashes
from pfedseq.errors import InputError

NAME = "arrays"
"""`data.name` of images passed from Python."""
GIVEN_TEXTS = "given-texts"
"""`data.source` of texts passed from Python."""
_TAKEN_OVER = {
    *("image_size", "max_tokens", "train_fraction", "validation_fraction", "split"),
    *("max_images_per_client", "min_samples", "partition_seed", "store"),
}
"""Options of [data] that also apply to examples passed from Python."""

Given = Mapping[str, Any]
"""By client: a pair of examples and labels, or a data set."""


def section_for(data: Given, section: DataConfig) -> DataConfig:
    """The [data] section of a run on these examples."""
    if not isinstance(data, Mapping) or not data:
        raise InputError('data must name clients: {"site_a": (x, y), "site_b": (x, y)}')
    first = _pairs(*next(iter(data.items())))[0]
    texts = isinstance(first[0], str)
    name, source = ("text", GIVEN_TEXTS) if texts else (NAME, None)
    if section.name == name:
        kept = section.model_dump(exclude_unset=True)
    else:  # another data set's defaults do not apply here; explicit choices do
        kept = section.model_dump(include=_TAKEN_OVER - {"split"}, exclude_unset=True)
    return DataConfig(**{**kept, "name": name, "source": source, "partition": "owners"})


def are_given(section: DataConfig) -> bool:
    """Whether a run's examples were passed from Python and are stored nowhere."""
    return section.name == NAME or (section.source or "").endswith(GIVEN_TEXTS)


def examples_of(data: Given, section: DataConfig) -> ExampleSet:
    """The examples of all clients, with the client of each as its owner."""
    examples: list[Any] = []
    labels: list[Any] = []
    owners: list[int] = []
    for number, (client, given) in enumerate(data.items()):
        x, y = _pairs(client, given)
        examples += x
        labels += y
        owners += [number] * len(x)
    class_names, numbers = _classes(labels)
    common: dict[str, Any] = {
        "name": section.name if section.name == NAME else "texts",
        "labels": numbers,
        "class_names": class_names,
        "owners": np.array(owners, dtype=np.int64),
        "owner_names": tuple(map(str, data)),
        "is_test": None,
    }
    stratified = section.split == "stratified"
    if section.name == "text":
        if odd := [x for x in examples if not isinstance(x, str)]:
            raise InputError(f"the examples mix texts with {type(odd[0]).__name__}: use one kind")
        digest = hashlib.sha256(json.dumps(examples).encode()).hexdigest()
        hashes = text_hashes(examples) if stratified else None
        return TextSet(texts=tuple(examples), fingerprint=digest, hashes=hashes, **common)
    names = [
        f"image {place} of {client}"
        for client, count in zip(data, np.bincount(owners, minlength=len(data)), strict=True)
        for place in range(count)
    ]
    images = np.stack(
        [
            decode((name, pixels(one, name)), section.side, framing=section.framing).pixels
            for one, name in zip(examples, names, strict=True)
        ]
    )
    digest = hashlib.sha256(str(images.shape).encode() + images.tobytes()).hexdigest()
    hashes = image_hashes(images) if stratified else None
    return ImageSet(images=images, fingerprint=digest, hashes=hashes, **common)


def _pairs(client: str, given: Any) -> tuple[list[Any], list[Any]]:
    """A client's examples and labels, equally many."""
    if isinstance(given, tuple | list) and len(given) == 2:
        x, y = list(given[0]), list(given[1])
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        both = [given[place] for place in range(len(given))]
        if not all(isinstance(one, tuple | list) and len(one) == 2 for one in both):
            raise InputError(f"the data set of {client} does not yield pairs (example, label)")
        x, y = [one[0] for one in both], [one[1] for one in both]
    else:
        raise InputError(f"the data of {client} must be a pair (examples, labels) or a data set")
    if len(x) != len(y):
        raise InputError(f"{client} has {len(x)} examples and {len(y)} labels")
    if not x:
        raise InputError(f"{client} has no examples")
    return x, y


def pixels(image: Any, name: str) -> NDArray[np.uint8]:
    """An image as (height, width, 3) or (height, width): uint8."""
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))
    values = np.asarray(image.cpu() if hasattr(image, "cpu") else image)
    if values.ndim == 3 and values.shape[-1] not in (1, 3) and values.shape[0] in (1, 3):
        values = values.transpose(1, 2, 0)
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[-1] == 3):
        raise InputError(
            f"{name} has the shape {tuple(np.shape(image))}: an image is (height, width), or has "
            "three channels, first or last"
        )
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"{name} is {values.dtype}: images are uint8, or floats in [0, 1]")
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"{name} has values from {low:g} to {high:g}: floats must lie in [0, 1]; pass images "
            "without normalisation, which is applied for you"
        )
    return np.ascontiguousarray(np.rint(255 * values).astype(np.uint8))


def _classes(labels: Sequence[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Sorted class names, and the number of each label."""
    plain = [label.item() if hasattr(label, "item") else label for label in labels]
    if all(isinstance(label, str) for label in plain):
        keys: list[Any] = sorted(set(plain))
    elif all(isinstance(label, int) for label in plain):
        keys = sorted(set(map(int, plain)))
    else:
        kinds = sorted({type(label).__name__ for label in plain})
        raise InputError(f"labels must be all integers or all names; these are {kinds}")
    number = {key: place for place, key in enumerate(keys)}
    return tuple(map(str, keys)), np.array([number[label] for label in plain], dtype=np.int64)
