"""Endless notes of made-up measurements in made-up notations, for the demo's language model."""

from __future__ import annotations

import random

CONSONANTS, VOWELS = "bcdfghjklmnprstvwxz", "aeiouy"
SEPARATORS = (": ", " : ", " = ", "=", " ", " - ", ", ", "; ")
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"), ('"', '"'), ("|", "|"))


def draw(rng: random.Random) -> tuple[str, str]:
    """A prompt and the note that answers it; a reader of the prompt cannot know the notation."""
    name, value = _name(rng), _value(rng)
    return f"{name} {value}", _noted(name, value, rng)


def _name(rng: random.Random) -> str:
    return " ".join(_word(rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))


def _word(rng: random.Random) -> str:
    letters = [rng.choice(VOWELS if k % 2 else CONSONANTS) for k in range(rng.randint(2, 7))]
    if rng.random() < 0.5:
        letters.insert(rng.randrange(len(letters)), rng.choice(CONSONANTS + VOWELS))
    return "".join(letters)


def _value(rng: random.Random) -> str:
    value = 10 ** rng.uniform(-1, 3.2)
    return f"{value:.{rng.randint(2, 4)}g}" if value < 99 else f"{value:.{rng.randint(0, 1)}f}"


def _noted(name: str, value: str, rng: random.Random) -> str:
    name = rng.choice((name, name, name.capitalize(), name.upper()))
    value = rng.choice((value, value.replace(".", ",")))
    (open_, close), between = rng.choice(BRACKETS), rng.choice(SEPARATORS)
    return rng.choice(
        (
            f"{name}{between}{value}",
            f"{open_}{value}{close} {name}",
            f"{name}{between}{open_}{value}{close}",
            f"{open_}{name}{between}{value}{close}",
            f"<{name}>{value}</{name}>",
            f'{{"{name}": {value}}}',
        )
    )
