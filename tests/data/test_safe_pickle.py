import contextlib
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from pfedseq.data.safe_pickle import read_pickle
from pfedseq.errors import InputError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(value=plain, protocol=st.integers(0, 5))
def test_plain_data_comes_back_in_every_protocol(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol), "here") == value


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["clipart/whale/1.jpg", "é"]),
        np.array([1, 2], dtype=">i4"),
        np.zeros((0, 3), dtype=np.float32),
        np.array([True, False]),
        np.array([b"ab", b"c"]),
    ],
    ids=["bytes", "fortran", "strings", "big-endian", "empty", "bools", "byte-strings"],
)
def test_arrays_come_back_in_every_protocol(array, protocol):
    back = read_pickle(pickle.dumps({"data": array}, protocol), "here")["data"]
    assert_array_equal(back, array)
    assert back.dtype == array.dtype


def test_numpy_numbers_and_shared_references_come_back():
    shared = [1, 2]
    value = {"a": shared, "b": shared, "n": np.int64(7), "x": np.float32(0.5)}
    assert read_pickle(pickle.dumps(value, 4), "here") == {
        "a": [1, 2],
        "b": [1, 2],
        "n": 7,
        "x": 0.5,
    }


def test_a_python_2_batch_is_read_as_cifars_are():
    """Protocol 2 as Python 2 wrote it: str for keys and for the array's bytes."""
    batch = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n"
        b"q\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01"
        b"\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x04\x00\xff\x80"
        b"\x01tbU\x0bfine_labels]q\x08(K\x05K\x07eu."
    )
    back = read_pickle(batch, "train")
    assert_array_equal(back["data"], np.array([[0, 255], [128, 1]], dtype=np.uint8))
    assert back["fine_labels"] == [5, 7]


class Calls:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Plain:
    pass


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (Calls(os.system, "touch {marker}"), r"posix\.system|nt\.system"),
        (Calls(eval, "open('{marker}', 'w')"), r"(builtins|__builtin__)\.eval"),
        (Calls(np.load, "{marker}"), r"numpy\.load"),
        (Plain(), r"_reconstructor|copyreg|Plain|NEWOBJ"),
        ({1, 2}, r"set|EMPTY_SET"),
        (np.array([{}], dtype=object), "dtype 'O8'|a bare"),
        (np.zeros(2, dtype=[("a", "i4")]), "dtype 'V4'|structured"),
        (np.dtype("i4"), "_Dtype"),
        (os.system, r"posix\.system|nt\.system"),
    ],
    ids=["system", "eval", "load", "object", "set", "objects", "record", "dtype", "global"],
)
def test_anything_else_is_refused_by_name_and_not_run(thing, name, protocol, tmp_path):
    marker = tmp_path / "marker"
    if isinstance(thing, Calls):
        function, arguments = thing.call
        thing = Calls(function, *(a.format(marker=marker) for a in arguments))
    with pytest.raises(InputError, match=rf"list\.pkl is refused: it contains .*({name})"):
        read_pickle(pickle.dumps([thing], protocol), "list.pkl")
    assert not marker.exists()


def test_small_pickles_cannot_make_endless_walks():
    ring = []
    ring.append(ring)
    with pytest.raises(InputError, match="contains itself"):
        read_pickle(pickle.dumps(ring), "here")
    tower = []
    for _ in range(60):
        tower = [tower] * 10
    deep = read_pickle(pickle.dumps(tower), "here")
    for _ in range(60):
        assert len(deep) == 10
        deep = deep[0]


def test_state_cannot_be_given_to_anything_but_an_array():
    with pytest.raises(InputError, match="state for an object of type _Global"):
        read_pickle(b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.", "here")


@pytest.mark.parametrize("broken", [b"", b"\x80\x04", b"hello", b"\x80\x02].]", b"\x80\x02a."])
def test_damage_is_one_sentence(broken):
    if broken == b"\x80\x02].]":
        assert read_pickle(broken, "here") == []  # bytes after STOP are never looked at
        return
    with pytest.raises(InputError, match=r"cut\.pkl is not a readable pickle"):
        read_pickle(broken, "cut.pkl")


@settings(max_examples=100, deadline=None)
@given(cut=st.floats(0, 1), flip=st.integers(0, 255), at=st.floats(0, 0.999))
def test_any_damage_gives_data_or_an_input_error(cut, flip, at):
    whole = bytearray(pickle.dumps([np.arange(5), {"a": "b" * 10}, 1.5], 4))
    whole[int(at * len(whole))] ^= flip
    with contextlib.suppress(InputError):
        read_pickle(bytes(whole[: int(cut * len(whole)) or 1]), "here")
