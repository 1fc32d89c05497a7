"""pfedseq: a foundation model tuned for each of many parties, without sharing data.

import pfedseq

config = pfedseq.load_config("demo", ["run.rounds=10"])
summary = pfedseq.run(config, "runs/my-first")
print(summary.methods["pfedseq"].client_mean)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pfedseq.errors import InputError

if TYPE_CHECKING:
    from pfedseq.api import Run, open_run, resume, run
    from pfedseq.config import Config, load_config, load_plugin, make_config
    from pfedseq.measures import Measure, register_measure
    from pfedseq.methods import register

__version__ = "0.1.0"

__all__ = [
    "Config",
    "InputError",
    "Measure",
    "Run",
    "load_config",
    "load_plugin",
    "make_config",
    "open_run",
    "register",
    "register_measure",
    "resume",
    "run",
]

_LAZY = {
    "Config": "pfedseq.config",
    "load_config": "pfedseq.config",
    "load_plugin": "pfedseq.config",
    "make_config": "pfedseq.config",
    "Measure": "pfedseq.measures",
    "Run": "pfedseq.api",
    "open_run": "pfedseq.api",
    "register": "pfedseq.methods",
    "register_measure": "pfedseq.measures",
    "resume": "pfedseq.api",
    "run": "pfedseq.api",
}


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    """Import PyTorch and friends only when they are asked for: `--help` stays instant."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'pfedseq' has no attribute {name!r}")
