"""Working memory that the process keeps between calls of compiled programs."""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import Any

from invert._private.backends import has_started

# What glibc's `malloc.h` calls them, with their values: not to take large blocks from the system
# by themselves, not to give the end of the heap back, and one heap for all threads, since those of
# threads are given back whatever else is set.
_SETTINGS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_ARENA_MAX": (-8, 1)}

_kept = False


def keep_memory() -> bool:
    """Have the process keep its memory, so that compiled programs on large batches run faster.

    On Linux, XLA takes its working memory from the system in each call, and the system clears it
    page by page, which takes up to a fifth of the time. After this call, memory that was freed is
    used again. The process then holds as much as its largest call took. Call it before JAX
    computes anything: the heaps of threads that run already stay as they are.

    **Returns:** whether memory is kept. It is not where the C library is not glibc (macOS, Windows,
    Alpine Linux), nor where JAX has started before, which a warning says.

    ??? example

        ```python
        import invert

        invert.keep_memory()
        module = invert.load("saved_model", config=invert.Config(optimize="cpu"))
        ```
    """
    global _kept
    if _kept:
        return True
    # Other C libraries have a `mallopt` that takes other numbers, or ignores them.
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    if has_started():
        warnings.warn(
            "JAX has already started, and memory of its threads cannot be kept; call"
            " invert.keep_memory() before JAX computes anything",
            stacklevel=2,
        )
        return False
    _kept = all(library.mallopt(*setting) for setting in _SETTINGS.values())
    return _kept
