"""Data distribution per client: counts of clients × classes, and the paper's figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfedseq.data.dataset import FederatedData, all_images
from pfedseq.drawing import can_be_drawn, fonts_for, labels, save_picture, set_title
from pfedseq.words import count, some

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
                data.examples.labels[all_images(client)], minlength=len(data.examples.class_names)
            ),
        )
        for client in data.clients
    )


def draw_distribution(data: FederatedData, path: Path) -> None:
    """The paper's data distribution figure.

    Clients are on the x axis, classes on the y axis, and the area of a circle is the number of
    images.
    """
    rows = describe_data(data)
    counts = np.stack([row.class_counts for row in rows])  # (N, classes)
    num_clients, num_classes = counts.shape
    size = (max(6.0, 1.6 + 0.42 * num_clients), min(12.0, max(3.2, 1.6 + 0.16 * num_classes)))
    client_names, class_names = (
        labels([row.name for row in rows]),
        labels(data.examples.class_names),
    )
    with fonts_for([*client_names, *class_names, data.examples.name]):
        figure = Figure(figsize=size, dpi=130, layout="constrained")
        axes = figure.add_subplot()
        clients, classes = np.nonzero(counts)
        present = counts[clients, classes]
        # Many classes leave little room per row, so the largest circle shrinks with them.
        area = LARGEST_CIRCLE * min(1.0, 25 / num_classes + 0.25)
        axes.scatter(clients, classes, s=area * present / present.max(), alpha=0.75, linewidths=0)
        axes.set_xticks(range(num_clients), client_names)
        axes.tick_params(axis="x", rotation=90 if _crowded(client_names, size[0]) else 0)
        if num_classes <= 60:
            axes.set_yticks(range(num_classes), class_names, fontsize=8)
        else:
            axes.set_ylabel("class")
        axes.set_xlabel("client")
        axes.set_xlim(-0.7, num_clients - 0.3)
        axes.set_ylim(-1.2, num_classes + 0.2)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.set_axisbelow(True)
        total = count(int(counts.sum()), data.examples.unit)
        called = data.examples.name if can_be_drawn(data.examples.name) else "data"
        set_title(figure, f"{called}: {total}, largest circle {present.max():,}")
        save_picture(figure, path)


def undrawable(data: FederatedData) -> list[str]:
    """Notes about names that no installed font can draw and that the figure replaces by numbers."""
    names = [*(client.name for client in data.clients), *data.examples.class_names]
    missing = [name for name in names if not can_be_drawn(name)]
    if not missing:
        return []
    return [
        f"no installed font can draw {some(missing)}: the figure numbers them from #0; install a "
        "font such as Noto Sans"
    ]


def _crowded(names: Sequence[str], width: float) -> bool:
    """Whether adjacent names would overlap."""
    return max(map(len, names)) * 0.1 > 0.75 * width / len(names)
