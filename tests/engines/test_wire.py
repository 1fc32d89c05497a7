"""Messages as bytes: exact, and refused when damaged."""

from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfedseq.engines.wire import decode, encode
from pfedseq.errors import InputError

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


def test_infinite_metrics_are_refused():
    with pytest.raises(InputError, match="infinite"):
        decode(encode({}, {"loss": float("inf")}))
