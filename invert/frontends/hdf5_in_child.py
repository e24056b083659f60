"""Reads HDF5 files in a child process first: damaged bytes can crash the HDF5 library."""

from __future__ import annotations

import functools
import pathlib

from invert._child import Child, ChildError, ChildStartError
from invert._errors import InvertError, MalformedModelError

_WORKER = pathlib.Path(__file__).with_name("hdf5_worker.py")
_START_SECONDS = 60.0
_SECONDS = 20.0
_SECONDS_PER_BYTE = 1e-6


@functools.cache
def _child() -> Child:
    # glibc overwrites freed memory, so that a read from it fails.
    return Child([str(_WORKER)], {"MALLOC_PERTURB_": "165"}, start_seconds=_START_SECONDS)


def check(data: bytes, name: str, held: int) -> None:
    """Have the child read all of an HDF5 file.

    **Arguments:**

    - `data`: the bytes of the file.
    - `name`: what errors call it.
    - `held`: the most bytes that it may unpack to.

    **Raises:** `MalformedModelError` if the child cannot read it, crashes or hangs.
    """
    seconds = _SECONDS + _SECONDS_PER_BYTE * len(data)
    try:
        reason = _child().ask(held.to_bytes(8, "little"), data, seconds=seconds).decode()
    except ChildStartError as error:
        raise InvertError(f"{name} cannot be checked: {error}") from error
    except ChildError as error:
        crashed = f"the HDF5 library crashed on it (exit code {error.code})"
        reason = f"reading {error}" if error.code is None else crashed
    if reason:
        raise MalformedModelError(
            f"{name} is damaged: {reason}",
            remedy="Copy the file again, or save the model again.",
        )
