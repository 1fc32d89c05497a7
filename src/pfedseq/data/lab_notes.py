"""A small data set for language models: eight clients write measurements in different notations.

The measurements are from scikit-learn's wines. A prompt names a measurement and its value; the
answer is the client's note of it, in a notation that all its notes share and no prompt reveals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import Dialogue, DialogueSet, Turn
from pfedseq.data.dialogue import OwnedDialogue, dialogue_set
from pfedseq.seeding import derive_seed

Notation = Callable[[str, str], str]
"""(measurement, value) ↦ the note."""

NOTATIONS: dict[str, Notation] = {
    "alsace": lambda name, value: f"{name} : {value.replace('.', ',')}",
    "baden": lambda name, value: f"{name.capitalize()} = {value.replace('.', ',')}",
    "cahors": lambda name, value: f"[{value.replace('.', ',')}] {name}",
    "douro": lambda name, value: f"{name.upper()} = {value}",
    "emilia": lambda name, value: f"{name.upper()}: [{value}]",
    "friuli": lambda name, value: f"<{name}>{value}</{name}>",
    "graves": lambda name, value: f"({name} {value})",
    "hawke": lambda name, value: f'{{"{name}": {value}}}',
}
"""By client. Some share a habit: the decimal comma, capitals, the equals sign, brackets."""
NOTES_PER_CLIENT = 120


def lab_notes() -> DialogueSet:
    """The notes of all clients; every client has different wines."""
    measured = list(measurements("wine"))
    order = np.random.RandomState(derive_seed(0, "lab notes") % 2**32).permutation(len(measured))
    found = []
    for place, client in enumerate(NOTATIONS):
        own = order[place * NOTES_PER_CLIENT : (place + 1) * NOTES_PER_CLIENT]
        for name, value in (measured[number] for number in own.tolist()):
            found.append(OwnedDialogue(note(name, value, NOTATIONS[client]), client))
    return dialogue_set("lab_notes", found)


def note(name: str, value: str, notation: Notation) -> Dialogue:
    """The prompt for one measurement, with the client's note as the answer."""
    return Dialogue((Turn("user", f"{name} {value}"),), notation(name, value))


def measurements(table: str) -> Iterator[tuple[str, str]]:
    """The distinct pairs (measurement, value) in one of scikit-learn's tables."""
    from sklearn import datasets  # slow to import, and rarely needed

    found = getattr(datasets, f"load_{table}")()
    rows: NDArray[np.float64] = found.data
    seen = dict.fromkeys(
        (name.replace("_", " ").split("/")[0], f"{value:.4g}")
        for row in rows
        for name, value in zip(found.feature_names, row.tolist(), strict=True)
    )
    yield from seen
