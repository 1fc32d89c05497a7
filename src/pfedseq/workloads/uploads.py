"""Why something that was sent to the service is not taken."""


class Refused(Exception):
    """An upload that is not taken: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
