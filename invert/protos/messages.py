"""Message classes for TensorFlow's files, built from the types of their fields.

They have a descriptor pool of their own, since TensorFlow registers its classes in the default one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError, Message

from invert._errors import MalformedModelError
from invert.protos import types, varints
from invert.protos.varints import Bytes

M = TypeVar("M", bound=types.Message)
_PACKAGE = "invert"
_SCALARS = (
    "double float int64 uint64 int32 fixed64 fixed32 bool string bytes uint32 sint32 sint64"
).split()
_Proto = descriptor_pb2.FieldDescriptorProto


class Field(NamedTuple):
    """A field of a message; `key` is the type of a map's keys."""

    number: int
    name: str
    type: str
    key: str
    repeated: bool
    group: str


_ANNOTATION = re.compile(
    r"""Annotated\[
    (?P<container>MessageMap\[|MutableMapping\[|Messages\[|MutableSequence\[)?
    ((?P<key>\w+),[ ])? (?P<type>[\w.]+) \]? ,[ ]
    (?P<number>\d+) (,[ ]'(?P<group>\w+)')? \]""",
    re.VERBOSE,
)


def fields() -> dict[str, list[Field]]:
    """The fields of each message, as `invert.protos.types` declares them."""
    tables: dict[str, list[Field]] = {}
    pending = [cls for cls in vars(types).values() if isinstance(cls, type)]
    for cls in pending:
        if cls.__module__ == types.__name__:
            tables[cls.__qualname__] = [_field(*row) for row in cls.__annotations__.items()]
            pending.extend(inner for inner in vars(cls).values() if isinstance(inner, type))
    return tables


def _field(name: str, annotation: str) -> Field:
    match = _ANNOTATION.fullmatch(annotation)
    assert match is not None, f"{name}: {annotation}"
    key, group = match["key"] or "", match["group"] or ""
    repeated = bool(match["container"]) and not key
    return Field(int(match["number"]), name, match["type"], key, repeated, group)


# The serialized descriptor of all messages: reading it is ten times faster than building it.
# `benchmarks/protos.py` writes it.
FILE = "messages.binpb"


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(Path(__file__).with_name(FILE).read_bytes())
    return pool


def described() -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of the messages that `invert.protos.types` declares."""
    file = descriptor_pb2.FileDescriptorProto(
        name="invert/tensorflow.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, numbers in types.ENUMS.items():
        values = file.enum_type.add(name=name).value
        for label, number in numbers.items():
            values.add(name=label, number=number)
    tables = fields()
    for name, rows in tables.items():
        message = file.message_type.add(name=_flat(name))
        groups = list(dict.fromkeys(row.group for row in rows if row.group))
        for group in groups:
            message.oneof_decl.add(name=group)
        for row in rows:
            field = message.field.add(name=row.name, number=row.number)
            field.label = (
                _Proto.LABEL_REPEATED if row.repeated or row.key else _Proto.LABEL_OPTIONAL
            )
            if row.group:
                field.oneof_index = groups.index(row.group)
            if not row.key:
                _set_type(field, row.type)
                continue
            entry = message.nested_type.add(
                name="".join(part.capitalize() for part in row.name.split("_")) + "Entry"
            )
            entry.options.map_entry = True
            for number, part, kind in ((1, "key", row.key), (2, "value", row.type)):
                _set_type(entry.field.add(name=part, number=number, label=1), kind)
            field.type = _Proto.TYPE_MESSAGE
            field.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
    return file


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _set_type(field: _Proto, kind: str) -> None:
    if kind in _SCALARS:
        field.type = getattr(_Proto, f"TYPE_{kind.upper()}")
    else:
        field.type = _Proto.TYPE_ENUM if kind in types.ENUMS else _Proto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{_flat(kind)}"


def message(kind: type[M]) -> type[M]:
    """The class that implements a type of messages, such as `GraphDef` or `OpDef.ArgDef`."""
    return cast("type[M]", _class(kind.__qualname__))


@functools.cache
def _class(name: str) -> type[Message]:
    descriptor = _pool().FindMessageTypeByName(f"{_PACKAGE}.{_flat(name)}")
    return message_factory.GetMessageClass(descriptor)


def parse(kind: type[M], data: bytes, where: str) -> M:
    """Decode a message.

    **Arguments:**

    - `kind`: the type of the message, such as `SavedModel`.
    - `where`: the source of the bytes, such as the path of a file.

    **Raises:** `MalformedModelError` with the place in the bytes and the field.
    """
    try:
        return message(kind).FromString(data)
    except DecodeError as error:
        name = kind.__qualname__
        raise MalformedModelError(
            f"{where} cannot be read as a {name}: {_fault(name, data)}"
        ) from error


_LONGEST_FAULT = 200
# The parser needs 150 bytes for each space in a row.
_LONGEST_SPACE = 1 << 20


def parse_text(kind: type[M], data: bytes, where: str) -> M:
    """Read a message that was written as text, as in `.pbtxt` files.

    **Raises:** `MalformedModelError` with the line and column.
    """
    name = kind.__qualname__
    made = cast("Message", message(kind)())
    try:
        text = data.decode()
        if any(len(run[0]) > _LONGEST_SPACE for run in re.finditer(r"[^\S\n]++", text)):
            raise ValueError(f"more than {_LONGEST_SPACE} spaces in a row")
        text_format.Parse(text, made, allow_unknown_field=True)
    except (text_format.ParseError, ValueError) as error:
        fault = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"{error}"
        if len(fault) > _LONGEST_FAULT:  # it quotes the line
            fault = f"{fault[: _LONGEST_FAULT // 2]} ... {fault[-_LONGEST_FAULT // 2 :]}"
        raise MalformedModelError(f"{where} is not the text of a {name}: {fault}") from error
    except RecursionError as error:
        raise MalformedModelError(f"{where} is nested too deeply") from error
    if data.strip() and not made.ListFields():
        raise MalformedModelError(f"{where} has no field of a {name}")
    return cast("M", made)


def own(given: object, kind: type[M], where: str) -> M:
    """Convert bytes or a message of TensorFlow to a message of these classes.

    **Raises:** `MalformedModelError`.
    """
    if isinstance(given, message(kind)):
        return given
    data = given.SerializeToString() if isinstance(given, Message) else given
    if not isinstance(data, bytes | bytearray):
        raise MalformedModelError(
            f"{where} is a {type(given).__name__}",
            remedy=f"Pass a {kind.__qualname__} or its bytes.",
        )
    return parse(kind, bytes(data), where)


# -- large fields of a message

# The fields that are left out where they are large, by attribute: programs and constants.
_CUT = {b"module": "s", b"value": "tensor_content"}


class Cut(NamedTuple):
    """The place of bytes that a message leaves out, and the placeholder in it."""

    placeholder: bytes
    start: int
    size: int


def cut(name: str, data: Bytes, large: int, secret: bytes, cuts: list[Cut]) -> bytes | None:
    """The bytes of a message with large programs and constants replaced by placeholders.

    **Arguments:**

    - `data`: the bytes, which may be a mapped file.
    - `large`: the minimum size to leave out.
    - `secret`: the prefix of placeholders, which no file can contain.
    - `cuts`: receives the fields that are left out.

    **Returns:** `None` if nothing is left out. So too if the bytes are damaged: `parse` says where.
    """
    tables = {n: {r.number: r for r in rows} for n, rows in fields().items()}

    def walk(kind: str, start: int, end: int, wanted: str) -> list[bytes] | None:
        parts: list[bytes] = []
        done = start
        for number, wire, begin, low, high in _fields(data, start, end, ""):
            if wire != _BYTES or high - low < large or number not in tables[kind]:
                continue
            row = tables[kind][number]
            inner: list[bytes] | None = None
            if row.key:
                inner = entry(row.type, low, high)
            elif row.type in tables:
                inner = walk(row.type, low, high, wanted)
            elif row.name == wanted:
                made = secret + len(cuts).to_bytes(8, "little")
                cuts.append(Cut(made, low, high - low))
                inner = [made]
            if inner is not None:
                parts += [data[done:begin], _header(number, inner), *inner]
                done = high
        return [*parts, data[done:end]] if parts else None

    def entry(kind: str, start: int, end: int) -> list[bytes] | None:
        """The entry of a map: its key, and a value of this kind."""
        fields = list(_fields(data, start, end, ""))
        if kind not in tables or [f[:2] for f in fields] != [(1, _BYTES), (2, _BYTES)]:
            return None
        (_, _, _, *key), (_, _, begin, low, high) = fields
        wanted = _CUT.get(data[key[0] : key[1]], "") if kind == "AttrValue" else ""
        inner = walk(kind, low, high, wanted)
        return inner and [data[start:begin], _header(2, inner), *inner]

    try:
        parts = walk(name, 0, len(data), "")
    except _FaultError:
        return None
    return None if parts is None else b"".join(parts)


def _header(number: int, content: Sequence[bytes]) -> bytes:
    """The key and length that precede the content of a bytes field."""
    return varints.written(number << 3 | _BYTES) + varints.written(sum(map(len, content)))


# -- locating damaged bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEEPEST = 100  # the depth of nested messages that protobuf accepts


class _FaultError(Exception):
    """The first damaged place."""


def _fault(name: str, data: bytes) -> str:
    """Describe the place at which bytes stop being a valid message."""
    tables = {n: {r.number: r for r in rows} for n, rows in fields().items()}

    def walk(kind: str, start: int, end: int, path: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise _FaultError(f"{path} at byte {start} is nested too deeply")
        for number, wire, place, low, high in _fields(data, start, end, path):
            row = tables[kind].get(number)
            if row is None or wire != _BYTES:
                continue
            inner = f"{path}.{row.name}" if path else row.name
            if row.key:
                for part, sub, _, a, b in _fields(data, low, high, inner):
                    if part == 2 and sub == _BYTES and row.type in tables:
                        walk(row.type, a, b, inner, depth + 1)
            elif row.type in tables:
                walk(row.type, low, high, inner, depth + 1)
            elif row.type == "string":
                try:
                    data[low:high].decode()
                except UnicodeDecodeError:
                    raise _FaultError(f"the text {inner} at byte {place} is not UTF-8") from None

    try:
        walk(name, 0, len(data), "", 0)
    except _FaultError as fault:
        return str(fault)
    return "its fields have the wrong types"


def _fields(
    data: Bytes, start: int, end: int, path: str
) -> Iterator[tuple[int, int, int, int, int]]:
    """Number, encoding, position and content of each field between two positions."""
    place = start
    inside = f" (in {path})" if path else ""
    while place < end:
        begin = place
        tag, place = _varint(data, place, end, inside)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in (_VARINT, _FIXED64, _BYTES, _FIXED32):
            raise _FaultError(f"there is no field at byte {begin}{inside}")
        low = place
        if wire == _VARINT:
            _, place = _varint(data, place, end, inside)
        elif wire == _BYTES:
            size, low = _varint(data, place, end, inside)
            place = low + size
        else:
            place += 8 if wire == _FIXED64 else 4
        if place > end:
            raise _FaultError(
                f"field {number} at byte {begin}{inside} ends at byte {place}, after the end of "
                f"its message at byte {end}"
            )
        yield number, wire, begin, low, place


def _varint(data: Bytes, place: int, end: int, inside: str) -> tuple[int, int]:
    try:
        return varints.read(data, place, end)
    except ValueError as error:
        raise _FaultError(f"a number at byte {place}{inside} {error}") from None
