"""Memory that passes free is used again, in any thread."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, threading
import torch
from pfedseq.engines.heap import keep_freed_memory

keep_freed_memory()

def one_pass():
    torch.zeros(30, 2**18)
    [torch.zeros(2**20) for _ in range(20)]

def passes():
    for _ in range(3):
        one_pass()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        one_pass()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=passes)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of the GNU libc")
def test_a_pass_uses_the_memory_of_the_one_before() -> None:
    """Ten passes touch 280,000 pages, none of them anew (24,000 by the library's own settings).

    A system that takes idle pages from processes while they wait adds faults of its own now and
    then: the least of three counts is ours.
    """

    def faults() -> int:
        command = [sys.executable, "-c", FAULTS]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert any(faults() < 1_000 for _ in range(3))


RETURNED = """
import torch
from pfedseq.engines.heap import FreedMemory, _resident, keep_freed_memory

keep_freed_memory()
freed, pinned = FreedMemory(), []

def use(blocks):
    some = []
    for _ in range(blocks):  # of 16 MiB, each with a small one behind it that stays
        some.append(torch.ones(2**22))
        pinned.append(torch.ones(2**10))

for blocks in (10, 40, 40):
    use(blocks)
    held = _resident()
    freed.release()
    print(held // 2**20, _resident() // 2**20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others return memory themselves")
def test_much_freed_memory_is_returned_between_rounds_and_little_is_kept() -> None:
    """160 MiB are kept for the next round; 640 MiB in pieces are returned, again and again."""
    command = [sys.executable, "-c", RETURNED]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    few, many, again = (tuple(map(int, line.split())) for line in said.splitlines())
    assert few[0] - few[1] < 10
    for held, left in (many, again):
        assert held - left > 500
    assert again[1] - many[1] < 10, "what is in use is all that remains"
