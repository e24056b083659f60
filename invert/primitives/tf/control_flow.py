"""Branches and calls, and the ops that choose between values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.control.branch_types import (
    Form,
    Optional,
    ShapeVariesError,
    TracedBranch,
    Undefined,
    bring,
    flatten,
    form_of,
    join,
)
from invert.tf.control.gradient_arrays import gradient_arrays
from invert.tf.control.while_loop import while_loop
from invert.tf.gradients.override import gradient_function, with_function_gradient
from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.ops.state import Resource
from invert.tf.values.constants import array, arrays
from invert.tf.values.tensor_list import TensorList


def branches(
    ctx: Context,
    node: Node,
    functions: Sequence[str],
    values: Sequence[Any],
    choose: Callable[[Sequence[Callable[[], Any]]], Any],
) -> list[Any]:
    """Runs one of several functions on the same values.

    **Arguments:**

    - `choose`: calls one of the functions it is given, as `lax.cond` and `lax.switch` do.

    **Raises:** `UnsupportedOpError` where the branches give results of different types.
    """
    written: dict[Resource, None] = {}
    staged: list[tuple[TracedBranch, list[Resource]]] = []
    for number, function in enumerate(functions):
        changed: list[Resource] = []

        def run(
            function: str = function, changed: list[Resource] = changed, number: int = number
        ) -> list[Any]:
            child = ctx.on(dict(ctx.state), number)
            results = child.call(function, values)
            if gradient_arrays(ctx, child):
                child = ctx.on(dict(ctx.state), number)
                results = child.call(function, values)
            changed += [r for r, old in ctx.state.items() if child.state.get(r) is not old]
            return [*results, *(child.state[r] for r in changed)]

        body = TracedBranch(run)
        staged.append((body, changed))
        written.update(dict.fromkeys(changed))
    count = len(staged[0][0].results) - len(staged[0][1])

    def completed(results: Sequence[Any], changed: Sequence[Resource]) -> list[Any]:
        """Results, then the value of everything that one of the branches writes."""
        new = dict(zip(changed, results[count:], strict=True))
        return [*results[:count], *(new.get(r, ctx.state[r]) for r in written)]

    types = [completed(body.results, changed) for body, changed in staged]
    forms = [_common(node, i, same) for i, same in enumerate(zip(*types, strict=True))]
    rebuild: list[Callable[[Sequence[Any]], list[Any]]] = []

    def leaves_of(body: TracedBranch, changed: list[Resource]) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            results = completed(body(), changed)
            leaves, put = flatten([bring(x, f) for x, f in zip(results, forms, strict=True)])
            rebuild.append(put)
            return leaves

        return run

    leaves = choose([leaves_of(body, changed) for body, changed in staged])
    results = [_grown(r, ways) for r, *ways in zip(rebuild[-1](leaves), *types, strict=True)]
    ctx.state.update(zip(written, results[count:], strict=True))
    return results[:count]


def _grown(result: Any, ways: Sequence[Any]) -> Any:
    """A list that gets as many elements as on the way that adds most."""
    if not isinstance(result, TensorList) or not result.is_unallocated:
        return result
    growth = max(w.growth for w in ways if isinstance(w, TensorList))
    return dataclasses.replace(result, growth=growth)


def _common(node: Node, index: int, values: Sequence[Any]) -> Form:
    form = form_of(values[0])
    for value in values[1:]:
        try:
            form = join(form, form_of(value))
        except ShapeVariesError as error:
            reason = f"result {index} {error}"
            remedy = "Arrays of a JAX program have one shape; let the branches agree on it."
            problem = Problem(f"tf.{node.op}", reason, node.location, remedy)
            raise UnsupportedOpError([problem]) from error
    return form


def truth(value: Any) -> Any:
    """The condition of an `If`: static, or a scalar of type bool.

    Numbers count as true unless they are zero, other arrays unless they are empty
    (tensorflow/core/kernels/functional_ops.cc, `ToBool`, TensorFlow 2.21).
    """
    if np.ndim(value) or not isinstance(value, np.ndarray):
        if np.ndim(value):
            return np.asarray(0 not in np.shape(value))
        return value if value.dtype == np.bool_ else lax.ne(value, np.zeros((), value.dtype))
    return np.asarray(bool(value))


@raises_tf("If", "StatelessIf", "XlaIf", chooses=True)
def _if(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    then, otherwise = node.attr("then_branch"), node.attr("else_branch")
    predicate = truth(values[0])
    if isinstance(predicate, np.ndarray):
        return ctx.call(then if predicate else otherwise, values[1:])
    return branches(ctx, node, (then, otherwise), values[1:], lambda fns: lax.cond(predicate, *fns))


@raises_tf("Case", "StatelessCase", chooses=True)
def _case(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    functions = node.attr("branches")
    index, last = values[0], len(functions) - 1
    if isinstance(index, np.ndarray):
        k = int(index)
        return ctx.call(functions[k if 0 <= k < last else last], values[1:])
    # An index out of range means the last branch.
    outside = lax.lt(index, np.zeros((), index.dtype))
    index = lax.select(outside, jnp.full((), last, index.dtype), index)
    return branches(ctx, node, functions, values[1:], lambda fns: lax.switch(index, fns))


@raises_tf("While", "StatelessWhile", "XlaWhile")
def _while(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return while_loop(ctx, node, node.attr("cond"), node.attr("body"), values)


@raises_tf("PartitionedCall", "StatefulPartitionedCall")
def _partitioned_call(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    results = ctx.call(node.attr("f"), values)
    name = gradient_function(ctx, node.attr("f"))
    return results if name is None else with_function_gradient(ctx, node, name, values, results)


@raises_tf("FakeParam")
def _fake_param(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [Undefined()]


@raises_tf("OptionalNone")
def _optional_none(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [Undefined()]


@raises_tf("OptionalFromValue")
def _optional_from_value(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if len(values) != 1:
        reason = "holds more than one value"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
    return [Optional.of(values[0], ctx.branch)]


@raises_tf("OptionalGetValue")
def _optional_get_value(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """The value that the branch which was taken gave; its gradient asks for no other."""
    shape, dtype = node.attr("output_shapes")[0], node.attr("output_types")[0]
    choices = values[0].choices if isinstance(values[0], Optional) else {}
    fitting = {
        key: value
        for key, value in choices.items()
        if (key[0] != "array" if dtype.kind == "O" else _fits(key, shape, dtype))
    }
    if len(fitting) > 1:  # the gradient of a branch has the number of the branch
        fitting = {key: value for key, value in fitting.items() if key[-1] == ctx.branch}
    if len(fitting) == 1:
        return list(fitting.values())
    if fitting or dtype.kind == "O" or shape is None or None in shape:
        reason = "takes a value that is of several types" if fitting else "takes an absent value"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
    return [jnp.zeros(shape, jax.dtypes.canonicalize_dtype(dtype))]


def _fits(key: Any, shape: tuple[int | None, ...] | None, dtype: np.dtype) -> bool:
    kind, *found = key
    return (
        kind == "array"
        and found[1] == str(jax.dtypes.canonicalize_dtype(dtype))
        and (
            shape is None
            or (
                len(shape) == len(found[0])
                and all(d is None or d == n for d, n in zip(shape, found[0], strict=True))
            )
        )
    )


@raises_tf("OptionalHasValue")
def _optional_has_value(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [np.asarray(isinstance(values[0], Optional))]


def check_resource(node: Node) -> Resource:
    """The handle of the truth value that says whether the check of a node failed."""
    return Resource("check", node.location)


def _fail(ctx: Context, node: Node, failed: Any) -> None:
    """Notes a failed check. What becomes of it is settled at the end of the whole program."""
    resource = check_resource(node)
    if resource in ctx.state:
        before = ctx.state[resource]
        first = isinstance(before, np.ndarray) and not before
        ctx.write(resource, failed if first else lax.bitwise_or(before, failed))


@raises_tf("Assert")
def _assert(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    holds = truth(values[0])
    _fail(ctx, node, np.asarray(not holds) if isinstance(holds, np.ndarray) else ~holds)
    return []


@raises_tf("CheckNumerics", "CheckNumericsV2", rows=rows.unchanged)
def _check_numerics(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    _fail(ctx, node, ~jnp.all(jnp.isfinite(array(values[0]))))
    return [values[0]]


@raises_tf("Print")
def _print(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [values[0]]


@raises_tf("SymbolicGradient")
def _symbolic_gradient(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """The gradient of a function, of its arguments and the gradients of its results."""
    count = len(node.attr("Tout"))
    if (name := gradient_function(ctx, node.attr("f"))) is not None:
        return ctx.call(name, values)
    inputs, cotangents = values[:count], arrays(values[count:])
    moving = [i for i, v in enumerate(inputs) if _is_moving(v)]

    def results(moved: Sequence[Any]) -> list[Any]:
        child = ctx.on(dict(ctx.state))
        given = dict(zip(moving, moved, strict=True))
        found = child.call(node.attr("f"), [given.get(i, v) for i, v in enumerate(inputs)])
        changed = [r for r in child.state if r.kind == "variable" and r in ctx.state]
        if any(child.state[r] is not ctx.state[r] for r in changed):
            reason = "differentiates a function that assigns variables"
            raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
        return [array(v) for v in found if _is_moving(v)]

    _, pull = jax.vjp(results, [jnp.asarray(array(inputs[i])) for i in moving])
    (found,) = pull([g for g in cotangents if _is_moving(g)])
    gradients = dict(zip(moving, found, strict=True))
    return [
        gradients[i] if i in gradients else jnp.zeros_like(array(v)) for i, v in enumerate(inputs)
    ]


def _is_moving(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.inexact)
