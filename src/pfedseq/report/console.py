"""The one console that progress and tables are printed to."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

console = Console()


def plain_table() -> Table:
    """A table without lines between its cells, as narrow as can be."""
    return Table(box=SIMPLE, padding=0, collapse_padding=True)
