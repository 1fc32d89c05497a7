"""Access to the Hugging Face hub: whether it answers, and the remedy if it does not."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

SECONDS_TO_ANSWER = 3.0


def _remedy(download: str, option: str) -> str:
    return (
        f"run `hf download {download} --local-dir FOLDER` on a machine with network access and set "
        f"{option} to that folder, or set the variable HF_ENDPOINT to a mirror"
    )


REMEDY = _remedy("ID", "model.backbone")
DATA_REMEDY = _remedy("ID --repo-type dataset", "data.source")
_RETRY_WORDS = ("Retrying in", "thrown while requesting")


class _SayOnce(logging.Filter):
    """Replaces the hub client's two lines per attempt by one message for all attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(words in record.getMessage() for words in _RETRY_WORDS):
            return True
        if not self.said:
            self.said = True
            print("pfedseq: the hub does not answer; retrying for half a minute", file=sys.stderr)
        return False


def hub_answers() -> bool:
    """Whether the hub, or the configured proxy, accepts connections."""
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
    """Use only the hub's cache if the hub cannot be reached, instead of retrying for minutes.

    A hub that accepts connections but does not answer is reported once.
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
