"""The methods, one file each; a file reads like the paper's algorithm box.

To add one: write `methods/yours.py` with a `METHOD` at its end and name it in `NEWER`; or keep it
outside, in a file (`--plugin FILE`) or in a package with an entry point of `pfedseq.methods`.
"""

from importlib import import_module

from pfedseq.federation import Method
from pfedseq.plugins import Registry

PAPER = (
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
"""The paper's thirteen, in the order of the tables."""
NEWER: tuple[str, ...] = (
    "fedprox",
    "scaffold",
    "fedavgm",
    "fedadam",
    "ghbm",
    "fedrod",
    "fedsa_lora",
    "ffa_lora",
    "flexlora",
    "feddpa",
    "fedalt",
    "floral",
)
"""Other methods of the field, classical and newer."""

METHODS: Registry[Method] = Registry(
    "method",
    "pfedseq.methods",
    Method,
    [import_module(f"pfedseq.methods.{name}").METHOD for name in (*PAPER, *NEWER)],
)
"""Every method by name; plug-ins come last."""

register = METHODS.register
find_method = METHODS.find


def method_title(name: str) -> str:
    """The method's title in tables; the plain name if the method is not registered."""
    return METHODS[name].title if name in METHODS else name


def chosen(names: str) -> list[str]:
    """Parse a comma-separated list of methods, in which `paper`, `newer` and `all` are groups."""
    groups = {"paper": PAPER, "newer": NEWER, "all": tuple(METHODS)}
    listed = [word.strip() for word in names.split(",") if word.strip()]
    found = [one for word in listed for one in groups.get(word, (word,))]
    return [find_method(name).name for name in dict.fromkeys(found)]
