"""Decompresses Snappy's block format; Python's Snappy libraries need a compiler to install.

Format: https://github.com/google/snappy/blob/main/format_description.txt.
"""

from __future__ import annotations

from invert.protos import varints

# Most bytes of output per byte of input: a copy of 64 bytes takes three.
_MOST_PER_BYTE = 22


def decompress(data: bytes) -> bytes:
    """The uncompressed content of a block.

    **Raises:** `ValueError` with the place of the damage.
    """
    try:
        size, place = varints.read(data, 0, len(data), most=5)
    except ValueError as error:
        raise ValueError(f"the length at byte 0 {error}") from error
    if size > _MOST_PER_BYTE * len(data):
        raise ValueError(f"{len(data)} bytes cannot expand to {size}")
    out = bytearray()
    while place < len(data):
        start, tag = place, data[place]
        place += 1
        kind, high = tag & 3, tag >> 2
        # Number of bytes after the tag: the length of a long literal, or an offset.
        extra = (max(0, high - 59), 1, 2, 4)[kind]
        number = int.from_bytes(data[place : place + extra], "little")
        place += extra
        if place > len(data):
            raise ValueError(f"it ends within the element at byte {start}")
        if kind == 0:
            length = (number if extra else high) + 1
            if place + length > len(data):
                raise ValueError(f"the literal at byte {start} goes beyond the end")
            out += data[place : place + length]
            place += length
        else:
            length, offset = (high & 7) + 4, number | high >> 3 << 8
            if kind != 1:
                length, offset = high + 1, number
            if not 0 < offset <= len(out):
                raise ValueError(f"the copy at byte {start} begins before the content")
            # A copy may overlap its own output, and then repeats.
            pattern = out[len(out) - offset : len(out) - offset + length]
            out += (pattern * -(-length // len(pattern)))[:length]
        if len(out) > size:
            raise ValueError(f"the element at byte {start} goes beyond the {size} bytes declared")
    if len(out) != size:
        raise ValueError(f"it holds {len(out)} bytes but declares {size}")
    return bytes(out)
