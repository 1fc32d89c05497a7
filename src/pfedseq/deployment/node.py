"""A site's node: takes the server's messages from the SuperLink and answers them in this process.

It replaces `flower-supernode` and uses the same fleet interface, with one difference: it never
fetches, installs or runs an app. A message can only request what the installed pfedseq offers,
whoever sent it. PyTorch, backbone and data stay in memory between messages, so an answer takes no
longer than its computation.

It uses parts of flwr that are not public, so pyproject.toml pins flwr's minor version.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from pfedseq.deployment.envelope import Envelope
from pfedseq.errors import InputError

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two polls for a message: short after a message, longer when idle."""
REJOIN_SECONDS = 5.0
"""Pause before a site that lost its connection joins again."""
JOINED = "has joined the federation"
"""Part of the message that a node prints once the SuperLink has admitted it."""

Answering = Callable[[Envelope], Envelope]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Link:
    """The connection settings for the SuperLink."""

    address: str
    """HOST:PORT."""
    root_certificates: Path | None
    """The certificate of the authority behind the SuperLink's; None: no TLS."""
    key: Path | None
    """The site's private key in OpenSSH's format; None: a new, unregistered one."""

    def connect(self) -> Any:
        """A context manager that joins the SuperLink, and leaves it at the end."""
        host, colon, port = self.address.rpartition(":")
        if not colon or not host or not port.isdigit():
            raise InputError(f"--superlink {self.address} must be HOST:PORT")
        if self.key is not None and self.root_certificates is None:
            raise InputError("a site's key needs TLS: set --root-certificates as well")
        return http_request_response(
            self.address,
            self.root_certificates is None,
            None if self.root_certificates is None else read_file(self.root_certificates),
            None if self.key is None else read_key(self.key),
        )


def read_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """A site's private and public key."""
    try:
        key = load_ssh_private_key(read_file(path), None)
    except (ValueError, UnsupportedAlgorithm) as problem:
        raise InputError(f"{path} is not a private key in OpenSSH's format: {problem}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"{path} is not an elliptic-curve key: create one with pfedseq flower keys"
        )
    return key, key.public_key()


def read_file(path: Path) -> bytes:
    """The content of a file that the operator named."""
    try:
        return path.expanduser().read_bytes()
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None


def run_node(link: Link, name: str, answer: Answering, tell: Tell) -> None:
    """Answer the server's messages until the process is stopped.

    If messages cannot be received or delivered, the site leaves and joins again; the server then
    resends the messages that the site has not answered.
    """
    while True:
        with link.connect() as connection:
            tell(f"site {name} {JOINED} at {link.address} as node {connection[0]}")
            try:
                _answer_all(connection, answer, tell)
            except Exception as problem:  # Flower's connection would end the process silently
                if not isinstance(problem, httpx.HTTPError):
                    traceback.print_exc()
                tell(f"the connection failed ({_in_short(problem)}): joining again")
        time.sleep(REJOIN_SECONDS)


def _answer_all(connection: Any, answer: Answering, tell: Tell) -> NoReturn:
    _, receive, send, _, _, pull_object, push_object, confirm = connection
    pause = SHORTEST_PAUSE
    while True:
        received = receive()
        if received is None:
            time.sleep(pause)
            pause = min(1.2 * pause, LONGEST_PAUSE)
            continue
        pause = SHORTEST_PAUSE
        head, tree = received
        run = head.metadata.run_id
        with contextlib.suppress(RunNotRunningException):  # the run no longer waits for it
            message = pull_and_inflate_object_from_tree(
                tree, partial(pull_object, run), partial(confirm, run), return_type=Message
            )
            message.metadata.__dict__["_message_id"] = tree.object_id
            start = time.perf_counter()
            reply = answered(message, answer, tell)
            _send(reply, run, time.perf_counter() - start, send, push_object)


def _in_short(problem: Exception) -> str:
    """The first line of an error message; httpx appends a link about status codes."""
    return (str(problem).splitlines() or [""])[0] or type(problem).__name__


def answered(message: Message, answer: Answering, tell: Tell) -> Message:
    """The reply to a message, or the reason why it cannot be answered."""
    round_, kind = message.metadata.group_id, message.metadata.message_type
    tell(f"round {round_}: asked to {kind}")
    try:
        content = answer(Envelope.of_records(message.content)).to_records()
    except InputError as problem:
        tell(f"round {round_}: not answered: {problem}")
        reason = str(problem)
    except Exception as problem:  # reported to the server; the node continues with the next
        traceback.print_exc()
        reason = f"{type(problem).__name__}: {problem}"
    else:
        tell(f"round {round_}: answered {kind}")
        return Message(content, reply_to=message)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _send(reply: Message, run: int, seconds: float, send: Any, push_object: Any) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        wanted, session = send(reply, get_object_tree(reply), seconds)
        objects = get_all_nested_objects(reply)
        push_objects(objects, partial(push_object, run, session), object_ids_to_push=wanted)
