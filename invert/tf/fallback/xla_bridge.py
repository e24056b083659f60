"""Ops without a rule of their own: compiled alone by TensorFlow's XLA bridge and raised.

Where the registry has no rule for an op that XLA compiles, the op is put into a function of its
own, at the shapes at hand and with its attributes. TensorFlow translates that function to HLO
(it does not run it), jaxlib turns HLO into StableHLO, and the rules for StableHLO raise it. What
comes out are `lax` primitives, which batch and differentiate like any others. They stand in an
inner `jit` of the name `tf_<op>`, by which the report counts them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from invert._config import Config
from invert._errors import Problem, UnsupportedOpError
from invert._private.mlir import mlir_bindings
from invert.tf.fallback.eager import (
    Input,
    constants_of,
    graph_of,
    input_types,
    reason_of,
    run_eagerly,
    serialized,
)
from invert.tf.fallback.xla_bridge_ops import BRIDGED, NEEDS_RULE, PREFIX
from invert.tf.fallback.xla_gradients import marked
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Entry
from invert.tf.ops.node import Node, import_tensorflow
from invert.tf.values.constants import is_static

_CONCRETE = "Convert it at concrete sizes (pass example arguments), or compute it outside."
# Inputs that are known and have up to this many numbers are compiled in. XLA wants shapes, axes
# and paddings so, and does not say beforehand which inputs these are.
_MAX_CONSTANT = 16


def bridge_entry(node: Node) -> Entry | None:
    """The entry of an op over the bridge; `None` where XLA does not compile it, or it has state."""
    if node.op in NEEDS_RULE:
        return Entry(_refuse, "none", _check_refused)
    return Entry(_bridge, "xla", _check, needs_tensorflow=True) if node.op in BRIDGED else None


def _check_refused(ctx: Context, node: Node) -> Iterable[Problem]:
    yield _problem(node, NEEDS_RULE[node.op])


def _refuse(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    raise UnsupportedOpError([_problem(node, NEEDS_RULE[node.op])])


# DataType of tensorflow/core/framework/types.proto; references have 100 more.
_NOT_NUMERIC = {
    7: "string", 20: "resource", 21: "variant", 11: "qint8", 12: "quint8", 13: "qint32",
    15: "qint16", 16: "quint16",
}  # fmt: skip


def _check(ctx: Context, node: Node) -> Iterable[Problem]:
    """What is known of a node without its inputs: the types that it names."""
    for name in sorted(node.attrs):
        value = node.attrs[name]
        for number in dict.fromkeys(t % 100 for t in (value.type, *value.list.type)):
            if number in _NOT_NUMERIC:
                what = _NOT_NUMERIC[number]
                reason = (
                    f"has no rule for {what} tensors (attribute {name}), which JAX does not have"
                )
                yield _problem(node, reason)


def _problem(node: Node, reason: str, remedy: str = "Compute it outside the function.") -> Problem:
    return Problem(f"tf.{node.op}", reason, node.location, remedy)


def _bridge(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    values = [_concrete(node, v) for v in values]
    if values and all(is_static(v) for v in values):
        return run_eagerly(ctx, node, values)  # arithmetic of shapes stays known
    key, program = _program(ctx, node, values)
    compiled_in = [value is not None for _, value in key[-1]]
    if program.open_results:
        if all(isinstance(v, np.ndarray) for v in values):
            return run_eagerly(ctx, node, values)
        sizes = ", ".join(program.open_results)
        reason = f"has a result whose size depends on the data ({sizes})"
        remedy = "Sizes in a JAX program are fixed. Give the op a bound, or compute it outside."
        raise UnsupportedOpError([_problem(node, reason, remedy)])
    operands = [
        x if x.dtype == dtype else lax.convert_element_type(x, dtype)
        for x, dtype in zip(
            (v for v, known in zip(values, compiled_in, strict=True) if not known),
            program.dtypes,
            strict=True,
        )
    ]
    try:
        results = list(program.call(*operands))
    except UnsupportedOpError as error:
        reasons = [f"is compiled by XLA to {p.op}, but {p.reason}" for p in error.problems]
        raise UnsupportedOpError([_problem(node, reason) for reason in reasons]) from error
    # Some kernels do not keep the types of the op: that of ConjugateTranspose makes complex numbers
    # of real ones (tensorflow/compiler/tf2xla/kernels/transpose_op.cc, TensorFlow 2.21).
    for x, dtype in zip(results, program.declared, strict=True):
        if x.dtype != dtype:
            reason = f"is compiled by XLA to {x.dtype}, but its results are {dtype}"
            raise UnsupportedOpError([_problem(node, reason)])
    return marked(ctx, node.location, key, operands, results)


def _concrete(node: Node, value: Any) -> Any:
    """`value`, whose sizes must be numbers."""
    held = isinstance(value, np.ndarray) and value.dtype == object
    sizes = np.ravel(value).tolist() if held else np.shape(value)
    symbolic = [str(d) for d in sizes if not isinstance(d, int | np.integer)]
    if symbolic:
        reason = (
            f"has no rule for open sizes ({', '.join(symbolic)}); TensorFlow's XLA bridge compiles "
            "it at concrete sizes only"
        )
        raise UnsupportedOpError([_problem(node, reason, _CONCRETE)])
    return value.astype(np.int64) if held else value


# Op, its proto, its library, the types of its inputs, and what is known of them.
_Key = tuple[str, bytes, bytes, tuple[int, ...], tuple[Input, ...]]


def _program(ctx: Context, node: Node, values: Sequence[Any]) -> tuple[_Key, _Compiled]:
    """The compiled op, and its inputs."""
    text, library = serialized(ctx, node)
    types = tuple(input_types(node))
    small = tuple(_is_small(v) for v in values)
    known = tuple(isinstance(v, np.ndarray) for v in values)
    for compiled_in in (small, known):
        inputs = tuple(
            (tuple(np.shape(v)), (v.dtype, v.tobytes()) if constant else None)
            for v, constant in zip(values, compiled_in, strict=True)
        )
        key = (node.op, text, library, types, inputs)
        try:
            return key, _compiled(*key, ctx.config)
        except _NotConstantError as error:
            if compiled_in == known:
                reason = f"must know an input while it is compiled, which depends on data: {error}"
                raise UnsupportedOpError([_problem(node, reason)]) from error
        except _CompileError as error:
            reason = f"is not compiled by XLA: {error}"
            raise UnsupportedOpError([_problem(node, reason)]) from error
    raise AssertionError("the last of the two attempts returns or raises")


def _is_small(value: Any) -> bool:
    known = isinstance(value, np.ndarray)
    return is_static(value) or (known and value.size <= _MAX_CONSTANT)


class _CompileError(Exception):
    """TensorFlow cannot compile the op."""


class _NotConstantError(_CompileError):
    """XLA wants an input as a constant."""


class _Compiled:
    """A compiled op: a function of the inputs that were not compiled in."""

    def __init__(self, program: Any, op: str, declared: Sequence[np.dtype]):
        self.dtypes = [dtype for _, dtype in program.in_types]
        self.declared = tuple(declared)
        results = program.functions[program.entry].attributes["function_type"].value.results
        self.open_results = [str(t) for t in results if "?" in str(t)]

        def call(*args: Any) -> list[Any]:
            return program(*args)

        call.__name__ = call.__qualname__ = PREFIX + op
        # One jit for each program, so that JAX traces it once, however often it is used.
        self.call: Callable[..., list[Any]] = jax.jit(call)


@functools.lru_cache(maxsize=1024)
def _compiled(
    op: str,
    text: bytes,
    library: bytes,
    types: tuple[int, ...],
    inputs: tuple[Input, ...],
    config: Config,
) -> _Compiled:
    """The op of the serialized node `text` at these inputs."""
    from invert.stablehlo.program import Program

    tf = import_tensorflow()
    specs = [
        tf.TensorSpec(shape, tf.dtypes.as_dtype(t))
        for (shape, value), t in zip(inputs, types, strict=True)
        if value is None
    ]
    declared: list[np.dtype] = []

    def function(*args: Any) -> list[Any]:
        given = iter(args)
        results = graph_of(text, library, constants_of(types, inputs, lambda *_: next(given)))
        declared[:] = [np.dtype(t.dtype.as_numpy_dtype) for t in results]
        return results

    try:
        module = _stablehlo(function, specs)
    # What TensorFlow raises for an op, a type or an attribute that its XLA kernels refuse.
    except (ValueError, TypeError, NotImplementedError, tf.errors.OpError) as error:
        kind = _NotConstantError if "compile-time constant" in str(error) else _CompileError
        raise kind(reason_of(error)) from error
    program = Program.from_bytes(module, config=config, trusted=True)
    return _Compiled(program, op, declared)


_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def _stablehlo(function: Callable[..., Any], specs: Sequence[Any]) -> bytes:
    """Lowers a function at static types to StableHLO bytecode with TensorFlow; runs nothing."""
    tf = import_tensorflow()
    with tf.init_scope(), warnings.catch_warnings():
        # Without a device, TensorFlow runs a random op to ask for the default one, which moves the
        # generator of the user (tensorflow/python/eager/polymorphic_function/compiler_ir.py, 2.21).
        warnings.filterwarnings("ignore", message="device_name is being deprecated")
        compiled = tf.function(function, autograph=False, jit_compile=True)
        stage = compiled.experimental_get_compiler_ir(*specs)
        hlo = stage(stage="hlo_serialized", device_name=_CPU)
    return mlir_bindings.hlo_to_stablehlo(hlo)
