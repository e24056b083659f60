"""Identities, calls, and the module that jax2tf wraps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from jax import lax

from invert._errors import Problem
from invert.ir.gradient_marker import mark, without_derivative
from invert.tf.control.branch_types import strong
from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays, ints

# The newest version of XlaCallModule this was written for (TensorFlow 2.21, jax 0.12).
_MAX_VERSION = 10
# Before version 5, modules are not portable artifacts with guaranteed compatibility
# (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc, TensorFlow 2.21).
_MIN_VERSION = 5


@rule("RefIdentity", effect="passes")
@rule("PlaceholderWithDefault", ignores=("shape",))
@rule("Identity", effect="passes", rows=rows.unchanged, folds_sizes=True)
@rule("Snapshot", rows=rows.unchanged, folds_sizes=True)
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
    if gradient.instead is not None:
        return [*gradient.instead(inputs), *own[gradient.results :]]
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
    # A name that TensorFlow gave says nothing, and would tell equal nodes apart.
    numbered = re.fullmatch(r"PreventGradient(_\d+)?", node.name) is not None
    place = "" if numbered else f" ({node.location})"
    text = f"tf.PreventGradient{place} forbids the derivative: {message or 'no message'}"
    if ctx.config.prevent_gradient == "warn":
        return without_derivative(text, warn=True)(x)
    return without_derivative(f'{text}. Config(prevent_gradient="warn") allows it.')(x)


def _check_module(ctx: Context, node: Node) -> Iterable[Problem]:
    version = node.attr("version", 0)
    op = "tf.XlaCallModule"
    if not _MIN_VERSION <= version <= _MAX_VERSION:
        remedy = (
            "Export the model again with an older jax or a newer invert."
            if version > _MAX_VERSION
            else "Export the model again with a jax from 2023-06 or later."
        )
        reason = f"version {version} is not supported ({_MIN_VERSION} to {_MAX_VERSION} are)"
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


# -- calls per row, repeated, in batches or on a device


def _without_effects(
    ctx: Context, node: Node, function: str
) -> Callable[[Sequence[Value]], list[Array]]:
    """The library function `function` as a function of arrays.

    **Raises:** `UnsupportedOpError` if it changes variables, or draws from the key of the call.
    """

    def call(values: Sequence[Value]) -> list[Array]:
        child = ctx.on(dict(ctx.state))
        results = child.call(function, values)
        if any(child.state.get(r) is not old for r, old in ctx.state.items()):
            raise node.error(
                f"calls the function {function!r}, which changes variables",
                "Change the variables outside of it.",
            )
        return [strong(array(v)) for v in results]

    return call


@rule("MapDefun", ignores=("output_shapes", "max_intra_op_parallelism"))
def _map_defun(
    *operands: Value, ctx: Context, node: Node, f: str, Targuments: list[np.dtype]
) -> list[Array]:
    """Map a function over rows of the first operands; others stay whole."""
    count = len(Targuments)
    rows, captured = [array(v) for v in operands[:count]], operands[count:]
    call = _without_effects(ctx, node, f)
    return jax.vmap(lambda *row: call([*row, *captured]))(*rows)


@rule("For")
def _for(
    start: Value, limit: Value, delta: Value, *carry: Array, ctx: Context, node: Node, body: str
) -> list[Array]:
    """A function of a counter and of the results of the previous step."""
    call = _without_effects(ctx, node, body)
    bounds = start, limit, delta
    if all(isinstance(v, np.ndarray) for v in bounds):
        start, limit, delta = (ints(v)[0] for v in bounds)
        trip_count: Array = len(range(start, limit, delta))
    else:
        start, limit, delta = (array(v) for v in bounds)
        trip_count = lax.max(-((start - limit) // delta), np.int32(0))

    def step(i: Array, carry: Sequence[Array]) -> list[Array]:
        return call([start + i * delta, *carry])

    return lax.fori_loop(0, trip_count, step, [strong(v) for v in carry])


# How a server collects the examples of a batch.
_BATCHING = (
    "num_batch_threads", "max_batch_size", "batch_timeout_micros", "max_enqueued_batches",
    "allowed_batch_sizes", "container", "shared_name", "batching_queue",
    "low_priority_max_batch_size", "low_priority_batch_timeout_micros",
    "low_priority_allowed_batch_sizes", "low_priority_max_enqueued_batches",
    "mixed_priority_policy", "batch_padding_policy", "enable_large_batch_splitting",
)  # fmt: skip


@rule("BatchFunction", ignores=_BATCHING)
def _batch_function(*operands: Value, ctx: Context, f: str) -> list[Value]:
    return ctx.call(f, operands)


@rule("RemoteCall")
def _remote_call(target: Value, *args: Value, ctx: Context, f: str) -> list[Value]:
    return ctx.call(f, args)
