"""Pictures of a run, drawn from its folder."""

from __future__ import annotations

import io

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pfedseq.files import write_atomically
from pfedseq.methods import METHODS
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import evaluated


def draw_curves(folder: RunFolder) -> None:
    """Test accuracy by round: the mean over clients solid, the worst client dotted."""
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for name, rounds_of_method in folder.by_method().items():
        rows = evaluated(rounds_of_method)
        rounds = [t for t, _ in rows]
        mean = [100 * scores.client_mean for _, scores in rows]
        (line,) = axes.plot(
            rounds,
            mean,
            label=f"{METHODS[name].title}  {mean[-1]:.1f} %",
            linewidth=2.2 if name == "pfedseq" else 1.5,
            zorder=3 if name == "pfedseq" else 2,
            marker="o" if len(rows) == 1 else None,
        )
        worst = [100 * scores.worst_client for _, scores in rows]
        axes.plot(rounds, worst, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xlabel("communication round")
    axes.set_ylabel("test accuracy (%)")
    axes.set_title("Learning curves: mean over clients (solid), worst client (dotted)", fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    figure.legend(title="mean, last round", frameon=False, loc="outside right upper")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(folder.curves, buffer.getvalue())
