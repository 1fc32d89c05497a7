"""Broken files get a clear error, never a traceback; `tests.faults.fuzz` has the long version."""

import sys
from contextlib import suppress

import pytest
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults import fuzz

if not sys.platform.startswith("linux"):
    pytest.skip("holds memory by /proc and counts seconds by SIGALRM", allow_module_level=True)

NAMES = ["config", "message", "checkpoint", "adapter", "image", "archive", "pickle", "run folder"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        yield fuzz.targets(tmp_path_factory.mktemp("fuzz"))


def test_every_target_is_tried(found):
    assert list(found) == NAMES


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_broken_input_is_read_or_refused(found, name):
    few = 120 if name in ("adapter", "checkpoint", "run folder") else 500

    @settings(max_examples=few, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**32))
    def attack(seed):
        assert fuzz.attack(found[name], seed) in ("read", "refused")

    attack()


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused_as_a_message_an_image_or_a_pickle(content):
    from pfedseq.data.decode import decode
    from pfedseq.data.safe_pickle import read_pickle
    from pfedseq.engines.wire import decode as decode_message
    from pfedseq.errors import InputError

    for read in (
        decode_message,
        lambda data: decode(("x", data), 8),
        lambda data: read_pickle(data, "x"),
    ):
        with suppress(InputError):
            read(content)
