"""Runs or traces one op in TensorFlow itself, on values known at conversion."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from invert._errors import Problem, UnsupportedOpError, only_refusals
from invert._private.tensorflow import TfObject
from invert.ir.order import reached
from invert.ir.types import Value
from invert.protos.messages import message
from invert.protos.ops import op_def
from invert.protos.tensors import decode_dtype
from invert.protos.types import FunctionDefLibrary, NameAttrList, NodeDef
from invert.tf.fallback.kernels_in_child import (
    PLAIN,
    Input,
    KernelError,
    LimitError,
    graph_with_inputs,
    refusal,
    run_apart,
)
from invert.tf.interpreter.context import Context
from invert.tf.ops.definition import types_of
from invert.tf.ops.node import Node, has_tensorflow, import_tensorflow
from invert.tf.values.constants import MOST_BYTES, MOST_COMPUTED


def serialized(ctx: Context, node: Node) -> tuple[bytes, bytes]:
    """The node without its inputs, and the functions that its attributes name, as protos."""
    proto = message(NodeDef)(op=node.op, name="op")
    for name in sorted(node.attrs):
        # Attributes with an underscore are hints: devices, shapes and classes of other nodes.
        if not name.startswith("_"):
            proto.attr[name].CopyFrom(node.attrs[name])
    library = _callees(ctx.graph.library, proto)
    for function in library.function if library is not None else ():
        ctx.graph.shared.parts.leave_out(function.node_def)
    # Serialized maps have no fixed order, and the bytes are a cache key.
    return (
        proto.SerializeToString(deterministic=True),
        b"" if library is None else library.SerializeToString(deterministic=True),
    )


def _references(node: NodeDef) -> list[NameAttrList]:
    """The functions that a node refers to, as messages."""
    values = node.attr.values()
    return [f for v in values for f in (v.func, *v.list.func) if f.name]


def _callees(library: FunctionDefLibrary, node: NodeDef) -> FunctionDefLibrary | None:
    """The functions that a node calls, renamed by content; `None` if it calls none.

    TensorFlow's function names are global to the process, and two models may share a name. The
    node is changed to refer to the new names.
    """
    known = {f.signature.name: f for f in library.function}

    def called(nodes: Iterable[NodeDef]) -> Iterator[str]:
        return (f.name for n in nodes for f in _references(n) if f.name in known)

    names = reached(called([node]), lambda name: called(known[name].node_def))
    if not names:
        return None
    found = message(FunctionDefLibrary)()
    for name in names:
        found.function.add().CopyFrom(known[name])
    digest = hashlib.sha256(found.SerializeToString(deterministic=True)).hexdigest()[:16]
    for function in found.function:
        function.signature.name += f"_{digest}"
    for reference in [
        *_references(node),
        *(f for function in found.function for n in function.node_def for f in _references(n)),
    ]:
        if reference.name in names:
            reference.name += f"_{digest}"
    return found


def input_types(node: Node) -> list[int]:
    """The `DataType` of each input, from the definition of the op and the attributes."""
    definition = op_def(node.op)
    assert definition is not None, node.op  # it has a kernel
    return [t for n, t in types_of(definition.input_arg, node.attrs) for _ in range(n)]


def outputs_of(graph_def: TfObject) -> list[TfObject]:
    """The results of the last node of a `GraphDef`, imported into the current graph."""
    (op,) = import_tensorflow().graph_util.import_graph_def(
        graph_def, return_elements=[graph_def.node[-1].name], name=""
    )
    return list(op.outputs)


def run_op(
    text: bytes, library: bytes, types: Sequence[int], values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Compute a serialized op on known values, by TensorFlow on the CPU."""
    tf = import_tensorflow()
    cpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    inputs = [(v.shape, v) for v in values]
    with tf.Graph().as_default() as graph:
        results = outputs_of(graph_with_inputs(text, library, types, inputs))
        with tf.compat.v1.Session(graph=graph, config=cpu) as session:
            found = session.run(results)
    return [
        np.asarray(y, object if t.dtype == tf.string else None)
        for y, t in zip(found, results, strict=True)
    ]


def check_bytes(node: Node, what: str, size: int, most: int = MOST_BYTES) -> None:
    """Refuse to compute at conversion what takes much more memory than the file does.

    **Raises:** `UnsupportedOpError`.
    """
    if size > most:
        reason = f"has {what} of {size} bytes, too many to compute at conversion"
        raise node.error(reason, _OUTSIDE)


_OUTSIDE = "Compute it outside the function and pass the result."


# The memory that a text takes besides its bytes.
_PER_TEXT = 64
# The results of `PLAIN` ops on larger inputs are computed in the child process, which limits them.
_MOST_INSIDE = 1 << 22


def _bytes(value: np.ndarray) -> int:
    """The bytes of an array and its texts, unless their number alone is too large."""
    if value.dtype != object:
        return value.nbytes
    size = value.size * _PER_TEXT
    return size if size > MOST_BYTES else size + sum(map(len, value.ravel().tolist()))


def _is_small(text: bytes, values: Sequence[np.ndarray]) -> bool:
    """Return whether a `PLAIN` op has small results: all elements might be the longest ones."""
    longest = (
        max(map(len, v.ravel().tolist()), default=0) if v.dtype == object else v.itemsize
        for v in values
    )
    return sum(v.size for v in values) * (len(text) + sum(longest)) <= _MOST_INSIDE


def run_eagerly(ctx: Context, node: Node, values: Sequence[Value]) -> list[np.ndarray]:
    """The results of a pure op on known values.

    **Raises:** `UnsupportedOpError` if TensorFlow refuses the values, the op takes too long, or the
    ops computed so far have too many bytes.
    """
    tf = import_tensorflow()
    check_bytes(node, "constants", sum(map(_bytes, values)))
    node.read.update(node.attrs)  # TensorFlow reads all of them
    (text, library), types = serialized(ctx, node), input_types(node)
    run = run_op if node.op in PLAIN and _is_small(text, values) else run_apart
    try:
        with only_refusals():
            results = run(text, library, types, values)
    except LimitError as error:
        reason = f"cannot be computed at conversion: {reason_of(error)}"
        raise node.error(reason, _OUTSIDE) from error
    except (ValueError, TypeError, NotImplementedError, KernelError, tf.errors.OpError) as error:
        raise UnsupportedOpError([_refused(node, reason_of(error))]) from error
    computed = ctx.computed(sum(map(_bytes, results)))
    check_bytes(node, "results, with those before it,", computed, MOST_COMPUTED)
    return results


def _refused(node: Node, reason: str) -> Problem:
    remedy = "The model itself fails here."
    return node.problem(f"TensorFlow refuses its inputs: {reason}", remedy)


# Shape functions do not use values with more elements.
_MOST_KNOWN = 1024


def refused_inputs(ctx: Context, node: Node, values: Sequence[Value]) -> Problem | None:
    """TensorFlow's error for a node at these input shapes; `None` without one."""
    if not has_tensorflow():
        reason = "does not fit the shapes of its inputs, or its rule is at fault"
        remedy = "Install TensorFlow (`pip install 'invert[tensorflow]'`) to find out which."
        return node.problem(reason, remedy)
    if (definition := op_def(node.op)) is None or any(a.is_ref for a in definition.input_arg):
        return None
    inputs: list[Input] = []
    for value, kind in zip(values, input_types(node), strict=True):
        plain = decode_dtype(kind).kind != "O"
        known = isinstance(value, np.ndarray) and value.dtype.kind != "O" and plain
        if known and value.size <= _MOST_KNOWN:
            inputs.append((value.shape, value))
        elif plain and hasattr(value, "shape"):
            inputs.append(([d if isinstance(d, int) else None for d in value.shape], None))
        else:
            inputs.append((None, None))
    reason = refusal(*serialized(ctx, node), input_types(node), inputs)
    return None if reason is None else _refused(node, reason_of(KernelError(reason)))


def reason_of(error: Exception) -> str:
    """The line of a TensorFlow error message that names the problem."""
    text = getattr(error, "message", None) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_TELL_NOTHING)]
    return next(iter((*telling, *lines)), type(error).__name__)


_TELL_NOTHING = ("Graph execution error:", "Detected at node", "Node: ")
