"""Reads pickles of plain data without ever running them.

CIFAR's python archives and FedBN's split lists are pickles, and a pickle is a program: Python's own
unpickler calls whatever it names. This reader walks the opcodes with `pickletools`, which only
parses, and keeps its own stack. It builds lists, tuples, dicts, strings, bytes, numbers and NumPy
arrays; any other opcode, and any global that NumPy arrays do not need, is refused by name. A
`pickle.Unpickler` with a custom `find_class` would be half as long and equally safe from foreign
code, but a few bytes can make it allocate gigabytes: its memo is an array as long as the largest
index in the pickle.
"""

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.errors import InputError


class _Refused(Exception):
    """The pickle requires something that plain data never needs."""


@dataclass(frozen=True)
class _Global:
    """A name the pickle refers to; it is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _in_either_numpy(module: str, name: str) -> set[_Global]:
    return {_Global(f"numpy.{core}.{module}", name) for core in ("core", "_core")}


_RECONSTRUCT = _in_either_numpy("multiarray", "_reconstruct")
_SCALAR = _in_either_numpy("multiarray", "scalar")
_FROM_BUFFER = _in_either_numpy("numeric", "_frombuffer")
_NDARRAY = _Global("numpy", "ndarray")
_DTYPE = _Global("numpy", "dtype")
_ENCODE = _Global("_codecs", "encode")  # how protocols 0 to 2 write bytes
_NO_BYTES = {_Global("builtins", "bytes"), _Global("__builtin__", "bytes")}  # and empty ones
_KNOWN = {*_RECONSTRUCT, *_SCALAR, *_FROM_BUFFER, _NDARRAY, _DTYPE, _ENCODE, *_NO_BYTES}


class _Dtype:
    """A dtype under construction: `dtype("u1")`, then its state, which holds the byte order."""

    def __init__(self, kind_and_size: str) -> None:
        # Booleans, integers, floats, bytes and strings; no objects, no records.
        if kind_and_size[:1] not in tuple("biufSU") or not kind_and_size[1:].isdigit():
            raise _Refused(f"an array of dtype {kind_and_size!r}")
        self.value = np.dtype("<" + kind_and_size)

    def set_state(self, state: Any) -> None:
        _version, order, subdtype, names, fields, *_sizes = state
        if (subdtype, names, fields) != (None, None, None):
            raise _Refused("a structured array")
        if _text(order) == ">":
            self.value = self.value.newbyteorder(">")


class _Array:
    """An array under construction; `set_state` brings its shape, dtype and bytes."""

    def __init__(self) -> None:
        self.value: NDArray[Any] = np.zeros(0)

    def set_state(self, state: Any) -> None:
        _version, shape, dtype, fortran, raw = state
        self.fill(raw, dtype, shape, "F" if fortran else "C")

    def fill(self, raw: Any, dtype: Any, shape: Any, order: Any) -> None:
        flat = np.frombuffer(_bytes(raw), dtype=dtype.value)
        self.value = flat.reshape(shape, order=order)


def read_pickle(data: bytes, where: str) -> Any:
    """The plain data in a pickle; `where` names the file in error messages."""
    try:
        return _Reader().run(data)
    except _Refused as refusal:
        raise InputError(
            f"{where} is refused: it contains {refusal}; only lists, dicts, strings, numbers, "
            "bytes and NumPy arrays are read from pickles"
        ) from None
    except Exception as fault:  # a damaged pickle can go wrong at any opcode, in any way
        raise InputError(
            f"{where} is not a readable pickle: {fault or type(fault).__name__}"
        ) from fault


class _Reader:
    """The pickle machine: a stack, marks on it, and a memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _position in pickletools.genops(data):
            if opcode.name in _PUSH_ARGUMENT:
                self.stack.append(argument)
            elif opcode.name != "STOP":  # genops ends there
                self.step(opcode.name, argument)
        return _Finisher().finish(self.stack.pop())

    def step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self.memo[int(argument)] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(self.memo[int(argument)])
            case "MARK":
                self.marks.append(len(stack))
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items = self.since_mark()
                stack[-1].extend(items)
            case "SETITEM":
                key, value = self.top(2)
                stack[-1].update({key: value})
            case "SETITEMS":
                items = self.since_mark()
                stack[-1].update(_pairs(items))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "LIST":
                stack.append(self.since_mark())
            case "DICT":
                stack.append(_pairs(self.since_mark()))
            case "TUPLE":
                stack.append(tuple(self.since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self.top(int(opcode[-1]))))
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode == "NEWTRUE")
            case "GLOBAL":
                stack.append(_known_global(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(_known_global(*self.top(2)))
            case "REDUCE":
                stack.append(_call(*self.top(2)))
            case "BUILD":
                state = stack.pop()
                if not isinstance(stack[-1], _Array | _Dtype):
                    raise _Refused(f"state for an object of type {type(stack[-1]).__name__}")
                stack[-1].set_state(state)
            case "BYTEARRAY8":
                stack.append(bytes(argument))
            case "PROTO" | "FRAME":
                pass
            case _:
                raise _Refused(f"the opcode {opcode}")

    def since_mark(self) -> list[Any]:
        return self.top(len(self.stack) - self.marks.pop())

    def top(self, count: int) -> list[Any]:
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items


def _known_global(module: str, name: str) -> _Global:
    wanted = _Global(module, name)
    if wanted not in _KNOWN:
        raise _Refused(f"a reference to {wanted}")
    return wanted


def _call(function: Any, arguments: Any) -> Any:
    """The result of calling a known global, computed without calling it."""
    if function in _RECONSTRUCT and arguments[0] == _NDARRAY:
        return _Array()
    if function == _DTYPE:
        return _Dtype(_text(arguments[0]))
    if function in _SCALAR:
        return np.frombuffer(_bytes(arguments[1]), arguments[0].value)[0].item()
    if function in _FROM_BUFFER:
        array = _Array()
        array.fill(*arguments)
        return array
    if function in _NO_BYTES and not arguments:
        return b""
    if function == _ENCODE and arguments[1:] == ("latin1",):
        return arguments[0].encode("latin-1")
    raise _Refused(f"a call of {function}")


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _bytes(value: str | bytes) -> bytes:
    # Python 2 wrote an array's bytes as a string, which pickletools shows as latin-1 text.
    return value.encode("latin-1") if isinstance(value, str) else value


class _Finisher:
    """Replaces builders by finished arrays and accepts only plain data.

    Each container is visited once, however often the pickle refers to it, and one that contains
    itself is refused: a small pickle cannot make a huge or endless walk.
    """

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.open: set[int] = set()

    def finish(self, value: Any) -> Any:
        if value is None or isinstance(value, str | bytes | int | float):
            return value
        if isinstance(value, _Array):
            return value.value
        if not isinstance(value, list | tuple | dict):
            raise _Refused(
                f"a bare {value if isinstance(value, _Global) else type(value).__name__}"
            )
        if id(value) not in self.done:
            if id(value) in self.open:
                raise _Refused("a container that contains itself")
            self.open.add(id(value))
            if isinstance(value, dict):
                self.done[id(value)] = {self.finish(k): self.finish(v) for k, v in value.items()}
            else:
                self.done[id(value)] = type(value)(self.finish(item) for item in value)
            self.open.remove(id(value))
        return self.done[id(value)]


_PUSH_ARGUMENT = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
