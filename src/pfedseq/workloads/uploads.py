"""Examples sent to the service, and the reason if one is refused."""

from typing import Any, NamedTuple


class Upload(NamedTuple):
    """An uploaded example, checked but not decoded."""

    content: Any
    pixels: int = 0
    """The number of pixels of the decoded image."""


class Refused(Exception):
    """A refused upload: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
