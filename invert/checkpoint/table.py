"""Reads sorted tables in LevelDB's layout: checksummed blocks and an index.

Layout: tensorflow/core/lib/io/format.cc and block_builder.cc (TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from invert._errors import MalformedModelError
from invert.checkpoint.checksum import crc32c, masked
from invert.checkpoint.snappy import decompress
from invert.protos import varints

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # after each block: its compression and checksum
_PLAIN, _SNAPPY = 0, 1
# Most bytes of keys per byte of a block: one key in 16 is written out.
_MOST_PER_BYTE = 64


def read_table(data: bytes, where: str) -> dict[bytes, bytes]:
    """The entries of a table, by key.

    **Arguments:**

    - `where`: path of the file, for messages.

    **Raises:** `MalformedModelError` with the place in the file.
    """
    if len(data) < _FOOTER:
        raise _damaged(where, len(data), "the file ends before its footer")
    footer = len(data) - _FOOTER
    if int.from_bytes(data[-8:], "little") != _MAGIC:
        raise _damaged(where, len(data) - 8, "the footer is not that of a table")
    _, _, place = _handle(data, footer, where)
    offset, size, _ = _handle(data, place, where)
    entries: dict[bytes, bytes] = {}
    done = 0
    for _, handle in _entries(_block(data, offset, size, footer, where), offset, where):
        low, length, _ = _handle(handle, 0, where)
        if low < done:  # each block is read once, so that the work is that of the file
            raise _damaged(where, low, "a block overlaps the one before it")
        done = low + length
        for key, value in _entries(_block(data, low, length, footer, where), low, where):
            if key in entries:
                raise _damaged(where, low, f"the key {key!r} occurs twice")
            entries[key] = value
    return entries


def varint(data: bytes, place: int, where: str) -> tuple[int, int]:
    """A varint, and the offset after it."""
    try:
        return varints.read(data, place, len(data))
    except ValueError as error:
        raise _damaged(where, place, f"a number {error}") from error


def _handle(data: bytes, place: int, where: str) -> tuple[int, int, int]:
    """Offset and size of a block, and the offset after the two numbers."""
    offset, place = varint(data, place, where)
    size, place = varint(data, place, where)
    return offset, size, place


def _block(data: bytes, offset: int, size: int, end: int, where: str) -> bytes:
    if offset + size + _TRAILER > end:
        raise _damaged(where, offset, f"a block of {size} bytes goes beyond the end")
    content = data[offset : offset + size]
    kind, checksum = struct.unpack_from("<BI", data, offset + size)
    if masked(crc32c(data[offset : offset + size + 1])) != checksum:
        raise _damaged(where, offset, "the checksum of a block differs")
    if kind == _SNAPPY:
        try:
            return decompress(content)
        except ValueError as error:
            reason = f"a block compressed by Snappy is damaged ({error})"
            raise _damaged(where, offset, reason) from error
    if kind != _PLAIN:
        raise _damaged(where, offset, f"a block is compressed in an unknown way ({kind})")
    return content


def _entries(block: bytes, offset: int, where: str) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; keys are prefix-compressed."""
    if len(block) < 4:
        raise _damaged(where, offset, "a block is too short")
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise _damaged(where, offset, "a block has more restarts than bytes")
    place, key, held = 0, b"", 0
    while place < end:
        start = place
        shared, place = varint(block, place, where)
        fresh, place = varint(block, place, where)
        length, place = varint(block, place, where)
        if shared > len(key) or place + fresh + length > end:
            raise _damaged(where, offset + start, "an entry goes beyond its block")
        key = key[:shared] + block[place : place + fresh]
        place += fresh
        held += len(key)
        if held > _MOST_PER_BYTE * len(block):
            raise _damaged(where, offset + start, f"the keys of a block have {held} bytes")
        yield key, block[place : place + length]
        place += length


def _damaged(where: str, place: int, reason: str) -> MalformedModelError:
    return MalformedModelError(f"{where}: {reason}, at byte {place}")
