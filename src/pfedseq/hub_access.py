"""The Hugging Face hub's own messages, turned into one sentence."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RETRY_WORDS = ("Retrying in", "thrown while requesting")


class _SayOnce(logging.Filter):
    """Replaces the client's two lines per attempt by one sentence for all attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(words in record.getMessage() for words in _RETRY_WORDS):
            return True
        if not self.said:
            self.said = True
            print(
                "pfedseq: the hub does not answer; trying again for half a minute", file=sys.stderr
            )
        return False


@contextmanager
def one_sentence_of_retries() -> Iterator[None]:
    """While this is open, an unreachable hub is spoken of once."""
    # Filters of a logger do not see its children's records; those of its handlers do.
    handlers = list(logging.getLogger("huggingface_hub").handlers)
    say_once = _SayOnce()
    for handler in handlers:
        handler.addFilter(say_once)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(say_once)
