"""Definitions of TensorFlow's ops, as TensorFlow 2.21 registers them.

`benchmarks/protos.py` writes the file that holds them.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from invert.protos.messages import message
from invert.protos.types import AttrValue, OpDef

# A line with the sorted names of ops, one with the places where their messages begin and the last
# one ends, and the messages.
FILE = "op_definitions.binpb"

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


@functools.lru_cache(maxsize=4096)
def op_def(op: str) -> Definition | None:
    """The definition of an op type; `None` where TensorFlow itself does not have it."""
    # A program uses a few of 2,000, so definitions are decoded on demand.
    names, places, messages = _parts()
    i = bisect.bisect_left(names, op)
    if i == len(names) or names[i] != op:
        return None
    return Definition.of(message(OpDef).FromString(messages[int(places[i]) : int(places[i + 1])]))


def definitions() -> Mapping[str, OpDef]:
    """All `OpDef` messages by op type."""
    names, places, messages = _parts()
    ends = list(map(int, places))
    return {
        name: message(OpDef).FromString(messages[start:end])
        for name, start, end in zip(names, ends, ends[1:], strict=False)
    }


@functools.cache
def _parts() -> tuple[Sequence[str], Sequence[bytes], bytes]:
    names, places, messages = Path(__file__).with_name(FILE).read_bytes().split(b"\n", 2)
    return names.decode().split(), places.split(), messages
