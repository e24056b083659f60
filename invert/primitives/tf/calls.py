"""Identities, calls, and the module that jax2tf wraps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from invert._errors import Problem
from invert.ir.gradient_marker import mark
from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays

# The newest version of XlaCallModule this was written for (TensorFlow 2.21, jax 0.12).
_MAX_VERSION = 10
# Serialization before version 5 is not a portable artifact with a promise of compatibility
# (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc, TensorFlow 2.21).
_MIN_VERSION = 5


@raises_tf("RefIdentity", effect="passes")
@raises_tf("PlaceholderWithDefault")
@raises_tf("Identity", "Snapshot", rows=rows.unchanged, folds_sizes=True)
def _identity(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [values[0]]


@raises_tf("IdentityN")
def _identity_n(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # tf.custom_gradient wraps its results and its arguments in one IdentityN whose
    # `_gradient_op_type` names the author's rule. The values pass through unchanged.
    gradient = ctx.graph.gradient(node)
    if gradient is None:
        return list(values)
    count = len(values) - sum(not isinstance(c, np.ndarray) for c in gradient.captures)
    # Gradient functions read the variables they capture; they never change them.
    own, captured = values[:count], iter(arrays([ctx.read(v) for v in values[count:]]))
    captures = [
        array(c) if isinstance(c, np.ndarray) else next(captured) for c in gradient.captures
    ]
    results, inputs = arrays(own[: gradient.results]), arrays(own[gradient.results :])
    return [*mark(gradient.marked, results, inputs, captures), *own[gradient.results :]]


@raises_tf("NoOp", effect="none")
def _no_op(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return []


@raises_tf("StopGradient", rows=rows.unchanged)
def _stop_gradient(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [lax.stop_gradient(array(values[0]))]


@raises_tf("PreventGradient", rows=rows.unchanged)
def _prevent_gradient(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    warn = ctx.config.prevent_gradient == "warn"
    x = array(values[0])
    if not jax.dtypes.issubdtype(x.dtype, np.inexact):
        return [x]  # it has no derivative
    return [_no_gradient(node.location, node.attr("message", ""), warn)(x)]


def _no_gradient(location: str, message: str, warn: bool) -> Callable[[Any], Any]:
    """An identity whose derivative is a `LookupError`, as it is in TensorFlow, or a warning."""

    def prevent_gradient(x: Any) -> Any:
        return x

    def jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
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
            "calls back into TensorFlow functions (jax2tf.call_tf with call_tf_graph=True)",
            "Convert the TensorFlow function on its own.",
        ),
    ):
        if node.attr(attr):
            yield Problem(op, f"{reason} (attribute {attr})", node.location, remedy)
    yield from ctx.graph.program(node).problems


@raises_tf("XlaCallModule", check=_check_module, effect="none")
def _xla_call_module(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return list(ctx.graph.program(node)(*(array(v) for v in values)))
