"""Writes `invert/protos/types.py`: the messages of `invert/protos/schema.py` for type checkers.

python -m tools.message_types
"""

from __future__ import annotations

from pathlib import Path

from invert.protos.messages import Field, fields

FILE = Path("invert/protos/types.py")
_HEAD = '''"""Types of the messages in TensorFlow's files, written by `tools/message_types.py`.

Objects of these types are made by `invert.protos.messages`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence
from typing import Protocol, TypeVar, overload

_D = TypeVar("_D")
_K = TypeVar("_K")
_M = TypeVar("_M", bound="Message")
_V = TypeVar("_V", bound="Message", covariant=True)
_Self = TypeVar("_Self", bound="Message")


class Message(Protocol):
    """A message of protocol buffers."""

    DESCRIPTOR: typing.Any

    def HasField(self, field_name: str) -> bool: ...
    def ClearField(self, field_name: str) -> None: ...
    def WhichOneof(self, oneof_group: str) -> str | None: ...
    def CopyFrom(self: _Self, other: _Self) -> None: ...
    def MergeFrom(self: _Self, other: _Self) -> None: ...
    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...
    def ByteSize(self) -> int: ...
    def ListFields(self) -> list[tuple[object, object]]: ...


class Messages(Protocol[_M]):
    """A repeated field of messages."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_M]: ...
    def __contains__(self, value: object, /) -> bool: ...
    @overload
    def __getitem__(self, index: int) -> _M: ...
    @overload
    def __getitem__(self, index: slice) -> list[_M]: ...
    def __delitem__(self, index: int | slice) -> None: ...
    def add(self, **fields: object) -> _M: ...
    def append(self, value: _M) -> None: ...
    def extend(self, values: Iterable[_M]) -> None: ...


class MessageMap(Protocol[_K, _V]):
    """A map to messages, which a look-up creates."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_K]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: _K, /) -> _V: ...
    def __delitem__(self, key: _K, /) -> None: ...
    @overload
    def get(self, key: _K, /) -> _V | None: ...
    @overload
    def get(self, key: _K, default: _D, /) -> _V | _D: ...
    def items(self) -> Iterable[tuple[_K, _V]]: ...
    def keys(self) -> Iterable[_K]: ...
    def values(self) -> Iterable[_V]: ...
'''
_PLAIN = {"double": "float", "float": "float", "bool": "bool", "string": "str", "bytes": "bytes"}


def text() -> str:
    """The text of the file."""
    parts = [_HEAD]
    tables = fields()
    parts.extend(_class(name, tables, "") for name in tables if "." not in name)
    return "\n\n".join([*parts, "Attributes = MessageMap[str, AttrValue]\n"])


def _class(name: str, tables: dict[str, list[Field]], indent: str) -> str:
    inner = [n for n in tables if n.rpartition(".")[0] == name]
    lines = [f"{indent}class {name.rpartition('.')[2]}(Message):"]
    lines += [_class(n, tables, indent + "    ") + "\n" for n in inner]
    lines += [f"{indent}    {row.name}: {_type(row)}" for row in tables[name]]
    return "\n".join(lines if len(lines) > 1 else [f"{lines[0]} ..."])


def _type(row: Field) -> str:
    plain = _PLAIN.get(row.type, "int" if row.type[0].islower() else row.type)
    is_message = row.type[0].isupper()
    if row.key:
        key = _PLAIN.get(row.key, "int")
        return f"{'MessageMap' if is_message else 'MutableMapping'}[{key}, {plain}]"
    if row.repeated:
        return f"{'Messages' if is_message else 'MutableSequence'}[{plain}]"
    return plain


if __name__ == "__main__":
    FILE.write_text(text())
