"""LAPACK, which JAX takes from SciPy.

JAX loads it as soon as it lowers a call of it, which takes a quarter of a second. A program whose
lowering is only read needs none. One that runs without it ends the process.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

from jax._src.lax import linalg as lax_linalg
from jaxlib import lapack


class _Reading(threading.local):
    """Whether this thread lowers a program that does not run."""

    now = False


_reading = _Reading()


def load() -> None:
    """Load it for a program that calls it by the names of its routines."""
    lax_linalg.initialize_lapack()


@contextlib.contextmanager
def not_loaded() -> Iterator[None]:
    """Lower calls of LAPACK in this thread without loading it; nothing may run meanwhile."""
    _defer()
    _reading.now, before = True, _reading.now
    try:
        yield
    finally:
        _reading.now = before


@functools.cache
def _defer() -> None:
    prepare = lapack.prepare_lapack_call

    # Stays in place, since other threads may lower programs that run.
    @functools.wraps(prepare)
    def prepared(fn_base: str, dtype: object) -> str:
        make = lapack.build_lapack_fn_target if _reading.now else prepare
        return make(fn_base, dtype)

    lapack.prepare_lapack_call = prepared
