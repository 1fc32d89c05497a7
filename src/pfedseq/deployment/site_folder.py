"""A client's site: one message, answered by a client that is rebuilt from the site's folder.

The folder is the site's own. It holds the client's memory (its head, whatever its method keeps),
written whole or not at all under the round and the exchange that it belongs to: a message that
comes twice is answered twice alike, and a server that goes back to its last checkpoint finds the
memory of then.
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
    """What a site needs to answer: the client's half of the method, its data, its backbone."""

    client: type[Client]
    config: MethodConfig
    site: Site
    device: torch.device
    backbone: str
    """Checksum of the frozen weights, where the site is asked who it is."""
    version: str
    """Of pfedseq."""
    payload: PayloadKind = "float32"
    """How tensors are sent up."""
    privacy: Privacy | None = None
    """What is done to updates before they leave."""


Equip = Callable[[Request, Path], Equipment]
"""Makes a site's equipment for a request; the folder is where its personal model goes."""


class SiteFolder:
    """What a site keeps between messages, runs and restarts; nobody else reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as problem:
            raise InputError(f"cannot make the site's folder {path}: {problem.strerror}") from None

    def identity(self) -> str:
        """A number drawn when the folder was first used."""
        file = self.path / "identity"
        with only_one_process(file):
            if not file.exists():
                write_atomically(file, uuid.uuid4().hex + "\n")
            return file.read_text(encoding="utf-8").strip()

    def secret(self) -> bytes:
        """Random bytes that never leave the site: what its noise is drawn from."""
        file = self.path / "noise.key"
        with only_one_process(file):
            if not file.exists():
                write_atomically(file, os.urandom(32), private=True)
            return file.read_bytes()

    def run(self, run: str, method: str) -> Path:
        """Where all of one method of one run lies; a name out of a message leads nowhere else."""
        for part in (run, method):
            if not part or not all(c.isalnum() or c in "-_" for c in part):
                raise InputError(f"the server's message names a run or method {part!r}: refused")
        return self.path / run / method

    def memory(self, run: str, method: str) -> SiteMemory:
        """The client's memory in one method of one run."""
        return SiteMemory(self.run(run, method) / "memory")


class SiteMemory:
    """A client's memory after each exchange that changed it, as far back as it may be needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, version: Version, device: torch.device) -> Tensors:
        """The newest memory that is older than `version`; empty where there is none."""
        older = [v for v in self._versions() if v < version]
        if not older:
            return {}
        file = self._file(older[-1])
        try:
            tensors: Tensors = load_file(file, device=str(device))
        except (SafetensorError, OSError) as problem:
            raise InputError(
                f"the client's memory in {file} is not readable ({problem}); restore it from a "
                "backup, or delete it to go on from an older one"
            ) from None
        return tensors

    def check(self, remembered: str) -> None:
        """Refuse to go on from a memory that is not the one the server knows of."""
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
                f"its memory of round {version[0]} is not what it was ({file} has another "
                f"checksum): {advice}"
            )

    def put(self, version: Version, state: Tensors, kept: int) -> str:
        """Keep `state`, and forget what came after it and what nobody can come back to.

        Gives the stamp of what is kept.

        The server may come back to the end of round `kept`, so the newest memory up to there
        stays, and all since.
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

    Where evaluation and training come together and the training fails, the evaluation is sent
    alone: the server then asks for the training by itself, and is told what is wrong with it.
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
    """The client's reply, and the stamp of its memory where that changed."""
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
