"""The methods, each one file that reads like its algorithm box.

To add one: write `methods/yours.py` with a `METHOD` at its end and name it in `_MODULES`; or keep
it in a file of your own and `register` it.
"""

from difflib import get_close_matches
from importlib import import_module

from pfedseq.errors import InputError
from pfedseq.federation import Method

_MODULES = (
    "pfedseq",
    "local",
    "fedavg",
    "per_fedavg",
    "pfedme",
    "apple",
    "fedala",
    "fedrep",
    "ditto",
    "perada",
    "pfedhn",
    "pfedla",
    "pefll",
)

METHODS: dict[str, Method] = {
    name: import_module(f"pfedseq.methods.{name}").METHOD for name in _MODULES
}
"""Every method by name, in the order of the tables."""


def register(method: Method) -> None:
    """Make a method of your own known by its name, in this process."""
    if METHODS.setdefault(method.name, method) is not method:
        raise InputError(f"there is already a method {method.name!r}; choose another name")


def find_method(name: str) -> Method:
    """The method of that name, or an error that names the nearest."""
    if name in METHODS:
        return METHODS[name]
    near = get_close_matches(name.lower(), METHODS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f": known are {', '.join(METHODS)}"
    raise InputError(f"there is no method {name!r}{hint}")
