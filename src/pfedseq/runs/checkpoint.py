"""A run's memory between rounds: one safetensors file, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.federation import Server, Tensors
from pfedseq.files import write_atomically


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def save_checkpoint(path: Path, t: int, server: Server, clients: Mapping[int, Tensors]) -> None:
    """Server and client memories after round t."""
    tensors = {f"server/{name}": value for name, value in server_state(server).items()}
    for i, state in clients.items():
        tensors |= {f"client/{i}/{name}": value for name, value in state.items()}
    # Copies: in process, clients may keep the very tensor that the server sent to all of them,
    # and safetensors refuses tensors that share their memory.
    plain = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    write_atomically(path, save(plain, metadata={"round": str(t)}))


def load_checkpoint(
    path: Path, server: Server, clients: dict[int, Tensors], device: torch.device
) -> int:
    """Restore what `save_checkpoint` wrote into a fresh server and states; returns its round."""
    memory: Tensors = {}
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            t = int(file.metadata()["round"])
            for name in file.keys():  # noqa: SIM118 (a safetensors handle is no mapping)
                side, rest = name.split("/", 1)
                if side == "server":
                    memory[rest] = file.get_tensor(name)
                else:
                    i, key = rest.split("/", 1)
                    clients[int(i)][key] = file.get_tensor(name)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as problem:
        raise InputError(
            f"checkpoint {path} is not readable ({problem}); delete it to start that method anew"
        ) from None
    restore_server(server, memory)
    return t


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
