"""Keep memory that a pass through the backbone frees for the next pass, within bounds.

A pass frees its activations, some hundred megabytes. The GNU C library returns such blocks to the
system immediately, and a thread's own heap in pieces of 64 MB; the next pass gets new pages, with
one page fault per 4 kB. With ViT-Ti at 112 pixels and 64 images in a pass that took a quarter
of the processor's time.

Kept blocks of all sizes share one heap, which fragments: with thousands of clients it grows over
tens of rounds to several times what is in use. Between rounds, freed memory beyond a bound is
therefore returned to the system.
"""

import ctypes
import os
import sys
from pathlib import Path

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of malloc.h
KEPT = 2**30
"""Size in bytes up to which blocks come from the heap and its free end is kept."""
KEPT_BETWEEN_ROUNDS = 2**28
"""Bytes by which the process may grow before freed memory is returned."""


def keep_freed_memory() -> None:
    """Let this process keep freed memory; call it before starting threads that allocate.

    All threads share one heap: blocks of a pass are large and few. Does nothing with other C
    libraries, which have no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for setting, value in ((TRIM_THRESHOLD, KEPT), (MMAP_THRESHOLD, KEPT), (ARENA_MAX, 1)):
            mallopt(setting, value)


class FreedMemory:
    """Returns freed memory to the system when the process has grown much since the last time."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._trim = getattr(library, "malloc_trim", None)  # only the GNU C library has it
        self._least = _resident() if self._trim else 0
        """What the process held when it kept the least freed memory."""

    def release(self) -> None:
        """Call this between rounds; it takes microseconds unless there is something to return."""
        if self._trim is None:
            return
        held = _resident()
        if held > self._least + KEPT_BETWEEN_ROUNDS:
            self._trim(ctypes.c_size_t(0))
            held = self._least = _resident()
        self._least = min(held, self._least)


def _resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
