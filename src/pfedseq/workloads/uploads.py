"""What was sent to the service, and why it is not taken."""

from typing import Any, NamedTuple


class Upload(NamedTuple):
    """An example that somebody sent, checked but not decoded."""

    content: Any
    pixels: int = 0
    """How many an image has once it is decoded."""


class Refused(Exception):
    """An upload that is not taken: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
