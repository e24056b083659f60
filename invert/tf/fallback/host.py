"""Ops that only the host can run: strings, files, encoded images, tables.

Strings are an `np.ndarray` of `bytes` objects during raising. TensorFlow runs a pure op with known
inputs at conversion. If an input depends on data, the op is an error, or with
`Config(host_ops="callback")` a step that the host runs at run time. Strings in between stay on the
host, so steps are collected (`Pending`) until one has a numeric result. They run in one
`jax.pure_callback`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert._private.tensorflow import TfObject
from invert.ir.types import Value
from invert.tf.fallback.eager import input_types, outputs_of, run_eagerly, run_op, serialized
from invert.tf.fallback.host_ops import LOOKUPS, ON_TEXT, PURE, REFUSED
from invert.tf.fallback.kernels_in_child import graph_with_inputs
from invert.tf.interpreter.analysis import HOST_REMEDY, host_problem
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Entry
from invert.tf.ops.node import Node, import_tensorflow
from invert.tf.values.constants import array

_STRING = 7  # DT_STRING of tensorflow/core/framework/types.proto


def text_entry(node: Node) -> Entry | None:
    """The entry of a string op that has a rule for numbers, if any."""
    if node.op in ON_TEXT and any(v.type == _STRING for v in node.attrs.values()):
        if node.op == "Const":
            return Entry(_constant, "host")
        return _HOST
    return None


def host_entry(node: Node) -> Entry | None:
    """The entry of an op that only the host can run; otherwise `None`."""
    if node.op in REFUSED:
        return Entry(_refuse, "none", _check_refused)
    if node.op in LOOKUPS:
        return Entry(_lookup, "host", on_host=_finds_text)
    if node.op == "DeviceIndex":
        return Entry(_device_index, "host")
    return _HOST if node.op in PURE else None


def _finds_text(node: Node) -> bool:
    finds = node.op.startswith("LookupTableFind")
    return finds and _STRING in (node.attrs["Tin"].type, node.attrs["Tout"].type)


def _check_refused(ctx: Context, node: Node) -> Iterable[Problem]:
    yield node.problem(REFUSED[node.op], "Compute it outside.")


def _refuse(ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    raise UnsupportedOpError(list(_check_refused(ctx, node)))


def _device_index(ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    """The index of the device kind it runs on; `len(kinds)` for others."""
    platform = ctx.config.platform or jax.default_backend()
    kind = {"cuda": "GPU", "rocm": "GPU", "gpu": "GPU"}.get(platform, platform.upper())
    # A list of strings, which are bytes in the proto.
    names = [name.decode() for name in node.attrs["device_names"].list.s]
    return [np.asarray(names.index(kind) if kind in names else len(names), np.int32)]


def _constant(ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    return [ctx.graph.constant(node)]


@dataclasses.dataclass(frozen=True, eq=False)
class HeldTable:
    """A table that lives in this process.

    **Arguments:**

    - `handle`: TensorFlow's handle.
    """

    handle: TfObject

    def content(self, key_type: int, value_type: int) -> tuple[np.ndarray, np.ndarray]:
        tf = import_tensorflow()
        with tf.init_scope():
            keys, values = tf.raw_ops.LookupTableExportV2(
                table_handle=self.handle,
                Tkeys=tf.dtypes.as_dtype(key_type),
                Tvalues=tf.dtypes.as_dtype(value_type),
            )
        return np.asarray(keys.numpy()), np.asarray(values.numpy())

    def size(self) -> int:
        tf = import_tensorflow()
        with tf.init_scope():
            return int(tf.raw_ops.LookupTableSizeV2(table_handle=self.handle).numpy())


@dataclasses.dataclass(frozen=True, eq=False)
class StoredTable:
    """A table stored in a file.

    **Arguments:**

    - `content`: returns keys and values of given types.
    - `size`: returns the number of keys.
    """

    content: Callable[[int, int], tuple[np.ndarray, np.ndarray]]
    size: Callable[[], int]


def text_problems(outputs: Sequence[tuple[str, int]]) -> list[Problem]:
    """Problems for string results, given as names and `DataType`s."""
    reason = "is a result of text, which JAX arrays cannot hold"
    remedy = (
        'Config(text="split") leaves it out.'
        if any(kind != _STRING for _, kind in outputs)
        else "Export a function that returns numbers."
    )
    return [
        Problem("tf.string", reason, f"tensor {name!r}", remedy)
        for name, kind in outputs
        if kind == _STRING
    ]


def table(handle: object) -> HeldTable | None:
    """The table of an eager handle; `None` for other handles."""
    tf = import_tensorflow()
    try:
        with tf.init_scope():
            tf.raw_ops.LookupTableSizeV2(table_handle=handle)
    except tf.errors.OpError:
        return None
    return HeldTable(handle)


@dataclasses.dataclass(frozen=True, eq=False)
class Pending:
    """A value that the host computes at run time.

    **Arguments:**

    - `run`: computes all results of the step from the values of `operands`.
    - `operands`: known arrays, JAX values, or other pending values.
    - `index`: position among the results.
    - `shape`: its sizes, `None` for unknown ones; `None` if the rank is unknown.
    - `dtype`: its `DataType`.
    """

    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    operands: tuple[Value, ...]
    index: int
    shape: tuple[int | None, ...] | None
    dtype: int


def _is_known(value: Value) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    # An array of objects holds strings, or sizes, some of them symbolic.
    return value.dtype != object or all(isinstance(v, bytes | str) for v in value.ravel())


def _sizes_fixed(value: Value) -> Value:
    """Static sizes as numbers, unless one is symbolic."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        items = value.ravel().tolist()
        if items and all(isinstance(d, int | np.integer) for d in items):
            return value.astype(np.int64)
    return value


def _host(ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    values = [_sizes_fixed(v) for v in values]
    if all(_is_known(v) for v in values):
        return run_eagerly(ctx, node, values)
    if ctx.config.host_ops != "callback":
        raise UnsupportedOpError([host_problem(node, node.location)])
    text, library = serialized(ctx, node)
    types = tuple(input_types(node))
    run = functools.partial(run_op, text, library, types)
    return _later(node, run, values, _result_specs(text, library, types, values))


# Shape and `DataType` of a result.
_Spec = tuple[tuple[int | None, ...] | None, int]


def _result_specs(
    text: bytes, library: bytes, types: Sequence[int], values: Sequence[Value]
) -> list[_Spec]:
    """The shapes and types of the results that TensorFlow infers."""
    tf = import_tensorflow()

    def known(value: Value) -> tuple[Value, Value]:
        if isinstance(value, Pending):
            return value.shape, None
        # TensorFlow infers shapes from numbers; at open sizes the program is recovered anew.
        shape = tuple(n if isinstance(n, int) else None for n in np.shape(value))
        return shape, value if _is_known(value) else None

    with tf.Graph().as_default():
        results = outputs_of(graph_with_inputs(text, library, types, [known(v) for v in values]))
    return [
        (None if t.shape.rank is None else tuple(t.shape.as_list()), t.dtype.as_datatype_enum)
        for t in results
    ]


def _later(
    node: Node,
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    values: Sequence[Value],
    specs: Sequence[_Spec],
) -> list[Value]:
    """A step's results at run time: deferred strings, numbers from a callback."""
    made = [Pending(run, tuple(values), i, shape, t) for i, (shape, t) in enumerate(specs)]
    return [p if p.dtype == _STRING else _called_back(node, p) for p in made]


def _called_back(node: Node, wanted: Pending) -> Value:
    tf = import_tensorflow()
    if wanted.shape is None or None in wanted.shape:
        reason = f"has a result whose size depends on data or is open ({wanted.shape})"
        raise node.error(reason, HOST_REMEDY)
    dtype = jax.dtypes.canonicalize_dtype(tf.dtypes.as_dtype(wanted.dtype).as_numpy_dtype)
    leaves: dict[int, Value] = {}
    _collect(wanted, leaves, set())
    types = {k: (np.dtype(v.dtype), tuple(v.shape)) for k, v in leaves.items()}

    def callback(*given: object) -> np.ndarray:
        results = {
            k: np.ascontiguousarray(v).view(t).reshape(shape)
            for (k, (t, shape)), v in zip(types.items(), given, strict=True)
        }
        result = np.asarray(_evaluate(wanted, results, {})).astype(dtype)
        return result[..., None].view(np.uint32) if _is_wide(dtype) else result

    # Strings have no derivative; the operands are stopped, since a callback refuses tangents.
    operands = [_words(jax.lax.stop_gradient(v)) for v in leaves.values()]
    shape = tuple(wanted.shape)
    if _is_wide(dtype):
        words = jax.ShapeDtypeStruct((*shape, dtype.itemsize // 4), np.dtype(np.uint32))
        results = jax.pure_callback(callback, words, *operands, vmap_method="sequential")
        return jax.lax.bitcast_convert_type(results, dtype)
    result = jax.ShapeDtypeStruct(shape, dtype)
    return jax.pure_callback(callback, result, *operands, vmap_method="sequential")


def _is_wide(dtype: np.dtype) -> bool:
    return dtype.itemsize == 8 and dtype.kind in "iuf"


def _words(x: Value) -> Value:
    """64-bit numbers as pairs of words: a callback narrows them outside `enable_x64`."""
    return jax.lax.bitcast_convert_type(x, np.uint32) if _is_wide(np.dtype(x.dtype)) else x


def _collect(value: Value, leaves: dict[int, Value], seen: set[int]) -> None:
    """The JAX values that a pending value needs."""
    if isinstance(value, Pending):
        if id(value) not in seen:
            seen.add(id(value))
            for operand in value.operands:
                _collect(operand, leaves, seen)
    elif not _is_known(value):
        leaves[id(value)] = value if hasattr(value, "aval") else jnp.asarray(array(value))


def _evaluate(value: Value, leaves: Mapping[int, np.ndarray], done: dict[int, Value]) -> np.ndarray:
    if not isinstance(value, Pending):
        return leaves.get(id(value), value)
    if id(value) not in done:
        operands = [_evaluate(v, leaves, done) for v in value.operands]
        done[id(value)] = value.run(operands)[value.index]
    return done[id(value)]


def _lookup(ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    table, *rest = values
    if not isinstance(table, HeldTable | StoredTable):
        reason = "looks up a table that the function itself creates or fills"
        remedy = "Fill the table before the model is exported, as tf.lookup.StaticHashTable does."
        raise node.error(reason, remedy)
    if node.op.startswith("LookupTableSize"):
        return [np.asarray(table.size())]
    types = node.attrs["Tin"].type, node.attrs["Tout"].type
    keys, content = table.content(*types)
    if keys.ndim != 1:
        reason = "reads a table whose keys are vectors, or all buckets of a table"
        remedy = "Use tf.lookup.StaticHashTable; for a DenseHashTable, load the SavedModel."
        raise node.error(reason, remedy)
    wanted, default = rest
    find = functools.partial(_find, keys, content)
    if _is_known(wanted) and _is_known(default):
        return find([wanted, default])
    if _STRING not in types:
        return [_search(keys, content, array(wanted), array(default))]
    if ctx.config.host_ops != "callback":
        raise UnsupportedOpError([host_problem(node, node.location)])
    shape = wanted.shape if isinstance(wanted, Pending) else tuple(np.shape(wanted))
    if content.ndim > 1 and shape is not None:
        shape = (*shape, *content.shape[1:])
    return _later(node, find, [wanted, default], [(shape, types[1])])


def _find(keys: np.ndarray, content: np.ndarray, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    wanted, default = given
    place = {key: i for i, key in enumerate(keys.tolist())}
    rows = [place.get(key) for key in wanted.ravel().tolist()]
    values = [default if i is None else content[i] for i in rows]
    out = np.empty((len(values), *content.shape[1:]), content.dtype)
    for i, value in enumerate(values):
        out[i] = value if not isinstance(value, np.ndarray) or value.ndim else value.item()
    return [out.reshape((*wanted.shape, *content.shape[1:]))]


# Up to this many keys, all are compared at once.
_FEW = 64


def _search(keys: np.ndarray, content: np.ndarray, wanted: Value, default: Value) -> Value:
    """The values of numeric keys, by comparison with all keys or by binary search."""
    shape = (*wanted.shape, *content.shape[1:])
    if not len(keys):
        return jnp.broadcast_to(default, shape).astype(content.dtype)
    if len(keys) <= _FEW:
        same = jnp.equal(wanted[..., None], keys)
        hit, place = jnp.any(same, -1), lax.argmax(same, same.ndim - 1, np.int32)
    else:
        order = np.argsort(keys)
        keys, content = keys[order], content[order]
        place = jnp.clip(jnp.searchsorted(keys, wanted), 0, len(keys) - 1)
        hit = jnp.equal(jnp.asarray(keys)[place], wanted)
    hit = hit.reshape((*hit.shape, *(1,) * (content.ndim - 1)))
    return jnp.where(hit, jnp.asarray(content)[place], default)


_HOST = Entry(_host, "host", on_host=lambda node: True, needs_tensorflow=True)
