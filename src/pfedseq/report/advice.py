"""Which methods suit a config's clients, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from pfedseq.experiments.advice import Advice, Situation, sentences
from pfedseq.methods import method_title
from pfedseq.report.console import console


def print_advice(situation: Situation, found: Sequence[Advice]) -> None:
    """Print the data's properties, the methods that suit them and why, and the next command."""
    for sentence in sentences(situation):
        console.print(f"- {sentence}", highlight=False)
    table = Table(title="Methods to try first", title_justify="left", show_lines=True)
    for heading in ("methods", "why", "by our own tables"):
        table.add_column(heading)
    for advice in found:
        titles = ", ".join(method_title(name) for name in advice.methods)
        table.add_row(titles, advice.reason, "yes" if advice.backed else "not yet")
    console.print(table)
    names = list(dict.fromkeys(name for advice in found for name in advice.methods))
    console.print(
        f"These are rules of thumb. Compare on your data: pfedseq compare CONFIG --methods "
        f"{','.join(names)}",
        highlight=False,
        soft_wrap=True,
    )
