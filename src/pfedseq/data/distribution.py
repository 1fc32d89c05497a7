"""Who has what, for people: counts of clients × classes, the paper's figure, and a record."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfedseq.data.dataset import ClientData, FederatedData
from pfedseq.errors import InputError

LARGEST_CIRCLE = 220.0
"""Area, in points squared, of the circle for the largest count."""


@dataclass(frozen=True)
class ClientRow:
    """One client's line in a table."""

    name: str
    train: int
    validation: int
    test: int
    class_counts: NDArray[np.int64]
    """(num_classes,) images of each class, all splits together."""

    @property
    def num_classes(self) -> int:
        """Classes of which this client has at least one image."""
        return int((self.class_counts > 0).sum())


def describe_data(data: FederatedData) -> tuple[ClientRow, ...]:
    """The clients × classes table, one row per client."""
    return tuple(
        ClientRow(
            name=client.name,
            train=len(client.train),
            validation=len(client.validation),
            test=len(client.test),
            class_counts=np.bincount(
                data.images.labels[all_images(client)], minlength=len(data.images.class_names)
            ),
        )
        for client in data.clients
    )


def all_images(client: ClientData) -> NDArray[np.int64]:
    """Indices of all images of a client."""
    return np.concatenate([client.train, client.validation, client.test])


def draw_distribution(data: FederatedData, path: Path) -> None:
    """The paper's data distribution figure as a PNG.

    Clients are on the x axis, classes on the y axis, and the area of a circle is the number of
    images.
    """
    rows = describe_data(data)
    counts = np.stack([row.class_counts for row in rows])  # (N, classes)
    num_clients, num_classes = counts.shape
    figure = Figure(
        figsize=(max(4.0, 1.6 + 0.42 * num_clients), min(12.0, max(3.2, 1.4 + 0.16 * num_classes))),
        layout="constrained",
    )
    axes = figure.add_subplot()
    clients, classes = np.nonzero(counts)
    present = counts[clients, classes]
    # Many classes leave little room per row, so the largest circle shrinks with them.
    area = LARGEST_CIRCLE * min(1.0, 25 / num_classes + 0.25)
    axes.scatter(clients, classes, s=area * present / present.max(), alpha=0.75, linewidths=0)
    axes.set_xticks(range(num_clients), [row.name for row in rows])
    axes.tick_params(axis="x", rotation=90 if max(len(row.name) for row in rows) > 3 else 0)
    if num_classes <= 60:
        axes.set_yticks(range(num_classes), data.images.class_names, fontsize=8)
    else:
        axes.set_ylabel("class")
    axes.set_xlabel("client")
    axes.set_xlim(-0.7, num_clients - 0.3)
    axes.set_ylim(-1.2, num_classes + 0.2)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    total = int(counts.sum())
    title = f"{data.images.name}: {total:,} images, largest circle {present.max():,}"
    axes.set_title(title, fontsize=10)
    _write(path, figure)


def _write(path: Path, figure: Figure) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            figure.savefig(file, format="png", dpi=130)
        temporary.replace(path)
    except OSError as fault:
        if temporary.exists():
            temporary.unlink()
        raise InputError(f"cannot write {path}: {fault.strerror}") from fault


def partition_record(data: FederatedData) -> str:
    """The division among clients as JSON text, to be saved with a run's results."""
    record = {
        "data": data.images.name,
        "num_images": len(data.images.labels),
        "clients": [
            {
                "name": client.name,
                "train": client.train.tolist(),
                "validation": client.validation.tolist(),
                "test": client.test.tolist(),
            }
            for client in data.clients
        ],
    }
    return json.dumps(record, separators=(",", ":")) + "\n"
