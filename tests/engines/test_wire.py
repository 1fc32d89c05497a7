"""Messages as bytes: exact, and refused when damaged."""

import json
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfedseq.engines.local import LocalClients
from pfedseq.engines.wire import WireClients, decode, encode
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply
from tests.toys import quadratic_federation, random_centers

names = st.text("abc_/0", min_size=1, max_size=6)


@given(
    shapes=st.dictionaries(names, st.lists(st.integers(0, 3), max_size=3), max_size=3),
    metrics=st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)
def test_round_trip(shapes, metrics):
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    back = decode(encode(tensors, metrics))
    assert back.metrics == metrics
    assert back.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back.tensors[name], tensor)


@given(cut=st.integers(0, 100), flip=st.integers(0, 60))
def test_damaged_bytes_give_a_sentence_or_the_tensor_never_a_crash(cut, flip):
    message = bytearray(encode({"delta": torch.ones(4)}, {"loss": 1.0}))
    if flip < len(message):
        message[flip] ^= 0x40
    damaged = bytes(message[: max(0, len(message) - cut)])
    with suppress(InputError):
        decode(damaged)


def test_views_arrive_whole():
    theta = torch.arange(12.0).view(3, 4)
    back = decode(encode({"row": theta[1], "column": theta[:, 2]})).tensors
    assert back["row"].tolist() == [4, 5, 6, 7]
    assert back["column"].tolist() == [2, 6, 10]
    there = decode(encode({"row": theta[1]}), torch.device("meta")).tensors
    assert there["row"].device.type == "meta"


def test_infinite_metrics_are_refused():
    with pytest.raises(InputError, match="infinite"):
        decode(encode({}, {"loss": float("inf")}))


@pytest.mark.parametrize("said", ["[" * 100_000, '{"loss": 1' + "0" * 400 + "}", "5", "null"])
def test_headers_that_are_meant_to_break_the_reader_are_refused(said):
    header = json.dumps({"__metadata__": {"metrics": said}}).encode()
    with pytest.raises(InputError, match="is not readable"):
        decode(len(header).to_bytes(8, "little") + header)


class Echo(Client):
    """Replies with the strides of what it received and of what it kept."""

    def train(self, down):
        kept = self.state.get("kept", down["theta"])
        self.state["kept"] = down["theta"].T
        strides = torch.tensor([*down["theta"].stride(), *kept.stride()])
        return Reply({"strides": strides})

    def personal(self, down):
        raise NotImplementedError


@pytest.mark.parametrize("engine", [LocalClients, WireClients])
def test_messages_and_memory_are_contiguous_on_every_engine(engine):
    """The same numbers in another layout may be rounded differently: engines must not differ."""
    sites = quadratic_federation(random_centers(1), (1,))
    clients = engine(Echo, MethodConfig(), sites)
    strided = torch.arange(6.0).view(2, 3).T
    for _ in range(2):
        reply = clients.call("train", 1, {0: {"theta": strided}})[0]
    assert reply.tensors["strides"].tolist() == [2, 1, 3, 1]
