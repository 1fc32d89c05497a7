"""The console for progress and tables."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

console = Console()


def plain_table() -> Table:
    """A compact table without cell borders."""
    return Table(box=SIMPLE, padding=0, collapse_padding=True)
