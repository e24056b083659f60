"""Seeded damage to the bytes of any file."""

from __future__ import annotations

import random


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A file with bytes cut off, left out or changed."""
    place, size = draw.randrange(len(data)), draw.randrange(1, 20)
    kind = draw.randrange(4)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + data[place + size :]
    changed = bytearray(data)
    for _ in range(1 if kind == 2 else 4):
        changed[draw.randrange(len(data))] ^= draw.randrange(1, 256)
    return bytes(changed)
