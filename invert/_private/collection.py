"""The garbage collector during work that keeps most of the objects it makes."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# New objects between two collections: Python's default, 700, searches a growing program for
# garbage hundreds of times.
_BETWEEN = 50_000

_lock = threading.Lock()
_thresholds: list[tuple[int, int, int]] = []


@contextlib.contextmanager
def collected_rarely() -> Iterator[None]:
    """Collect garbage less often inside the `with` statement, in all threads.

    A collector that is off or set to collect even less often stays as it is.
    """
    with _lock:
        own = gc.get_threshold()
        _thresholds.append(own)
        if 0 < own[0] < _BETWEEN:
            gc.set_threshold(_BETWEEN, *own[1:])
    try:
        yield
    finally:
        with _lock:
            first = _thresholds[0]
            _thresholds.pop()
            if not _thresholds:
                gc.set_threshold(*first)
