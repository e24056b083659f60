"""Seeded damage to the bytes of a file, or to one file of a model at a time."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Damage = Callable[[random.Random, bytearray, bytes], None]


def flip(rng: random.Random, data: bytearray, other: bytes) -> None:
    for _ in range(rng.choice([1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray, other: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def delete(rng: random.Random, data: bytearray, other: bytes) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 32)]


def insert(rng: random.Random, data: bytearray, other: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randrange(1, 32))


def splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    at, size = rng.randrange(len(data)), rng.randrange(1, 64)
    start = rng.randrange(len(other))
    data[at : at + rng.choice([size, rng.randrange(64)])] = other[start : start + size]


def name(rng: random.Random, data: bytearray, other: bytes) -> None:
    """Change the bytes of a name but not their number."""
    names = [m.span() for m in re.finditer(rb"[\w./()]{3,}", data)]
    if names:
        first, last = rng.choice(names)
        at = rng.randrange(first, last)
        new = rng.choice([b"\xff", b"\xc3", b"\0", b"\x1b", b"a", b"9", b"\xe2\x80"])
        data[at : at + len(new)] = new


def number(rng: random.Random, data: bytearray, other: bytes) -> None:
    """Replace a digit of a text by another."""
    digits = [m.start() for m in re.finditer(rb"\d", data)]
    if digits:
        data[rng.choice(digits)] = rng.choice(b"0123456789")


ANYWHERE = (flip, cut, delete, insert, splice, name)


def damaged(
    data: bytes, rng: random.Random, other: bytes = b"", kinds: Sequence[Damage] = ANYWHERE
) -> bytes:
    """A file with one damage; spliced bytes come from `other` or the file itself."""
    changed = bytearray(data)
    rng.choice(kinds)(rng, changed, other or data)
    return bytes(changed)


def damaged_copies(model: Path, work: Path, rng: random.Random) -> Iterator[Path]:
    """Copy a model (a file or folder) to `work` repeatedly, with one damaged file each.

    **Returns:** an iterator over the damaged files.
    """
    while True:
        if model.is_dir():
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(model, work)
            files = (p for p in work.rglob("*") if p.is_file() and p.stat().st_size)
            file = rng.choice(sorted(files))
        else:
            file = Path(shutil.copy(model, work))
        file.write_bytes(damaged(file.read_bytes(), rng))
        yield file
