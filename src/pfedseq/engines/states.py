"""Clients' states between calls, kept by the engine in memory or on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from pfedseq.errors import InputError
from pfedseq.federation import Tensors
from pfedseq.files import write_atomically


class ClientStates(Protocol):
    """States by client; a client that was never stored has an empty one."""

    def get(self, i: int) -> Tensors:
        """A copy of the dict; changes take effect with `put`."""

    def put(self, i: int, state: Tensors) -> None:
        """Store the state of client i."""


class MemoryStates:
    """Clients' states in this process's memory."""

    def __init__(self) -> None:
        self._states: dict[int, Tensors] = {}

    def get(self, i: int) -> Tensors:
        """Client i's state; the tensors are shared, the dict is a copy."""
        return dict(self._states.get(i, {}))

    def put(self, i: int, state: Tensors) -> None:
        """Store the state of client i."""
        if state or i in self._states:
            self._states[i] = dict(state)


class DiskStates:
    """One safetensors file per client, for federations larger than memory.

    Files of an earlier process are not read: a run continues from its checkpoint, and whatever a
    killed process wrote after that is discarded.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder, self.device = folder, device
        self._present: set[int] = set()

    def get(self, i: int) -> Tensors:
        """Read the client's file."""
        if i not in self._present:
            return {}
        try:
            tensors: Tensors = load_file(self._file(i), device=str(self.device))
        except (SafetensorError, OSError) as problem:
            raise InputError(
                f"the memory of client {i} in {self._file(i)} is not readable ({problem}); "
                f"continue from the last checkpoint with `pfedseq resume`"
            ) from None
        return tensors

    def put(self, i: int, state: Tensors) -> None:
        """Replace the client's file."""
        if state or i in self._present:
            write_atomically(self._file(i), encode_state(state))
            self._present.add(i)

    def discard(self) -> None:
        """Remove the files."""
        for i in self._present:
            self._file(i).unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
        self._present.clear()

    def _file(self, i: int) -> Path:
        return self.folder / f"{i}.safetensors"


class TrackedStates:
    """Wraps another store and records which clients were stored since `changed` was cleared."""

    def __init__(self, states: ClientStates) -> None:
        self._states = states
        self.changed: set[int] = set()

    def get(self, i: int) -> Tensors:
        """Return the client's state from the wrapped store."""
        return self._states.get(i)

    def put(self, i: int, state: Tensors) -> None:
        """Store the state and record the client."""
        self._states.put(i, state)
        self.changed.add(i)


def encode_state(state: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as safetensors bytes.

    Copies them first: clients may share the tensor that the server sent to all, and safetensors
    refuses tensors that share memory.
    """
    plain = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
    }
    return save(plain, metadata=metadata)
