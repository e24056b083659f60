"""Definitions of TensorFlow's ops, as TensorFlow 2.21 registers them.

`benchmarks/op_definitions.py` writes the file that holds them.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from invert.protos.messages import message
from invert.protos.types import AttrValue, OpDef

# Compressed by zlib: a line with the names of ops, one with the sizes of their messages, and the
# messages.
FILE = "op_definitions.binpb.z"

# The field of an `AttrValue` for each attribute type of `OpDef`.
_FIELDS = {
    "string": "s",
    "int": "i",
    "float": "f",
    "bool": "b",
    "type": "type",
    "shape": "shape",
    "tensor": "tensor",
    "func": "func",
}


class Argument(NamedTuple):
    """An input or output of an op, from its `OpDef.ArgDef`."""

    name: str
    type: int
    type_attr: str
    number_attr: str
    type_list_attr: str
    is_ref: bool


class Attribute(NamedTuple):
    """An attribute of an op, from its `OpDef.AttrDef`.

    **Attributes:**

    - `field`: the field of an `AttrValue` that holds it, or the elements of a list; `None` for a
        type of a later version.
    - `listed`: whether it is a list.
    - `least`: the smallest number, or number of elements, if there is one.
    - `allowed`: the values that it may have, if they are limited.
    """

    name: str
    type: str
    field: str | None
    listed: bool
    least: int | None
    allowed: frozenset[bytes | int] | None
    default: AttrValue | None


class Definition(NamedTuple):
    """The content of an `OpDef`, read far faster than fields of messages."""

    input_arg: tuple[Argument, ...]
    output_arg: tuple[Argument, ...]
    attr: tuple[Attribute, ...]
    is_stateful: bool

    @classmethod
    def of(cls, proto: OpDef) -> Definition:
        attributes = tuple(map(_attribute, proto.attr))
        return cls(
            _arguments(proto.input_arg), _arguments(proto.output_arg), attributes, proto.is_stateful
        )


def _arguments(protos: Iterable[OpDef.ArgDef]) -> tuple[Argument, ...]:
    return tuple(Argument(*(getattr(p, name) for name in Argument._fields)) for p in protos)


def _attribute(proto: OpDef.AttrDef) -> Attribute:
    listed = proto.type.startswith("list(")
    field = _FIELDS.get(proto.type[5:-1] if listed else proto.type)
    allowed = None
    if field in ("s", "type") and proto.HasField("allowed_values"):
        allowed = frozenset(getattr(proto.allowed_values.list, field))
    return Attribute(
        proto.name,
        proto.type,
        field,
        listed,
        proto.minimum if proto.has_minimum else None,
        allowed,
        proto.default_value if proto.HasField("default_value") else None,
    )


@functools.cache
def op_def(op: str) -> Definition | None:
    """The definition of an op type; `None` where TensorFlow itself does not have it."""
    data = _serialized().get(op)
    return None if data is None else Definition.of(message(OpDef).FromString(data))


def definitions() -> Mapping[str, OpDef]:
    """All `OpDef` messages by op type."""
    return {name: message(OpDef).FromString(data) for name, data in _serialized().items()}


@functools.cache
def _serialized() -> Mapping[str, bytes]:
    """The bytes of each `OpDef`, unparsed: programs use few of 2,000."""
    data = zlib.decompress(Path(__file__).with_name(FILE).read_bytes())
    names, sizes, messages = data.split(b"\n", 2)
    ends = list(itertools.accumulate(map(int, sizes.split())))
    places = zip(names.decode().split(), [0, *ends], ends, strict=False)
    return {name: messages[start:end] for name, start, end in places}
