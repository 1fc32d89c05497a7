"""`pfedseq report`: one HTML page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedseq.cli.options import Plugins, load_plugins


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Folders of runs, comparisons or reproduced tables."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html in the first folder.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    plugin: Plugins = None,
) -> None:
    """Write one self-contained HTML page with tables, curves, clients, costs and calibrations.

    It opens from disk without a network. An unfinished run is shown up to its last evaluation.

    Examples:

    - `pfedseq report runs/demo-20250101-120000`

    - `pfedseq report runs/compare-demo --out demo.html`
    """
    from pfedseq.report.console import console
    from pfedseq.report.page import write_page
    from pfedseq.words import size

    load_plugins(plugin)
    page = out or folders[0] / "report.html"
    write_page(folders, page, title)
    console.print(f"{page}  [dim]{size(page.stat().st_size)}[/dim]", soft_wrap=True)
