"""Memory that a pass through the backbone frees is kept for the next pass.

A pass frees its activations, some hundred megabytes. The GNU C library hands such blocks back to
the system at once, and a thread's own heap in pieces of 64 MB; the next pass is given empty pages
again, one page fault for every 4 kB. With ViT-Ti at 112 pixels and 64 images in a pass that took a
quarter of the processor's time.
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of malloc.h
KEPT = 2**30
"""Bytes up to which a block comes from the heap, and the heap's free end is not given back."""


def keep_freed_memory() -> None:
    """Let this process keep what it frees; to be called before it starts threads that allocate.

    All threads share one heap: blocks of a pass are large and few. Other C libraries, which have no
    such settings, are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for setting, value in ((TRIM_THRESHOLD, KEPT), (MMAP_THRESHOLD, KEPT), (ARENA_MAX, 1)):
            mallopt(setting, value)
