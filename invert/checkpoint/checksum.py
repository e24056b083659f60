"""CRC-32C, the checksum of TensorFlow's files.

It is linear. The checksum of a concatenation is that of the first part, advanced by one zero byte
for each byte of the second, plus that of the second. So NumPy computes the checksums of all words
at once and then combines neighbours.
"""

from __future__ import annotations

import functools
import sys

import numpy as np

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
# Bytes processed at a time; they fit into the cache.
_CHUNK = 1 << 18
_WORDS = 4  # two-byte words per step
# For less data, building the tables of words takes longer than they save.
_LARGE = 1 << 16


def crc32c(data: bytes | bytearray | memoryview | np.ndarray, before: int = 0) -> int:
    """The checksum of `data`; `before` is the checksum of preceding data."""
    content = np.frombuffer(data, np.uint8)
    state = np.uint32(before ^ _ONES)
    for start in range(0, len(content), _CHUNK):
        chunk = content[start : start + _CHUNK]
        state = _shifted(state, len(chunk)) ^ _linear(chunk)
    return int(state) ^ _ONES


def masked(crc: int) -> int:
    """Mask a checksum for storage: CRCs of data with CRCs are weak."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES


def _linear(chunk: np.ndarray) -> np.uint32:
    """The checksum with initial value zero, which ignores leading zeros."""
    unit = 2 * _WORDS
    size = unit
    while size < len(chunk):
        size *= 2
    if size > len(chunk):
        chunk = np.concatenate([np.zeros(size - len(chunk), np.uint8), chunk])
    if size < _LARGE:
        words, tables = chunk.reshape(-1, unit), _byte_tables()
    else:
        words, tables = chunk.view(np.uint16).reshape(-1, _WORDS), _word_tables()
        if sys.byteorder == "big":
            words = words.byteswap()
    values = tables[0][words[:, 0]]
    for table, column in zip(tables[1:], words.T[1:], strict=True):
        values ^= table[column]
    power = unit.bit_length() - 1
    while len(values) > 1:
        values = _advanced(power, values[::2]) ^ values[1::2]
        power += 1
    return values[0]


def _shifted(state: np.uint32, count: int) -> np.uint32:
    """A checksum advanced by `count` zero bytes."""
    power = 0
    value = np.array([state], np.uint32)
    while count:
        if count & 1:
            value = _advanced(power, value)
        count >>= 1
        power += 1
    return value[0]


def _advanced(power: int, values: np.ndarray) -> np.ndarray:
    """Checksums advanced by `2**power` zero bytes."""
    # For a few values, building tables takes longer than they save.
    return _apply(_tables(power), values) if len(values) > 64 else _sums(_images(power), values)


def _apply(tables: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = tables[0][values & 255]
    for i in (1, 2, 3):
        out ^= tables[i][values >> (8 * i) & 255]
    return out


def _sums(images: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values under a linear function, given the images of its bits."""
    return np.bitwise_xor.reduce(images * (values[:, None] >> _BITS & 1), axis=1)


_BITS = np.arange(32, dtype=np.uint32)


@functools.cache
def _images(power: int) -> np.ndarray:
    """Map each bit of a checksum to its checksum after `2**power` zeros."""
    if power:
        return _sums(_images(power - 1), _images(power - 1))
    images = np.uint32(1) << _BITS
    for _ in range(8):
        images = images >> 1 ^ (images & 1) * np.uint32(_POLYNOMIAL)
    return images


@functools.cache
def _tables(power: int) -> np.ndarray:
    """Tables, one per byte, that advance a checksum by `2**power` zeros."""
    tables = np.zeros((4, 256), np.uint32)
    for bit, images in enumerate(_images(power).reshape(4, 8).T):
        tables[:, 1 << bit : 2 << bit] = tables[:, : 1 << bit] ^ images[:, None]
    return tables


@functools.cache
def _byte_tables() -> list[np.ndarray]:
    """The checksum of each byte, at each position in a group of bytes."""
    # A byte passes through the register like a checksum of the same bits.
    tables = [_apply(_tables(0), np.arange(256, dtype=np.uint32))]
    for _ in range(2 * _WORDS - 1):
        tables.append(_apply(_tables(0), tables[-1]))
    return tables[::-1]


@functools.cache
def _word_tables() -> list[np.ndarray]:
    """The checksum of each two-byte word, at each position in a group of words."""
    words = np.arange(1 << 16, dtype=np.uint32)
    # A word passes through the register like a checksum of the same bits.
    tables = [_apply(_tables(1), words)]
    for _ in range(_WORDS - 1):
        tables.append(_apply(_tables(1), tables[-1]))
    return tables[::-1]
