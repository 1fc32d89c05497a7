"""The Hugging Face hub: is it there, and what to do where it is not."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

SECONDS_TO_ANSWER = 3.0
REMEDY = (
    "fetch it where there is a network, `hf download ID --local-dir FOLDER` (data sets: "
    "--repo-type dataset), and name the folder, or set HF_ENDPOINT to a mirror"
)

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


def hub_answers() -> bool:
    """Whether something listens where the hub, or the proxy before it, should be."""
    from huggingface_hub import constants

    proxy = next((os.environ[k] for k in ("HTTPS_PROXY", "https_proxy") if os.environ.get(k)), "")
    place = urlsplit(proxy or constants.ENDPOINT)
    port = place.port or (80 if place.scheme == "http" else 443)
    try:
        with socket.create_connection((place.hostname or "", port), SECONDS_TO_ANSWER):
            return True
    except OSError:
        return False


@contextmanager
def without_waiting() -> Iterator[None]:
    """Where the hub cannot be reached, look into its cache alone, instead of trying for minutes.

    One that is there and does not answer is spoken of once.
    """
    from huggingface_hub import constants

    asked = constants.HF_HUB_OFFLINE
    if not asked and not hub_answers():
        constants.HF_HUB_OFFLINE = True
    # Filters of a logger do not see its children's records; those of its handlers do.
    handlers, say_once = list(logging.getLogger("huggingface_hub").handlers), _SayOnce()
    for handler in handlers:
        handler.addFilter(say_once)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = asked
        for handler in handlers:
            handler.removeFilter(say_once)
