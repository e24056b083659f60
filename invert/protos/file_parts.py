"""Large fields of messages, left in their file or bytes until read."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message

from invert.ir.arrays import aligned_room
from invert.protos.messages import Cut, M, cut, message, own, parse, parse_text
from invert.protos.types import GraphDef, NodeDef

T = TypeVar("T")

# Smaller fields are read with the message, and smaller messages whole.
_LARGE = 1 << 16
_LARGE_MESSAGE = 1 << 22
_CHUNK = 1 << 22

TEXT = ".pbtxt"


class FilePart:
    """A part of bytes, or of a mapped file, read in pieces."""

    def __init__(self, mapped: mmap.mmap | bytes, start: int, size: int):
        self._mapped = mapped
        self._start = start
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._size:
            raise IndexError(index)
        return self._mapped[self._start + index]

    def __bytes__(self) -> bytes:
        if isinstance(self._mapped, bytes):
            return self.part(0, self._size)
        return b"".join(self.chunks())

    def __contains__(self, content: bytes) -> bool:
        return self._mapped.find(content, self._start, self._start + self._size) >= 0

    def part(self, low: int, high: int) -> bytes:
        """The bytes between two positions, clipped to the file."""
        return self._mapped[self._start + low : self._start + min(high, self._size)]

    def index(self, content: bytes, low: int) -> int:
        """The first position of `what` from `start` on."""
        position = self._mapped.find(content, self._start + low, self._start + self._size)
        if position < 0:
            raise ValueError("subsection not found")
        return position - self._start

    def copied(self) -> memoryview:
        """One copy of the bytes, in memory that arrays share."""
        room = aligned_room(self._size)
        place = 0
        for chunk in self.chunks():
            room[place : place + len(chunk)] = np.frombuffer(chunk, np.uint8)
            place += len(chunk)
        room.flags.writeable = False
        return room.data

    def chunks(self) -> Iterator[bytes]:
        """The bytes in order; releases pages once read."""
        end = self._start + self._size
        for low in range(self._start, end, _CHUNK):
            yield self._mapped[low : min(low + _CHUNK, end)]
            if isinstance(self._mapped, mmap.mmap) and hasattr(self._mapped, "madvise"):
                page = low // mmap.PAGESIZE * mmap.PAGESIZE
                self._mapped.madvise(mmap.MADV_DONTNEED, page, min(low + _CHUNK, end) - page)


class FileParts:
    """The fields left out of a message, by their placeholders in it."""

    def __init__(self, parts: Mapping[bytes, FilePart]):
        self._parts = dict(parts)
        self._read: dict[bytes, Any] = {}
        self._lock = threading.RLock()

    def get(self, content: bytes) -> bytes | FilePart:
        """The content of a field: its bytes, or those that a placeholder denotes."""
        return self._parts.get(content, content)

    def read(self, content: bytes, read: Callable[[bytes | FilePart], T]) -> T:
        """Apply `read` to a field; to one that was left out, only once.

        The result replaces the field, so that the given bytes are released with the last field.
        """
        if content in self._parts:
            with self._lock:
                if content in self._parts:
                    self._read[content] = read(self._parts[content])
                    del self._parts[content]
        return self._read[content] if content in self._read else read(content)

    def array(
        self, content: bytes, decode: Callable[[bytes | memoryview], np.ndarray]
    ) -> np.ndarray:
        """The array of a field, decoded by `read`."""

        def copied(part: bytes | FilePart) -> np.ndarray:
            return decode(part.copied() if isinstance(part, FilePart) else part)

        return self.read(content, copied)

    def leave_out(self, nodes: Iterable[NodeDef]) -> None:
        """Replace large constants in nodes by zeros; only their types matter."""
        for node in nodes:
            if "value" in node.attr:
                tensor = node.attr["value"].tensor
                if tensor.tensor_content in self._parts or tensor.tensor_content in self._read:
                    tensor.tensor_content = b""


NO_PARTS = FileParts({})


def read_whole(kind: type[M], path: Path) -> M:
    """Read a message from a file: text if its name ends in `.pbtxt`.

    **Raises:** `MalformedModelError`; `OSError`.
    """
    read = parse_text if path.suffix == TEXT else parse
    return read(kind, path.read_bytes(), str(path))


def read_message(kind: type[M], path: Path) -> tuple[M, FileParts]:
    """Read a message from a file, leaving its large programs and constants there.

    **Raises:** `MalformedModelError`; `OSError`.
    """
    if path.suffix == TEXT or path.stat().st_size < _LARGE:
        return read_whole(kind, path), NO_PARTS
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data, parts = _without(kind.__qualname__, mapped)
    if data is None:
        data = mapped[:]
    if hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)
    return parse(kind, data, str(path)), parts


def own_graph(given: object) -> tuple[GraphDef, FileParts]:
    """A `GraphDef` by `messages.own`, and its large constants, held apart.

    **Raises:** `MalformedModelError`.
    """
    if isinstance(given, Message) and not isinstance(given, message(GraphDef)):
        given = given.SerializeToString()
    if isinstance(given, bytes | bytearray) and len(given) >= _LARGE_MESSAGE:
        given = bytes(given)
        data, parts = _without("GraphDef", given)
        return own(given if data is None else data, GraphDef, "the graph"), parts
    return own(given, GraphDef, "the graph"), NO_PARTS


def _without(name: str, data: mmap.mmap | bytes) -> tuple[bytes | None, FileParts]:
    """A message without large attributes; `None` for its bytes if it has none."""
    # Random, so that no message can contain a placeholder.
    secret = os.urandom(16)
    cuts: list[Cut] = []
    rest = cut(name, data, _LARGE, secret, cuts)
    held = {c.placeholder: FilePart(data, c.start, c.size) for c in cuts}
    return rest, NO_PARTS if rest is None else FileParts(held)
