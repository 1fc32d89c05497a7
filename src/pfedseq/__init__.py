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
    from pfedseq.api import resume, run
    from pfedseq.config import Config, load_config, load_plugin, make_config
    from pfedseq.methods import register

__version__ = "0.1.0"

__all__ = [
    "Config",
    "InputError",
    "load_config",
    "load_plugin",
    "make_config",
    "register",
    "resume",
    "run",
]

_LAZY = {
    "Config": "pfedseq.config",
    "load_config": "pfedseq.config",
    "load_plugin": "pfedseq.config",
    "make_config": "pfedseq.config",
    "register": "pfedseq.methods",
    "resume": "pfedseq.api",
    "run": "pfedseq.api",
}


def __getattr__(name: str) -> Any:
    """Import PyTorch and friends only when they are asked for: `--help` stays instant."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'pfedseq' has no attribute {name!r}")
