"""The child process that reads HDF5 files first; `hdf5_in_child.py` says why.

Run by path in a bare interpreter: it must not import `invert`.
"""

from __future__ import annotations

import io
import math
import struct
import sys
from typing import Any

import h5py

_LENGTH = struct.Struct("<Q")
_HELD = struct.Struct("<Q")
# The bytes of a dataset that are read at once.
_AT_ONCE = 1 << 24


def read_all(data: bytes, held: int) -> None:
    """Read what a reader of the file may: all groups, attributes and datasets.

    What is stored in other files is left out, and everything after the first `held` bytes.

    **Raises:** what `h5py` raises.
    """
    left = held
    with h5py.File(io.BytesIO(data), "r") as file:
        pending: list[Any] = [file]
        seen: set[Any] = set()
        while pending:
            group = pending.pop()
            left -= _read_attributes(group, left)
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    continue
                entry = group[name]
                if isinstance(entry, h5py.Group) and entry.id not in seen:
                    seen.add(entry.id)
                    pending.append(entry)
                elif isinstance(entry, h5py.Dataset):
                    left -= _read_attributes(entry, left)
                    left -= _read_dataset(entry, left)


def _read_attributes(entry: Any, left: int) -> int:
    total = 0
    for name in entry.attrs:
        place = entry.attrs.get_id(name)
        total += math.prod(place.shape or ()) * place.dtype.itemsize
        if total <= left:
            entry.attrs[name]
    return total


def _read_dataset(entry: Any, left: int) -> int:
    if entry.external or entry.is_virtual or entry.shape is None or entry.nbytes > left:
        return entry.nbytes if entry.shape is not None else 0
    if entry.shape == () or entry.nbytes <= _AT_ONCE:
        entry[()]
        return entry.nbytes
    rows = max(1, _AT_ONCE * entry.shape[0] // entry.nbytes)
    for start in range(0, entry.shape[0], rows):
        entry[start : start + rows]
    return entry.nbytes


def serve() -> None:
    """Answer each request with an empty message, or with what is wrong with the file."""

    def reply(text: str) -> None:
        answer = text.encode(errors="replace")
        sys.stdout.buffer.write(_LENGTH.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()

    reply("")
    while len(head := sys.stdin.buffer.read(_LENGTH.size)) == _LENGTH.size:
        request = sys.stdin.buffer.read(_LENGTH.unpack(head)[0])
        (held,) = _HELD.unpack_from(request)
        try:
            read_all(request[_HELD.size :], held)
        # What `h5py` raises for damaged files; anything else ends the process.
        except (
            ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError,
            TypeError, ValueError,
        ) as error:  # fmt: skip
            reply(f"{type(error).__name__}: {error}"[:1000])
        else:
            reply("")


if __name__ == "__main__":
    serve()
