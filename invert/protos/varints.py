"""Variable-length integers: seven bits per byte, the lowest first."""

from __future__ import annotations

import mmap
from typing import TypeAlias

Bytes: TypeAlias = bytes | mmap.mmap


def read(data: Bytes, place: int, end: int, most: int = 10) -> tuple[int, int]:
    """An integer of at most `most` bytes, and the offset after it.

    **Raises:** `ValueError` if the bytes end first, or hold no integer of that length.
    """
    value = 0
    for i in range(most):
        if place + i >= end:
            raise ValueError("is cut off")
        value |= (data[place + i] & 127) << (7 * i)
        if data[place + i] < 128:
            return value, place + i + 1
    raise ValueError("is too long")


def written(n: int) -> bytes:
    """Encode an integer as a varint."""
    made = bytearray()
    while n > 127:
        made.append(n & 127 | 128)
        n >>= 7
    return bytes([*made, n])
