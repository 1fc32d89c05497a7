"""The methods, each one file that reads like its algorithm box.

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
"""What the field has come up with beside and since."""

METHODS: Registry[Method] = Registry(
    "method",
    "pfedseq.methods",
    Method,
    [import_module(f"pfedseq.methods.{name}").METHOD for name in (*PAPER, *NEWER)],
)
"""Every method by name; those from outside come last."""

register = METHODS.register
find_method = METHODS.find


def method_title(name: str) -> str:
    """As tables write a method; the name of one that is not known here."""
    return METHODS[name].title if name in METHODS else name


def chosen(names: str) -> list[str]:
    """The methods of a comma-separated list, in which `paper`, `newer` and `all` are groups."""
    groups = {"paper": PAPER, "newer": NEWER, "all": tuple(METHODS)}
    listed = [word.strip() for word in names.split(",") if word.strip()]
    found = [one for word in listed for one in groups.get(word, (word,))]
    return [find_method(name).name for name in dict.fromkeys(found)]
