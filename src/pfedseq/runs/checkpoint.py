"""A run's memory between rounds: the last two checkpoints of a method, each complete in itself.

Checkpoints go to two slots in turn. A slot is a folder with a manifest and the parts that it names:
every large tensor is a part of its own, and what is small is one part for the server and one for
each client. A part is a safetensors file named by the SHA-256 of its content, so unchanged parts
are not written again, and corruption on disk is detected. The manifest is replaced last: until then
the slot is the previous checkpoint. The slots share no file, so damage to one leaves the other
intact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from pfedseq.engines.states import ClientStates, TrackedStates, encode_state
from pfedseq.errors import InputError
from pfedseq.federation import Server, Tensors
from pfedseq.federation.server import LENGTHS_KEPT
from pfedseq.files import remove_temporaries, sync_folder, write_atomically
from pfedseq.runs.identity import MadeWith, difference

LARGE_BYTES = 2**16
"""Tensors of at least this size in bytes get their own file."""

_MANIFEST = "manifest.json"
_SERVER = "server"
_ONLY = "tensor"
"""The name of a large tensor in its file: constant, so that a tensor that moves within the history
keeps its content."""


class DamagedError(Exception):
    """A slot holds no usable checkpoint; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a manifest."""

    round: int
    made_with: MadeWith
    owners: dict[str, dict[str, Any]]
    """By `server` or a client's number: the digest of its `small` part (null without one), and of
    each of its `large` tensors by name."""

    def digests(self) -> set[str]:
        """The digests of all its parts."""
        parts: set[str] = set()
        for owner in self.owners.values():
            parts |= {*owner["large"].values(), *([owner["small"]] if owner["small"] else [])}
        return parts

    def to_json(self) -> str:
        """The manifest as JSON, with a checksum."""
        body = {"round": self.round, "made_with": dict(self.made_with), "owners": self.owners}
        return json.dumps({"sha256": _body_digest(body), **body}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Checkpoint:
        """Read what `to_json` wrote; raises `DamagedError` for anything else."""
        try:
            body = json.loads(text)
            digest = body.pop("sha256")
            if digest != _body_digest(body):
                raise DamagedError("its manifest's checksum is wrong")
            checkpoint = cls(int(body["round"]), dict(body["made_with"]), dict(body["owners"]))
            checkpoint.digests()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DamagedError("its manifest is not readable") from None
        return checkpoint


class Slot:
    """A folder that holds one checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = folder / _MANIFEST
        self._last: Checkpoint | None = None
        """The manifest that this process last wrote or read here."""
        self._unsaved: set[str] = set()
        """Owners that have changed since."""
        self._whole: set[str] = set()
        """Parts that this process has written or verified."""

    def exists(self) -> bool:
        """Whether a checkpoint was ever written here."""
        return self._manifest.exists()

    def read(self) -> Checkpoint:
        """Read the manifest; raises `DamagedError`."""
        try:
            return Checkpoint.from_json(self._manifest.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as problem:
            raise DamagedError(f"its manifest is not readable ({problem})") from None

    def changed(self, owner: str) -> None:
        """Mark an owner's state in this slot as outdated."""
        self._unsaved.add(owner)

    def write(
        self, t: int, made_with: MadeWith, everyone: Iterable[str], state: Callable[[str], Tensors]
    ) -> None:
        """Replace the checkpoint; `state` is asked only for owners that changed."""
        before = self._last.owners if self._last else {}
        owners = {
            owner: self._store(state(owner))
            if owner in self._unsaved or owner not in before
            else before[owner]
            for owner in everyone
        }
        checkpoint = Checkpoint(t, made_with, owners)
        write_atomically(self._manifest, checkpoint.to_json(), private=True)
        sync_folder(self.folder)
        self._last = checkpoint
        self._unsaved.clear()
        self._drop_unused(checkpoint.digests())

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise `DamagedError` if a part is missing or altered."""
        for digest in checkpoint.digests():
            self._part(digest)

    def load(self, checkpoint: Checkpoint, device: torch.device) -> Iterator[tuple[str, Tensors]]:
        """Every owner's tensors, one owner at a time."""
        for owner, parts in checkpoint.owners.items():
            tensors = self._part(parts["small"]) if parts["small"] else {}
            for name, digest in parts["large"].items():
                tensors[name] = self._part(digest)[_ONLY]
            # Copy: operations on unaligned tensors may round differently.
            yield owner, {n: tensor.to(device, copy=True) for n, tensor in tensors.items()}
        self._last = checkpoint

    def clear(self) -> None:
        """Remove the slot's content, so that nothing damaged is reused."""
        self._manifest.unlink(missing_ok=True)
        self._last = None
        self._drop_unused(set())

    def _store(self, tensors: Tensors) -> dict[str, Any]:
        small: Tensors = {}
        large: dict[str, str] = {}
        for name, tensor in tensors.items():
            if tensor.numel() * tensor.element_size() >= LARGE_BYTES:
                large[name] = self._write_part({_ONLY: tensor})
            else:
                small[name] = tensor
        return {"small": self._write_part(small) if small else None, "large": large}

    def _write_part(self, tensors: Tensors) -> str:
        content = encode_state(tensors)
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._whole:
            write_atomically(self._file(digest), content, private=True)
            self._whole.add(digest)
        return digest

    def _part(self, digest: str) -> Tensors:
        path = self._file(digest)
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise DamagedError(f"the checksum of {path.name} is wrong")
            self._whole.add(digest)
            return dict(sorted(load(content).items()))  # safetensors does not keep the order
        except (OSError, SafetensorError) as problem:
            raise DamagedError(f"{path.name} is not readable ({problem})") from None

    def _file(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    def _drop_unused(self, used: set[str]) -> None:
        if self.folder.is_dir():
            remove_temporaries(self.folder)
            for path in self.folder.glob("*.safetensors"):
                if path.stem not in used:
                    path.unlink()
        self._whole &= used


class Checkpoints:
    """The last two checkpoints of a method: of its server, and of its clients through `states`."""

    def __init__(self, folder: Path, states: ClientStates, made_with: MadeWith) -> None:
        self.folder, self.made_with = folder, made_with
        self.states = TrackedStates(states)
        """The engine's store, which records the clients that changed."""
        self._remembering: set[int] = set()
        """The clients with a stored state."""
        self._slots = _slots(folder)
        """The next slot to be written comes first."""

    def save(self, t: int, server: Server) -> None:
        """Save the server's and the clients' states after round t."""
        memory = server_state(server)
        for folder in (self.folder.parent, self.folder):  # they contain the clients' updates
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        self._remembering |= self.states.changed
        for slot in self._slots:
            for owner in (_SERVER, *map(str, self.states.changed)):
                slot.changed(owner)
        self.states.changed.clear()
        self._slots[0].write(
            t,
            self.made_with,
            [_SERVER, *map(str, sorted(self._remembering))],
            lambda owner: memory if owner == _SERVER else self.states.get(int(owner)),
        )
        self._slots.reverse()

    def load(self, server: Server, device: torch.device, tell: Callable[[str], None]) -> int:
        """Restore the newest intact checkpoint; return its round, or 0 if there is none."""
        faults: list[str] = []
        for slot, checkpoint in self._newest_first(faults):
            if changed := difference(checkpoint.made_with, self.made_with):
                raise InputError(
                    f"the checkpoint in {self.folder} does not belong to this run ({changed}): "
                    "restore the former setup, or delete that folder to restart the method"
                )
            try:
                slot.check(checkpoint)
            except DamagedError as problem:
                faults.append(f"that of round {checkpoint.round}: {problem}")
                slot.clear()
                continue
            self._restore(server, slot.load(checkpoint, device))
            if faults:
                tell(
                    f"a checkpoint in {self.folder} is damaged ({'; '.join(faults)}); continuing "
                    f"from the one of round {checkpoint.round}"
                )
            if slot is self._slots[0]:
                self._slots.reverse()
            return checkpoint.round
        if faults:
            raise InputError(
                f"no checkpoint in {self.folder} is readable ({'; '.join(faults)}); delete that "
                "folder to restart the method"
            )
        return 0

    def _restore(self, server: Server, memories: Iterable[tuple[str, Tensors]]) -> None:
        try:
            for owner, tensors in memories:
                if owner == _SERVER:
                    restore_server(server, tensors)
                else:
                    self.states.put(int(owner), tensors)
        except (KeyError, ValueError, TypeError, RuntimeError) as problem:
            raise InputError(
                f"the checkpoint in {self.folder} holds other tensors than this method's "
                f"({problem}); delete that folder to restart the method"
            ) from None
        self._remembering |= self.states.changed
        self.states.changed.clear()

    def _newest_first(self, faults: list[str]) -> list[tuple[Slot, Checkpoint]]:
        """The slots with intact manifests; problems of the others are added to `faults`."""
        found: list[tuple[Slot, Checkpoint]] = []
        for slot in self._slots:
            if slot.exists():
                try:
                    found.append((slot, slot.read()))
                except DamagedError as problem:
                    faults.append(str(problem))
        return sorted(found, key=lambda entry: -entry[1].round)


def newest_server(folder: Path) -> tuple[Checkpoint, Tensors] | None:
    """The server's state in the newest intact checkpoint, read-only; None if there is none.

    Safe while the run is in progress.
    """
    slots = [slot for slot in _slots(folder) if slot.exists()]
    whole: list[tuple[Checkpoint, Tensors]] = []
    for slot in slots:
        try:
            checkpoint = slot.read()
            memories = slot.load(checkpoint, torch.device("cpu"))
            whole += [(checkpoint, tensors) for owner, tensors in memories if owner == _SERVER]
        except DamagedError:
            continue  # the other slot may be intact
    if slots and not whole:
        raise InputError(f"no checkpoint in {folder} is readable")
    return max(whole, key=lambda entry: entry[0].round, default=None)


def _slots(folder: Path) -> list[Slot]:
    return [Slot(folder / name) for name in ("a", "b")]


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def server_state(server: Server) -> Tensors:
    """All tensors named in `Server.persistent`, and the clients of the places."""
    setup = server.setup
    seats = {
        "clients": torch.tensor(setup.clients),
        "num_examples": torch.tensor(setup.num_examples),
        "silent_rounds": server.silent_rounds,
        "update_lengths": server.update_lengths,
        "places": torch.zeros(setup.width, dtype=torch.uint8),  # an integer has no fixed width
    }
    memory = {name: getattr(server, name) for name in server.persistent}
    return dict(_flat({"seats": seats, "moments": server.moments, **memory}))


def restore_server(server: Server, memory: Tensors, only: Sequence[str] | None = None) -> None:
    """Restore what `server_state` saved: all persistent attributes, or `only` some."""
    _restore_seats(server, memory)
    for name in only or (*server.persistent, "moments"):
        value = getattr(server, name)
        mine = {k[len(name) + 1 :]: v for k, v in memory.items() if k.startswith(f"{name}/")}
        if isinstance(value, torch.optim.Optimizer):
            value.load_state_dict(
                {"state": _nested(mine), "param_groups": value.state_dict()["param_groups"]}
            )
        elif isinstance(value, _Stateful):
            value.load_state_dict(mine)
        else:
            saved = memory[name]
            if (saved.shape, saved.dtype) != (value.shape, value.dtype):
                raise ValueError(f"{name} has shape {tuple(saved.shape)}, not {tuple(value.shape)}")
            setattr(server, name, saved)


def _restore_seats(server: Server, memory: Tensors) -> None:
    """Restore the server's clients; without a record, all clients are members."""
    seats = {k.removeprefix("seats/"): v for k, v in memory.items() if k.startswith("seats/")}
    if not seats:
        return
    numbers, sizes, silent = (
        seats[name].tolist() for name in ("clients", "num_examples", "silent_rounds")
    )
    most, setup, lengths = len(seats["places"]), server.setup, seats["update_lengths"]
    if len(silent) != len(numbers) or len({*numbers}) != len(numbers) or len(numbers) > most:
        raise ValueError("clients and places do not match")
    if lengths.shape != (len(numbers), LENGTHS_KEPT) or lengths.dtype != torch.float64:
        raise ValueError("lengths of updates and places do not match")
    if not bool(((lengths >= 0) & lengths.isfinite()).all()):
        raise ValueError("an update has an impossible length")
    if min(*numbers, *sizes, *silent) < 0:
        raise ValueError("a negative number of a client, of examples or of rounds")
    if (*numbers, most) != (*setup.clients, setup.width):
        server.setup = replace(setup, num_examples=(), numbers=(), most_clients=most)
        server.reseat((), dict(zip(numbers, sizes, strict=True)))
    server.silent_rounds, server.update_lengths = torch.tensor(silent), lengths


def _flat(named: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in named.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, torch.optim.Optimizer):  # its groups come from the config
            yield from _flat(value.state_dict()["state"], f"{prefix}{name}/")
        elif isinstance(value, _Stateful):
            yield from _flat(value.state_dict(), f"{prefix}{name}/")
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            raise TypeError(f"{prefix}{name} is a {type(value).__name__}; only tensors are saved")


def _nested(flat: Tensors) -> dict[int, dict[str, Tensor]]:
    nested: dict[int, dict[str, Tensor]] = {}
    for name, value in flat.items():
        index, key = name.split("/")
        nested.setdefault(int(index), {})[key] = value
    return nested
