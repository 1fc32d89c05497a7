"""The learning curves of a run as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pfedseq.files import write_atomically
from pfedseq.methods import METHODS
from pfedseq.metrics import RoundRecord


def draw_curves(records: Mapping[str, Sequence[RoundRecord]], path: Path) -> None:
    """Client-mean test accuracy by round, a band from the worst client to the best."""
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for name, rows in records.items():
        rounds = [row["round"] for row in rows]
        mean = [100 * row["client_mean"] for row in rows]
        (line,) = axes.plot(
            rounds,
            mean,
            label=f"{METHODS[name].title}  {mean[-1]:.1f} %",
            linewidth=2.2 if name == "pfedseq" else 1.5,
            zorder=3 if name == "pfedseq" else 2,
            marker="o" if len(rows) == 1 else None,
        )
        worst = [100 * min(row["test_accuracy"]) for row in rows]
        best = [100 * max(row["test_accuracy"]) for row in rows]
        axes.fill_between(rounds, worst, best, color=line.get_color(), alpha=0.08, linewidth=0)
    axes.set_xlabel("communication round")
    axes.set_ylabel("test accuracy, mean over clients (%)")
    axes.set_title("Learning curves (band: worst to best client)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(title="method, last round", frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())
