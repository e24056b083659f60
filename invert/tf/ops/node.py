"""Nodes of a TensorFlow graph, decoded from their protos."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from invert._errors import (
    REPORT,
    InvertError,
    MissingDependencyError,
    Problem,
    UnsupportedOpError,
)
from invert.ir.types import Value
from invert.protos.tensors import decode_dtype, decode_shape
from invert.protos.types import Attributes, AttrValue

if TYPE_CHECKING:
    from invert.tf.ops.form import Form


def import_tensorflow() -> ModuleType:
    """Import TensorFlow on first use; nothing else in the package imports it.

    **Returns:**

    The `tensorflow` module.

    **Raises:**

    - `MissingDependencyError`: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as e:
        raise MissingDependencyError(
            f"TensorFlow is needed for this and could not be imported ({e})",
            remedy="Install it with `pip install 'invert[tensorflow]'`.",
        ) from e
    return tf


def has_tensorflow() -> bool:
    """Return whether TensorFlow is installed; does not import it."""
    return importlib.util.find_spec("tensorflow") is not None


class Node:
    """One op of a graph.

    **Arguments:**

    - `op`, `name`: op type and node name.
    - `inputs`: data inputs as `(node index, output index)`.
    - `control`: indices of the nodes this one only waits for.
    - `attrs`: the proto map of attributes.
    - `where`: name of the function the node is in; empty for the outermost graph.
    - `form`: what follows from its attributes, if known.

    **Attributes:**

    - `message`: the message of an `Assert`.
    - `read`: names of the attributes that were read.
    """

    __slots__ = (
        "_functions", "attrs", "control", "form", "inputs", "message", "name", "op", "read",
        "where",
    )  # fmt: skip

    def __init__(
        self, op: str, name: str, attrs: Attributes, where: str = "", form: Form | None = None
    ):
        self.op = op
        self.name = name
        self.attrs = attrs
        self.where = where
        self.form = form
        self.inputs: tuple[tuple[int, int], ...] = ()
        self.control: tuple[int, ...] = ()
        self.message = ""
        self.read: set[str] = set()
        self._functions: tuple[str, ...] | None = None

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the library functions that the attributes refer to."""
        if self._functions is None:
            form = self.form
            # It may have attributes that its op does not declare.
            if form is not None and len(form.declared) == len(self.attrs):
                self._functions = form.functions
            else:
                self._functions = tuple(functions_in(self.attrs, hints=False))
        return self._functions

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute `name` as a Python value, or `default` if the node lacks it."""
        self.read.add(name)
        if self.form is not None and name in self.form.declared:
            return self.form.value(name, self.attrs)
        if name not in self.attrs:
            return default
        return decode_attr(self.attrs[name])

    @property
    def location(self) -> str:
        return f"node {self.name!r}" + (f" of function {self.where!r}" if self.where else "")

    def problem(self, reason: str, remedy: str) -> Problem:
        """Why this op cannot be converted, and what to do about it."""
        return Problem(f"tf.{self.op}", reason, self.location, remedy)

    def error(self, reason: str, remedy: str) -> UnsupportedOpError:
        """The error with this problem only."""
        return UnsupportedOpError([self.problem(reason, remedy)])


@dataclasses.dataclass(frozen=True)
class Body:
    """A graph or function.

    **Arguments:**

    - `nodes`: all nodes; arguments have the op `_Arg`.
    - `args`: indices of the arguments.
    - `outputs`: results as `(node index, output index)`.
    - `controls`: indices of further nodes that have to run.
    - `order`: indices of the nodes that run, each after those it uses or waits for.
    """

    name: str
    nodes: tuple[Node, ...]
    args: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]
    controls: tuple[int, ...]
    order: tuple[int, ...]


def decode_attr(value: AttrValue) -> Any:
    """An `AttrValue` as a Python value: dtypes as `np.dtype`, functions by name."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "list":
        for field in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
            items = getattr(value.list, field)
            if len(items):
                return [_DECODE[field](item) for item in items]
        return []
    return _DECODE[kind](getattr(value, kind))


# Remedy if TensorFlow 1 control flow cannot be read.
FRAMES_REMEDY = "Export the model with tf.compat.v1.enable_control_flow_v2()."


def functions_in(attrs: Attributes, *, hints: bool = True) -> Iterator[str]:
    """Functions that attributes name; `hints`: also attributes that begin with `_`."""
    held = [key for key, value in attrs.items() if value.WhichOneof("value") in ("func", "list")]
    for key in sorted(held):
        if hints or not key.startswith("_"):
            value = attrs[key]
            yield from (f.name for f in (value.func, *value.list.func) if f.name)


# Ops that call a library function.
CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))

# For control flow, the first input that is passed to its functions.
PASSED = {
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
    "While": 0,
    "StatelessWhile": 0,
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "BatchFunction": 0,
    "RemoteCall": 1,
}


def variable_name(node: Node) -> str:
    """The name that identifies the variable of a node such as `VarHandleOp`."""
    return node.attr("shared_name") or node.name


def canonical(value: Value) -> Value:
    """`value` as JAX takes it: arrays in dtypes that the x64 setting allows."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        if dtype != value.dtype:
            return np.broadcast_to(unrepeated(value).astype(dtype), value.shape)
    return value


def unrepeated(value: np.ndarray) -> np.ndarray:
    """`value` with one element along the axes that it repeats in memory."""
    strides = zip(value.strides, value.shape, strict=True)
    return value[tuple(slice(1) if not step and size else slice(None) for step, size in strides)]


_DECODE = {
    "s": lambda v: v.decode("utf-8", "surrogateescape"),
    "i": int,
    "f": float,
    "b": bool,
    "type": decode_dtype,
    "shape": decode_shape,
    "tensor": lambda v: v,
    "func": lambda v: v.name,
    "placeholder": str,
}


# The class of open sizes in JAX, in messages of functions that take numbers only.
_OPEN_SIZE = "_DimExpr"
# Errors of JAX and NumPy that a user can act upon, once they say which op they are about.
LIBRARY_ERRORS = (TypeError, ValueError, NotImplementedError, OverflowError, MemoryError)


def named_error(node: Node, error: Exception) -> Exception:
    """A library's error in the conversion of an op, with name and location."""
    if isinstance(error, InvertError):
        return error
    reason = f"{type(error).__name__}: {error}"
    if _OPEN_SIZE in reason:  # it tells no more than that some function needs numbers
        return node.error("is converted at fixed sizes only", "Convert it at fixed sizes.")
    return node.error(reason, REPORT)


def note_op(node: Node, error: Exception) -> None:
    """Note the op that an undecided comparison of sizes is about, the innermost one only.

    The error keeps its type, which says that the program may hold for given sizes.
    """
    if not getattr(error, "__notes__", None):
        error.add_note(f"in tf.{node.op} (at {node.location})")
