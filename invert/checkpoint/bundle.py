"""Reads the values of a checkpoint by key, from its shards, on demand.

The layout is that of tensorflow/core/util/tensor_bundle (TensorFlow 2.21).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from invert._errors import MalformedModelError, unreadable
from invert._files import content_of
from invert.checkpoint.checksum import crc32c, masked
from invert.checkpoint.table import read_table, varint
from invert.protos.messages import parse
from invert.protos.tensors import STRING, decode_dtype, decode_shape, is_type, no_array, type_name
from invert.protos.types import BundleEntryProto, BundleHeaderProto

_HEADER = b""  # the key of the header
_VERSION = 1
_MOST_SHARDS = 1 << 16

# A slice of a value: start and length along each axis; `None` for the whole axis.
Slice = Sequence[tuple[int, int] | None]


class Checkpoint:
    """A checkpoint of version 2.

    **Arguments:**

    - `index`: the file that ends in `.index`.
    - `shard`: maps the number of a shard and the count of shards to its file; `None` if there
        is none.

    **Raises:** `MalformedModelError`.
    """

    def __init__(self, index: Path, shard: Callable[[int, int], Path | None]):
        self._where = str(index)
        self._shard = shard
        self._entries = read_table(content_of(index), self._where)
        if _HEADER not in self._entries:
            raise MalformedModelError(f"{index} has no header")
        header = parse(BundleHeaderProto, self._entries[_HEADER], f"the header of {index}")
        if header.version.min_consumer > _VERSION:
            raise MalformedModelError(
                f"{index} is of version {header.version.min_consumer}, later than {_VERSION}",
                remedy="Load the model with TensorFlow and save it again.",
            )
        if header.endianness != (sys.byteorder == "big"):
            raise MalformedModelError(
                f"{index} was written on a machine with another byte order",
                remedy="Save the model again, on a machine with this byte order.",
            )
        if not 0 < header.num_shards <= _MOST_SHARDS:
            raise MalformedModelError(f"{index} declares {header.num_shards} shards")
        self._count = header.num_shards
        self._shards: dict[int, np.ndarray] = {}

    def __contains__(self, key: str) -> bool:
        return key.encode() in self._entries

    def __iter__(self) -> Iterator[str]:
        # Keys of slices begin with a zero byte.
        return (k.decode("utf-8", "replace") for k in self._entries if k and k[0])

    def value(self, key: str, part: Slice | None = None) -> np.ndarray:
        """The value of a key; a view of the file where stored contiguously.

        **Arguments:**

        - `part`: the slice to read; the whole value by default.

        **Raises:** `MalformedModelError` if the key is missing, or the checksum does not match.
        """
        entry = self._entry(key.encode(), repr(key))
        if entry.slices:
            value = self._assembled(key, entry)
        else:
            value = self._stored(entry, repr(key))
        if part is None:
            return value
        if len(part) != value.ndim or any(
            p is not None and not 0 <= p[0] <= p[0] + p[1] <= n
            for p, n in zip(part, value.shape, strict=True)
        ):
            raise MalformedModelError(f"{self._where}: {key!r} has no part {list(part)}")
        return value[tuple(slice(None) if p is None else slice(p[0], p[0] + p[1]) for p in part)]

    def _entry(self, key: bytes, name: str) -> BundleEntryProto:
        if key not in self._entries:
            raise MalformedModelError(
                f"{self._where} has no value {name}",
                remedy="The variables are incomplete or belong to another model: copy or export it "
                "again.",
            )
        entry = parse(BundleEntryProto, self._entries[key], f"the entry {name} of {self._where}")
        if not is_type(entry.dtype):
            raise self._damaged(name, f"has the unknown type number {entry.dtype}")
        return entry

    def _shape(self, entry: BundleEntryProto, name: str) -> tuple[int, ...]:
        shape = decode_shape(entry.shape) or ()
        sizes = tuple(n for n in shape if n is not None)
        if entry.shape.unknown_rank or len(sizes) != len(shape):
            raise self._damaged(name, "has no fixed shape")
        if (reason := no_array(sizes, decode_dtype(entry.dtype))) is not None:
            raise self._damaged(name, reason)
        return sizes

    def _stored(self, entry: BundleEntryProto, name: str) -> np.ndarray:
        """A value stored in one piece."""
        shape = self._shape(entry, name)
        content = self._bytes(entry, name)
        if entry.dtype == STRING:
            return self._texts(content, entry, shape, name)
        dtype = decode_dtype(entry.dtype)
        if dtype.kind == "O":
            raise MalformedModelError(
                f"{self._where}: {name} is a {type_name(entry.dtype)}, which is not an array",
                remedy="Leave it out of the model's variables.",
            )
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise self._damaged(name, f"is {dtype.name}{list(shape)} and has {len(content)} bytes")
        if masked(crc32c(content)) != entry.crc32c:
            raise self._damaged(name, "has a checksum that does not match its bytes")
        return content.view(dtype).reshape(shape)

    def _bytes(self, entry: BundleEntryProto, name: str) -> np.ndarray:
        shard = self._mapped(entry.shard_id, name)
        low, high = entry.offset, entry.offset + entry.size
        if not 0 <= low <= high <= len(shard):
            raise self._damaged(
                name, f"is declared at bytes {low} to {high} of a shard of {len(shard)} bytes"
            )
        return shard[low:high]

    def _mapped(self, number: int, name: str) -> np.ndarray:
        """The bytes of a shard, memory-mapped."""
        if number not in self._shards:
            file = self._shard(number, self._count) if 0 <= number < self._count else None
            if file is None:
                raise MalformedModelError(
                    f"{self._where}: {name} is in shard {number} of {self._count}, which is missing"
                )
            try:
                size = file.stat().st_size
                mapped = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
            except (OSError, ValueError) as error:
                raise unreadable(file, error) from error
            self._shards[number] = np.asarray(mapped)
        return self._shards[number]

    def _texts(
        self, content: np.ndarray, entry: BundleEntryProto, shape: tuple[int, ...], name: str
    ) -> np.ndarray:
        """Strings: their lengths, the checksum of these, then the contents back to back."""
        data, count = content.tobytes(), math.prod(shape)
        if count > len(data):
            raise self._damaged(name, f"has {len(data)} bytes, too few for {count} texts")
        where = f"{self._where}, {name}"
        lengths, place = [], 0
        for _ in range(count):
            length, place = varint(data, place, where)
            lengths.append(length)
        # The checksum covers the lengths as 4-byte numbers, or 8-byte ones if they do not fit.
        plain = b"".join(n.to_bytes(4 if n < 1 << 32 else 8, sys.byteorder) for n in lengths)
        stored = data[place : place + 4]
        place += 4
        crc = crc32c(plain)
        if int.from_bytes(stored, sys.byteorder) != masked(crc):
            raise self._damaged(name, "has a checksum that does not match the lengths of its texts")
        if place + sum(lengths) != len(data):
            raise self._damaged(
                name, f"has bytes left over after its texts of {sum(lengths)} bytes"
            )
        if masked(crc32c(data[place:], crc32c(stored, crc))) != entry.crc32c:
            raise self._damaged(name, "has a checksum that does not match its texts")
        values = np.empty(count, object)
        for i, length in enumerate(lengths):
            values[i] = data[place : place + length]
            place += length
        return values.reshape(shape)

    def _assembled(self, key: str, entry: BundleEntryProto) -> np.ndarray:
        """A partitioned variable, assembled from its parts."""
        shape = self._shape(entry, repr(key))
        dtype = decode_dtype(entry.dtype)
        parts, covered = [], 0
        for proto in entry.slices:
            extents = [
                (e.start, e.length) if e.WhichOneof("has_length_hack") else None
                for e in proto.extent
            ]
            name = f"{key!r}, part {extents}"
            stored = self._entry(_slice_key(key, extents), name)
            place = [
                (0, n) if extent is None else extent
                for extent, n in zip(extents, shape, strict=False)
            ]
            sizes = tuple(length for _, length in place)
            if (
                len(extents) != len(shape)
                or any(not 0 <= a <= a + c <= n for (a, c), n in zip(place, shape, strict=True))
                or stored.dtype != entry.dtype
                or stored.slices
                or self._shape(stored, name) != sizes
            ):
                raise self._damaged(name, "does not fit into the array that it is a part of")
            covered += math.prod(sizes)
            parts.append((place, self._stored(stored, name)))
        held = sum(map(len, self._shards.values()))
        if covered != (total := math.prod(shape)):
            raise self._damaged(repr(key), f"has parts with {covered} of its {total} elements")
        if covered * dtype.itemsize > held:
            raise self._damaged(repr(key), "has more elements than its files hold")
        # Allocate only now: the parts are known to cover no more than the files hold.
        value = np.zeros(shape, dtype)
        seen = np.zeros(shape, bool)
        for place, content in parts:
            where = tuple(slice(a, a + c) for a, c in place)
            if seen[where].any():
                raise self._damaged(repr(key), "has parts that overlap")
            seen[where] = True
            value[where] = content
        return value

    def _damaged(self, name: str, reason: str) -> MalformedModelError:
        return MalformedModelError(f"{self._where}: {name} {reason}")


# -- keys of parts, which sort like the numbers in them
# (tensorflow/core/util/saved_tensor_slice_util.cc and tensorflow/core/lib/strings/ordered_code.cc)


def _slice_key(name: str, extents: Slice) -> bytes:
    text = name.encode().replace(b"\xff", b"\xff\0").replace(b"\0", b"\0\xff")
    key = b"\0" + text + b"\0\1" + _count(len(extents))
    for extent in extents:
        start, length = extent or (0, -1)
        key += _signed(start) + _signed(length)
    return key


def _count(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _signed(number: int) -> bytes:
    """A number whose leading bits encode its length in bytes."""
    size = ((number if number >= 0 else ~number).bit_length() + 7) // 7
    data = bytearray(number.to_bytes(max(size, 2), "big", signed=True)[-size:])
    for i in range(size):  # one bit for each byte
        data[i // 8] ^= 0x80 >> i % 8
    return bytes(data)
