"""Sphinx over the Markdown pages: `make docs` builds docs/_build/html."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from generate import write_pages  # noqa: E402

import pfedseq  # noqa: E402

project = "pfedseq"
author = "The pfedseq authors"
copyright = author
version = release = pfedseq.__version__

extensions = ["myst_nb"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # a slow test executes the notebooks; the pages show what is committed
suppress_warnings = ["mystnb.unknown_mime_type"]
exclude_patterns = ["_build"]
nitpicky = True
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"pfedseq {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]

write_pages(HERE / "reference" / "generated")
