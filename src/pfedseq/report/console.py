"""The one console that progress and tables are printed to."""

from rich.console import Console

console = Console()
