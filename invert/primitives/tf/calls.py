"""Identities, calls, and the module that jax2tf wraps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from invert._errors import Problem
from invert.ir.gradient_marker import mark
from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays

# The newest version of XlaCallModule this was written for (TensorFlow 2.21, jax 0.12).
_MAX_VERSION = 10
# Before version 5, modules are not portable artifacts with guaranteed compatibility
# (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc, TensorFlow 2.21).
_MIN_VERSION = 5


@rule("RefIdentity", effect="passes")
@rule("PlaceholderWithDefault", ignores=("shape",))
@rule("Identity", "Snapshot", rows=rows.unchanged, folds_sizes=True)
def _identity(x: Value) -> Value:
    return x


@rule("IdentityN")
def _identity_n(*values: Value, ctx: Context, node: Node) -> Sequence[Value]:
    # tf.custom_gradient wraps its results and its arguments in one IdentityN whose
    # `_gradient_op_type` names the author's rule. The values pass through unchanged.
    gradient = ctx.graph.gradient(node)
    if gradient is None:
        return values
    count = len(values) - sum(not isinstance(c, np.ndarray) for c in gradient.captures)
    # Gradient functions only read the variables they capture.
    own, captured = values[:count], iter(arrays([ctx.read(v) for v in values[count:]]))
    captures = [
        array(c) if isinstance(c, np.ndarray) else next(captured) for c in gradient.captures
    ]
    results, inputs = arrays(own[: gradient.results]), arrays(own[gradient.results :])
    return [*mark(gradient.marked, results, inputs, captures), *own[gradient.results :]]


@rule("NoOp", effect="none")
def _no_op() -> None:
    return None


@rule("StopGradient", rows=rows.unchanged)
def _stop_gradient(x: Array) -> Array:
    return lax.stop_gradient(x)


@rule("PreventGradient", rows=rows.unchanged)
def _prevent_gradient(x: Array, *, ctx: Context, node: Node, message: str) -> Array:
    if not jax.dtypes.issubdtype(x.dtype, np.inexact):
        return x  # it has no derivative
    warn = ctx.config.prevent_gradient == "warn"
    return _no_gradient(node.location, message, warn)(x)


def _no_gradient(location: str, message: str, warn: bool) -> Callable[[Array], Array]:
    """An identity whose derivative is a `LookupError`, as in TensorFlow, or a warning."""

    def prevent_gradient(x: Array) -> Array:
        return x

    def jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (x,), (t,) = primals, tangents
        if isinstance(t, SymbolicZero):
            return x, t
        text = f"tf.PreventGradient ({location}) forbids the derivative: {message or 'no message'}"
        if not warn:
            raise LookupError(f'{text}. Config(prevent_gradient="warn") allows it.')
        warnings.warn(text, stacklevel=2)
        return x, t

    identity = jax.custom_jvp(prevent_gradient)
    identity.defjvp(jvp, symbolic_zeros=True)
    return identity


def _check_module(ctx: Context, node: Node) -> Iterable[Problem]:
    version = node.attr("version", 0)
    op = "tf.XlaCallModule"
    if not _MIN_VERSION <= version <= _MAX_VERSION:
        remedy = (
            "Export the model again with an older jax or a newer invert."
            if version > _MAX_VERSION
            else "Export the model again with a jax from 2023-06 or later."
        )
        reason = f"version {version} is not among those known ({_MIN_VERSION} to {_MAX_VERSION})"
        yield Problem(op, reason, node.location, remedy)
        return
    for attr, reason, remedy in (
        ("dim_args_spec", "passes dimensions as arguments", "Export it again with a newer jax."),
        ("has_token_input_output", "has ordered side effects", "Remove them before exporting."),
        (
            "function_list",
            "calls TensorFlow functions (jax2tf.call_tf with call_tf_graph=True)",
            "Convert the TensorFlow function separately.",
        ),
    ):
        if node.attr(attr):
            yield Problem(op, f"{reason} (attribute {attr})", node.location, remedy)
    yield from ctx.graph.program(node).problems


@rule(
    "XlaCallModule",
    check=_check_module,
    effect="none",
    # The first are read with the module; `Sout` holds shapes of results.
    ignores=("module", "platforms", "version", "Sout", "disabled_checks", "use_shardy_partitioner"),
)
def _xla_call_module(*args: Array, ctx: Context, node: Node) -> Sequence[Array]:
    program = ctx.graph.program(node)
    results = list(program(*args))
    for text in program.notes():
        ctx.graph.note(text)
    return results
