"""A run's memory between rounds: safetensors files, of which only what changed is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from pfedseq.engines.states import ClientStates, TrackedStates, encode_state
from pfedseq.errors import InputError
from pfedseq.federation import Server, Tensors
from pfedseq.files import write_atomically


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Checkpoint:
    """One method's memory: the server's in the file `path`, each client's in a file of its own.

    A client's file is written when its memory has changed, under a name with the round in it. The
    server's names the clients' files that belong to it and is replaced last: what a process leaves
    behind that is killed at any moment is the whole of one checkpoint, the new or the former.
    """

    def __init__(self, path: Path, states: ClientStates) -> None:
        self.path, self.states = path, TrackedStates(states)
        self._folder = path.with_suffix("")
        self._files: dict[int, str] = {}

    def exists(self) -> bool:
        """Whether there is something to go on from."""
        return self.path.exists()

    def save(self, t: int, server: Server) -> None:
        """Server and client memories after round t."""
        for i in sorted(self.states.changed):
            state = self.states.get(i)
            if state or i in self._files:
                self._files[i] = f"{i}.{t}.safetensors"
                write_atomically(self._folder / self._files[i], encode_state(state))
        described = {"round": str(t), "clients": json.dumps(self._files)}
        write_atomically(self.path, encode_state(server_state(server), described))
        self.states.changed.clear()
        self._sweep()

    def load(self, server: Server, device: torch.device) -> int:
        """Restore what `save` wrote into a fresh server and states; returns its round."""
        path = self.path
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                about = file.metadata()
                t, files = int(about["round"]), json.loads(about["clients"])
                memory = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self._files = {int(i): str(name) for i, name in files.items()}
            for i, name in self._files.items():
                path = self._folder / name
                self.states.put(i, load_file(path, device=str(device)))
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as fault:
            raise InputError(
                f"checkpoint {path} is not readable ({fault}); delete {self.path} to start that "
                "method anew"
            ) from None
        self.states.changed.clear()
        restore_server(server, memory)
        return t

    def _sweep(self) -> None:
        """Remove what belongs to no checkpoint any more."""
        if self._folder.is_dir():
            for file in self._folder.iterdir():
                if file.name not in self._files.values():
                    file.unlink()


def server_state(server: Server) -> Tensors:
    """All tensors behind the names in `Server.persistent`."""
    return dict(_flat({name: getattr(server, name) for name in server.persistent}))


def restore_server(server: Server, memory: Tensors) -> None:
    """Put what `server_state` gave back in its place."""
    for name in server.persistent:
        value = getattr(server, name)
        mine = {k[len(name) + 1 :]: v for k, v in memory.items() if k.startswith(f"{name}/")}
        if isinstance(value, torch.optim.Optimizer):
            value.load_state_dict(
                {"state": _nested(mine), "param_groups": value.state_dict()["param_groups"]}
            )
        elif isinstance(value, _Stateful):
            value.load_state_dict(mine)
        elif name in memory:
            setattr(server, name, memory[name])
        else:
            raise InputError(f"the checkpoint lacks the server's {name!r}")


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
