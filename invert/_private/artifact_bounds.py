"""Bounds on what JAX reads from the flatbuffer of an artifact, and trees that it cannot read.

A part of a flatbuffer may be in several places. JAX reads it once for each, so a tree whose nodes
share their children takes time and memory that are exponential in the size of the file. Powers of
open sizes are multiplied out.

Works with jax 0.10.2 to 0.12.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from jax._src.export import _export
from jax._src.export import serialization_generated as schema

from invert._private.jax import Value

# JAX writes each part where it is used; a later version may share some.
_MOST_TIMES = 16
# JAX adds the terms of a size one by one, each time to a sorted list of all of them.
_LONGEST_SIZE = 1 << 12
_LARGE_POWER = re.compile(rb"\^\s*\d{4}")
_MODULE = "MlirModuleSerialized"
# The place of the kind of a tree in the list of its fields.
_KIND = 4


class _Fields(NamedTuple):
    """The fields that a table has: single ones, vectors, and vectors of numbers."""

    single: list[str]
    vectors: list[str]
    numbers: list[str]


def readable(blob: bytes | bytearray) -> bytes | bytearray:
    """The artifact with tuples in place of the classes that this process has not registered.

    Leaves keep their order. The bytes are copied only where there are such classes.

    **Raises:** `ValueError` if the artifact is much larger when read than as bytes; other
        exceptions where the bytes are no flatbuffer.
    """
    kinds = [t._tab.Pos + t._tab.Offset(_KIND) for t in _tables(blob) if _is_unknown(t)]
    if not kinds:
        return blob
    made = bytearray(blob)
    for place in kinds:
        made[place] = schema.PyTreeDefKind.tuple
    return made


def _is_unknown(table: Value) -> bool:
    """Return whether a table is a tree of a class that is not registered."""
    if not isinstance(table, schema.PyTreeDef) or table.Kind() != schema.PyTreeDefKind.custom:
        return False
    name = table.CustomName()
    return name is not None and name.decode() not in _export.deserialization_registry


def _tables(blob: bytes | bytearray) -> Iterator[Value]:
    left = _MOST_TIMES * len(blob)
    pending: list[Value] = [schema.Exported.GetRootAs(blob, 0)]
    known: dict[tuple[type, int], _Fields] = {}
    while pending:
        table = pending.pop()
        yield table
        left -= 1
        # Tables with the same fields share the list of their places.
        place = table._tab.Pos
        key = type(table), place - struct.unpack_from("<i", blob, place)[0]
        fields = known.get(key) or known.setdefault(key, _fields(table))
        items = [getattr(table, name)() for name in fields.single]
        for name in fields.numbers:
            length = getattr(table, f"{name}Length")()
            left -= _MOST_TIMES * length if name == _MODULE else length
        for name in fields.vectors:
            length = getattr(table, f"{name}Length")()
            left -= length
            if left >= 0:
                items += map(getattr(table, name), range(length))
        for item in items:
            if not isinstance(item, bytes):
                pending.append(item)
                continue
            left -= len(item)
            if isinstance(table, schema.AbstractValue):
                _check_size(item)
        if left < 0:
            raise ValueError("its parts share others so often that they take too much memory")


def _check_size(text: bytes) -> None:
    if len(text) > _LONGEST_SIZE:
        raise ValueError(f"a size is an expression of {len(text)} characters")
    if power := _LARGE_POWER.search(text):
        raise ValueError(f"a size has a power of {power[0].decode()[1:].strip()}... or more")


def _fields(table: Value) -> _Fields:
    names = [name for name, value in vars(type(table)).items() if callable(value)]
    lengths = [name.removesuffix("Length") for name in names if name.endswith("Length")]
    given = [name for name in lengths if not getattr(table, f"{name}IsNone")()]
    numbers = [name for name in given if f"{name}AsNumpy" in names]
    single: list[str] = []
    for name in names:
        if name not in lengths and not name.endswith(("Init", "Length", "AsNumpy", "IsNone")):
            value = getattr(table, name)()
            if isinstance(value, bytes) or hasattr(value, "_tab"):
                single.append(name)
    return _Fields(single, [name for name in given if name not in numbers], numbers)
