"""Hash tables that a SavedModel fills: with constants or lines of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from invert._errors import MalformedModelError
from invert._files import content_of
from invert.protos.tensors import STRING, decode_dtype, decode_shape, decode_tensor, type_name
from invert.protos.types import Attributes, FunctionDef, NodeDef
from invert.tf.graph.check import data_inputs, parse_tensor, past_identities
from invert.tf.graph.library import Library

_IMPORTS = frozenset(
    "InitializeTable InitializeTableV2 LookupTableImport LookupTableImportV2".split()
)
_FROM_FILES = frozenset(("InitializeTableFromTextFile", "InitializeTableFromTextFileV2"))
# Special column numbers: the whole line, or its number.
_WHOLE_LINE, _LINE_NUMBER = -2, -1
_LONGEST_NUMBER = 64


def typed(
    keys: np.ndarray, values: np.ndarray, key_type: int, value_type: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a table.

    **Raises:** `MalformedModelError` if they are not of these types.
    """
    wanted = decode_dtype(key_type), decode_dtype(value_type)
    if (keys.dtype, values.dtype) != wanted or len(keys) != len(values):
        raise MalformedModelError("the types of a lookup differ from those of its table")
    return keys, values


@dataclasses.dataclass(frozen=True)
class Filled:
    """A table's keys and values, or its file and the reading op's attributes."""

    pair: tuple[np.ndarray, np.ndarray] | None = None
    file: Path | None = None
    attrs: Attributes | None = None

    def content(self, key_type: int, value_type: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values.

        **Raises:** `MalformedModelError` if they are not of these types.
        """
        if self.pair is not None:
            keys, values = typed(*self.pair, key_type, value_type)
        else:
            rows = self._rows()
            keys = self._column(rows, "key_index", key_type)
            values = self._column(rows, "value_index", value_type)
        known: dict[object, object] = {}
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            first = known.setdefault(key, value)
            if first is not value and first != value:  # NaN differs from itself
                raise MalformedModelError(f"a table has two values for the key {key!r}")
        return keys, values

    def size(self) -> int:
        keys = self.pair[0] if self.pair is not None else self._rows()
        return len(set(keys.tolist() if isinstance(keys, np.ndarray) else keys))

    def _rows(self) -> list[bytes]:
        """The lines of the file, as TensorFlow reads them."""
        assert self.file is not None
        rows = content_of(self.file).replace(b"\r", b"").split(b"\n")
        if rows[-1] == b"":
            rows.pop()
        assert self.attrs is not None
        count = self.attrs["vocab_size"].i if "vocab_size" in self.attrs else -1
        if count > len(rows):
            raise MalformedModelError(f"{self.file} has {len(rows)} lines, fewer than {count}")
        rows = rows[:count] if count >= 0 else rows
        if not rows:
            raise MalformedModelError(f"{self.file} has no lines, and a table is read from it")
        if b"" in rows:
            raise MalformedModelError(f"{self.file}: line {rows.index(b'') + 1} is empty")
        return rows

    def _column(self, rows: list[bytes], which: str, kind: int) -> np.ndarray:
        assert self.attrs is not None
        index = self.attrs[which].i
        if index == _LINE_NUMBER:
            offset = self.attrs["offset"].i if "offset" in self.attrs else 0
            return np.arange(offset, offset + len(rows), dtype=np.int64).astype(decode_dtype(kind))
        texts = rows
        if index != _WHOLE_LINE:
            delimiter = self.attrs["delimiter"].s if "delimiter" in self.attrs else b"\t"
            if not delimiter or index < 0:
                raise MalformedModelError(
                    f"{self.file} cannot be read as a table with the delimiter {delimiter!r} and "
                    f"the column {index}"
                )
            parts = [row.split(delimiter) for row in rows]
            if short := [i for i, p in enumerate(parts) if index >= len(p)]:
                raise MalformedModelError(f"{self.file}: line {short[0] + 1} has no column {index}")
            texts = [p[index] for p in parts]
        values = np.empty(len(texts), object)
        values[:] = texts
        if kind == STRING:
            return values
        longest = max(texts, key=len)
        if len(longest) > _LONGEST_NUMBER:  # all would take as much memory
            raise MalformedModelError(
                f"{self.file}: line {texts.index(longest) + 1} is not of type {type_name(kind)}"
            )
        try:
            return np.array([text.decode() for text in texts]).astype(decode_dtype(kind))
        except (ValueError, OverflowError) as error:
            raise MalformedModelError(
                f"{self.file}: a line is not of type {type_name(kind)}: {error}"
            ) from error


def filled_by(
    run: Collection[NodeDef], handles: set[str], given: Mapping[str, object], library: Library
) -> Filled | None:
    """How nodes fill the table passed as an argument; `None` if they do not.

    **Arguments:**

    - `given`: values of the other arguments: an array, or the file of an asset.
    - `library`: the library with these nodes.
    """
    nodes = {n.name: n for n in run}

    def source(text: str) -> str:
        return past_identities(text, nodes)[0]

    def value(text: str) -> object:
        name = source(text)
        if name in given:  # a constant, also for the path of an asset
            return given[name]
        if name in nodes and nodes[name].op == "Const":
            return library.constant(nodes[name].attr["value"].tensor, f"node {name!r}")
        return None

    users = [
        node
        for node in run
        if node.op != "Identity" and any(source(text) in handles for text in data_inputs(node))
    ]
    if len(users) != 1:
        return None
    (node,) = users
    inputs = data_inputs(node)
    values = [value(text) for text in inputs[1:]]
    if source(inputs[0]) not in handles:
        return None
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    if node.op in _IMPORTS and len(values) == len(arrays) == 2:
        return Filled(pair=(arrays[0].reshape(-1), arrays[1]))
    if node.op in _FROM_FILES and len(values) == 1 and isinstance(values[0], Path):
        return Filled(file=values[0], attrs=node.attr)
    return None


_DENSE = frozenset(
    "AnonymousMutableDenseHashTable MutableDenseHashTable MutableDenseHashTableV2".split()
)


@dataclasses.dataclass(frozen=True)
class Buckets:
    """How a dense hash table is stored: with all of its buckets.

    **Attributes:**

    - `unused`: the keys that mark buckets without an entry.
    - `shape`: of a value.
    """

    unused: tuple[np.ndarray, ...]
    shape: tuple[int, ...]

    def entries(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the buckets in use.

        **Raises:** `MalformedModelError` if they do not describe such a table.
        """
        count, wanted = len(keys) if keys.ndim else 0, self.unused[0].shape
        try:
            keys, values = keys.reshape(count, *wanted), values.reshape(count, *self.shape)
        except ValueError as error:
            raise MalformedModelError(
                f"the arrays of a dense table have shapes that do not fit: {error}"
            ) from error
        used = np.ones(count, bool)
        for key in self.unused:
            used &= (keys != key).reshape(count, -1).any(1)
        return keys[used], values[used]


def buckets_of(function: FunctionDef) -> Buckets | None:
    """The buckets that a table's `FunctionDef` declares; `None` if the table is not dense."""
    nodes = {n.name: n for n in function.node_def}
    for node in nodes.values():
        if node.op not in _DENSE:
            continue
        sources = [nodes.get(parse_tensor(text)[0]) for text in node.input[:2]]
        unused = tuple(
            decode_tensor(n.attr["value"].tensor, f"node {n.name!r}")
            for n in sources
            if n is not None and n.op == "Const"
        )
        if len(unused) != 2 or unused[0].shape != unused[1].shape:
            raise MalformedModelError(
                f"node {node.name!r} lacks the keys that mark empty and deleted entries"
            )
        shape = decode_shape(node.attr["value_shape"].shape) if "value_shape" in node.attr else ()
        if shape is None or None in shape:
            raise MalformedModelError(f"node {node.name!r} has values of unknown shape")
        return Buckets(unused, tuple(n for n in shape if n is not None))
    return None
