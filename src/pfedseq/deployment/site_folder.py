"""A site's folder, from which the client is rebuilt to answer each message.

The folder belongs to the site. It contains the client's memory (its head, and whatever its method
keeps), written atomically under the round and exchange that it belongs to. A repeated message thus
gets the same answer, and a server that returns to its last checkpoint finds the memory of that
time.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.ledger import Version, read_stamp, stamp
from pfedseq.deployment.messages import Card, Request, joined
from pfedseq.engines.answer import answer
from pfedseq.engines.payload import PayloadKind
from pfedseq.engines.privacy import Privacy
from pfedseq.engines.states import encode_state
from pfedseq.engines.wire import decode
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply, Site, Tensors
from pfedseq.files import only_one_process, write_atomically

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Equipment:
    """Everything a site needs to answer: the client's half of the method, data and backbone."""

    client: type[Client]
    config: MethodConfig
    site: Site
    device: torch.device
    backbone: str
    """Checksum of the frozen weights; set for `hello`."""
    version: str
    """The version of pfedseq."""
    payload: PayloadKind = "float32"
    """The encoding of tensors sent to the server."""
    privacy: Privacy | None = None
    """Clipping and noise for updates before they are sent."""


Equip = Callable[[Request, Path], Equipment]
"""Creates a site's equipment for a request, given the folder for its personal model."""


class SiteFolder:
    """A site's private storage, kept between messages, runs and restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as problem:
            raise InputError(
                f"cannot create the site's folder {path}: {problem.strerror}"
            ) from None

    def identity(self) -> str:
        """An identifier drawn when the folder is first used."""
        file = self.path / "identity"
        with only_one_process(file):
            if not file.exists():
                write_atomically(file, uuid.uuid4().hex + "\n")
            return file.read_text(encoding="utf-8").strip()

    def secret(self) -> bytes:
        """Random bytes that never leave the site, the seed of its noise."""
        file = self.path / "noise.key"
        with only_one_process(file):
            if not file.exists():
                write_atomically(file, os.urandom(32), private=True)
            return file.read_bytes()

    def run(self, run: str, method: str) -> Path:
        """The folder of one method of one run; refuses names that point elsewhere."""
        for part in (run, method):
            if not part or not all(c.isalnum() or c in "-_" for c in part):
                raise InputError(
                    f"the server's message is refused: it names a run or method {part!r}"
                )
        return self.path / run / method

    def memory(self, run: str, method: str) -> SiteMemory:
        """The client's memory in one method of one run."""
        return SiteMemory(self.run(run, method) / "memory")


class SiteMemory:
    """A client's memory after each exchange that changed it, as far back as needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, version: Version, device: torch.device) -> Tensors:
        """The newest memory older than `version`; {} if there is none."""
        older = [v for v in self._versions() if v < version]
        if not older:
            return {}
        file = self._file(older[-1])
        try:
            tensors: Tensors = load_file(file, device=str(device))
        except (SafetensorError, OSError) as problem:
            raise InputError(
                f"the client's memory in {file} is not readable ({problem}); restore it from a "
                "backup, or delete it to continue from an older one"
            ) from None
        return tensors

    def check(self, remembered: str) -> None:
        """Refuse to continue from a memory other than the one the server recorded."""
        if not remembered:
            return
        version, checksum = read_stamp(remembered)
        file = self._file(version)
        advice = (
            "restore the site's folder from a backup, or let the operator accept the loss by the "
            "site's name (pfedseq flower resume OUT --accept NAME)"
        )
        try:
            content = file.read_bytes()
        except OSError as problem:
            raise InputError(
                f"its memory of round {version[0]} is lost ({file}: {problem.strerror}): {advice}"
            ) from None
        if hashlib.sha256(content).hexdigest() != checksum:
            raise InputError(
                f"its memory of round {version[0]} has changed ({file} has another "
                f"checksum): {advice}"
            )

    def put(self, version: Version, state: Tensors, kept: int) -> str:
        """Store `state`, and delete later memories and those no longer needed; returns its stamp.

        The server may return to the end of round `kept`, so the newest memory up to that point and
        all later ones are kept.
        """
        content = encode_state(state)
        write_atomically(self._file(version), content)
        versions = self._versions()
        needed = max((v for v in versions if v[0] <= kept), default=(0, 0))
        for other in versions:
            if other < needed or other > version:
                self._file(other).unlink(missing_ok=True)
        return stamp(version, hashlib.sha256(content).hexdigest())

    def _versions(self) -> list[Version]:
        if not self.folder.is_dir():
            return []
        stems = [file.stem for file in self.folder.glob("[0-9]*.safetensors")]
        return sorted((int(t), int(k)) for t, _, k in (stem.partition("-") for stem in stems))

    def _file(self, version: Version) -> Path:
        return self.folder / f"{version[0]:06d}-{int(version[1]):03d}.safetensors"


def answer_envelope(envelope: Envelope, name: str, folder: SiteFolder, equip: Equip) -> Envelope:
    """A site's reply to one request.

    If a request asks for evaluation and training and the training fails, the reply contains the
    evaluation alone; the server then requests the training separately and receives the reason.
    """
    request, payload = Request.of(envelope), envelope.payload
    memory = folder.memory(request.run, request.method)

    def step(request: Request) -> tuple[Reply, Card]:
        start = time.perf_counter()
        tools = equip(request, folder.run(request.run, request.method))
        reply, remembered = _answered(request, payload, tools, memory)
        spent = {f"{request.step}_seconds": time.perf_counter() - start}
        card = Card(name, folder.identity(), tools.backbone, tools.version, remembered)
        return Reply(reply.tensors, reply.metrics | spent), card

    if not request.evaluated:
        reply, mine = step(request)
        return mine.envelope(reply)
    scores, mine = step(replace(request, step="evaluate", round=request.evaluated))
    trained: Reply | None = None
    try:
        trained, mine = step(request)
    except InputError as problem:
        log.warning("round %d, %s: %s", request.round, request.step, problem)
    return mine.envelope(joined(scores, trained))


def _answered(
    request: Request, payload: bytes, tools: Equipment, memory: SiteMemory
) -> tuple[Reply, str]:
    """The client's reply, and the stamp of its memory ('' if unchanged)."""
    reading = request.step in tools.client.reading_steps
    version: Version = (request.round, math.inf if reading else request.exchange)
    down = decode(payload, tools.device).tensors
    with only_one_process(memory.folder):
        memory.check(request.remembered)
        state = memory.before(version, tools.device)
        reply = answer(
            tools.client,
            tools.config,
            tools.site,
            state,
            request.step,
            request.round,
            request.client,
            down,
            tools.payload,
            tools.privacy,
        )
        if reading:
            return reply, ""
        return reply, memory.put(version, state, request.kept)
