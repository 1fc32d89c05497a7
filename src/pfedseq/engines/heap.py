"""Keep memory that a pass through the backbone frees for the next pass.

A pass frees its activations, some hundred megabytes. The GNU C library returns such blocks to the
system immediately, and a thread's own heap in pieces of 64 MB; the next pass gets new pages, with
one page fault per 4 kB. With ViT-Ti at 112 pixels and 64 images in a pass that took a quarter
of the processor's time.
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of malloc.h
KEPT = 2**30
"""Size in bytes up to which blocks come from the heap and its free end is kept."""


def keep_freed_memory() -> None:
    """Let this process keep freed memory; call it before starting threads that allocate.

    All threads share one heap: blocks of a pass are large and few. Does nothing with other C
    libraries, which have no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for setting, value in ((TRIM_THRESHOLD, KEPT), (MMAP_THRESHOLD, KEPT), (ARENA_MAX, 1)):
            mallopt(setting, value)
