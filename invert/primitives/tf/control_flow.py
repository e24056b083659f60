"""Branches and calls, optional values, and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.avals import fits_shape
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
    truth,
)
from invert.tf.control.while_loop import gradient_arrays, while_loop
from invert.tf.gradients.read import gradient_function, with_function_gradient
from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.ops.node import Node
from invert.tf.ops.state import Resource
from invert.tf.values.constants import array, arrays
from invert.tf.values.tensor_list import TensorList

# What `CheckNumerics` checks, in the words of its errors.
_NOT_NUMBERS: dict[str, Callable[[Array], Array]] = {"Inf": jnp.isinf, "NaN": jnp.isnan}

Thunk = Callable[[], list[Array]]


def _branches(
    ctx: Context,
    node: Node,
    functions: Sequence[str],
    operands: Sequence[Value],
    choose: Callable[[Sequence[Thunk]], list[Array]],
) -> list[Value]:
    """Run one of several functions on the same operands.

    **Arguments:**

    - `choose`: calls one of the given functions, as `lax.cond` and `lax.switch` do.

    **Raises:** `UnsupportedOpError` if the branches return results of different types.
    """
    written: dict[Resource, None] = {}
    traced: list[tuple[TracedBranch, list[Resource]]] = []
    for number, function in enumerate(functions):
        changed: list[Resource] = []

        def run(
            function: str = function, changed: list[Resource] = changed, number: int = number
        ) -> list[Value]:
            child = ctx.on(dict(ctx.state), number)
            results = child.call(function, operands)
            if gradient_arrays(ctx, child):
                child = ctx.on(dict(ctx.state), number)
                results = child.call(function, operands)
            changed += [r for r, old in ctx.state.items() if child.state.get(r) is not old]
            return [*results, *(child.state[r] for r in changed)]

        body = TracedBranch(run)
        traced.append((body, changed))
        written.update(dict.fromkeys(changed))
    count = len(traced[0][0].results) - len(traced[0][1])

    def with_state(results: Sequence[Value], changed: Sequence[Resource]) -> list[Value]:
        """Results, then the values of the resources that one of the branches writes."""
        new = dict(zip(changed, results[count:], strict=True))
        return [*results[:count], *(new.get(r, ctx.state[r]) for r in written)]

    types = [with_state(body.results, changed) for body, changed in traced]
    forms = [_common(node, i, same) for i, same in enumerate(zip(*types, strict=True))]
    rebuild: list[Callable[[Sequence[Array]], list[Value]]] = []

    def leaves_of(body: TracedBranch, changed: list[Resource]) -> Thunk:
        def run() -> list[Array]:
            results = with_state(body(), changed)
            leaves, put = flatten([bring(x, f) for x, f in zip(results, forms, strict=True)])
            rebuild.append(put)
            return leaves

        return run

    leaves = choose([leaves_of(body, changed) for body, changed in traced])
    results = [_grown(r, same) for r, *same in zip(rebuild[-1](leaves), *types, strict=True)]
    ctx.state.update(zip(written, results[count:], strict=True))
    return results[:count]


def _grown(result: Value, of_branches: Sequence[Value]) -> Value:
    """A list with the growth of the branch that adds the most elements."""
    if not isinstance(result, TensorList) or not result.is_unallocated:
        return result
    growth = max(v.growth for v in of_branches if isinstance(v, TensorList))
    return dataclasses.replace(result, growth=growth)


def _common(node: Node, index: int, values: Sequence[Value]) -> Form:
    form = form_of(values[0])
    for value in values[1:]:
        try:
            form = join(form, form_of(value))
        except ShapeVariesError as error:
            remedy = "An array of a JAX program has one shape: return the same from all branches."
            raise node.error(f"result {index} {error}", remedy) from error
    return form


@rule("If", "StatelessIf", "XlaIf", chooses=True, ignores=("output_shapes",))
def _if(
    cond: Value, *operands: Value, ctx: Context, node: Node, then_branch: str, else_branch: str
) -> list[Value]:
    predicate = truth(cond)
    if isinstance(predicate, np.ndarray):
        return ctx.call(then_branch if predicate else else_branch, operands)
    functions = then_branch, else_branch
    return _branches(ctx, node, functions, operands, lambda fns: lax.cond(predicate, *fns))


@rule("Case", "StatelessCase", chooses=True, ignores=("output_shapes",))
def _case(
    index: Value, *operands: Value, ctx: Context, node: Node, branches: list[str]
) -> list[Value]:
    last = len(branches) - 1
    if isinstance(index, np.ndarray):
        k = int(index)
        return ctx.call(branches[k if 0 <= k < last else last], operands)
    # An index out of range selects the last branch.
    outside = lax.lt(index, np.zeros((), index.dtype))
    index = lax.select(outside, jnp.full((), last, index.dtype), index)
    return _branches(ctx, node, branches, operands, lambda fns: lax.switch(index, fns))


@rule("While", "StatelessWhile", "XlaWhile", ignores=("output_shapes", "parallel_iterations"))
def _while(*values: Value, ctx: Context, node: Node, cond: str, body: str) -> list[Value]:
    return while_loop(ctx, node, cond, body, list(values))


@rule(
    "PartitionedCall",
    "StatefulPartitionedCall",
    ignores=("config", "config_proto", "executor_type"),
)
def _partitioned_call(*operands: Value, ctx: Context, node: Node, f: str) -> list[Value]:
    values = list(operands)
    results = ctx.call(f, values)
    name = gradient_function(ctx, f)
    return results if name is None else with_function_gradient(ctx, node, name, values, results)


@rule("FakeParam", ignores=("shape",))
@rule("OptionalNone")
def _undefined() -> Undefined:
    return Undefined()


@rule("OptionalFromValue")
def _optional_from_value(value: Value, *, ctx: Context) -> Optional:
    return Optional.of(value, ctx.branch)


@rule("OptionalGetValue")
def _optional_get_value(
    optional: Value,
    *,
    ctx: Context,
    node: Node,
    output_types: list[np.dtype],
    output_shapes: list[tuple[int | None, ...] | None],
) -> Value:
    """The value from the branch that was taken; its gradient uses no other."""
    shape, dtype = output_shapes[0], output_types[0]
    choices = optional.choices if isinstance(optional, Optional) else {}
    matches = {
        key: value
        for key, value in choices.items()
        if (key[0] != "array" if dtype.kind == "O" else _matches(key, shape, dtype))
    }
    if len(matches) > 1:  # the gradient of a branch has the number of that branch
        matches = {key: value for key, value in matches.items() if key[-1] == ctx.branch}
    if len(matches) == 1:
        return list(matches.values())
    if matches:
        raise node.error(
            "takes a value that has several types", "Return values of one type from all branches."
        )
    if dtype.kind == "O" or shape is None or None in shape:
        raise node.error(
            "takes a missing value of unknown type", "Return values of one type from all branches."
        )
    return jnp.zeros(shape, jax.dtypes.canonicalize_dtype(dtype))


def _matches(key: Value, shape: tuple[int | None, ...] | None, dtype: np.dtype) -> bool:
    """Return whether a choice (kind, shape, dtype and branch) is of a type."""
    kind, *rest = key
    if kind != "array" or rest[1] != str(jax.dtypes.canonicalize_dtype(dtype)):
        return False
    return shape is None or fits_shape(rest[0], shape)


@rule("OptionalHasValue")
def _optional_has_value(optional: Value) -> np.ndarray:
    return np.asarray(isinstance(optional, Optional))


def checks_of(node: Node) -> dict[Resource, str]:
    """The checks of a node: handles of the failure flags, with their messages."""
    says = f"tf.{node.op} ({node.location}) failed"
    if node.op == "Assert":
        return {Resource("check", node.location): f"{says}: {node.message}".rstrip(": ")}
    text = node.attr("message", "")
    return {_check(node, v): f"{says}: {text} : Found {v} values" for v in _NOT_NUMBERS}


def _check(node: Node, value: str) -> Resource:
    return Resource("check", f"{value} at {node.location}")


def _fail(ctx: Context, resource: Resource, failed: Array) -> None:
    """Record whether a check failed, to report at the program's end."""
    if resource in ctx.state:
        before = ctx.state[resource]
        first = isinstance(before, np.ndarray) and not before
        ctx.write(resource, failed if first else lax.bitwise_or(before, failed))


@rule("Assert", ignores=("summarize",))
def _assert(condition: Value, *data: Value, ctx: Context, node: Node) -> None:
    holds = truth(condition)
    (resource,) = checks_of(node)
    _fail(ctx, resource, np.asarray(not holds) if isinstance(holds, np.ndarray) else ~holds)


@rule("CheckNumerics", "CheckNumericsV2", rows=rows.unchanged, ignores=("message",))
def _check_numerics(x: Value, *, ctx: Context, node: Node) -> Value:
    for value, is_value in _NOT_NUMBERS.items():
        _fail(ctx, _check(node, value), jnp.any(is_value(array(x))))
    return x


@rule("Print", ignores=("message", "first_n", "summarize"))
def _print(x: Value, *data: Value) -> Value:
    return x


@rule("SymbolicGradient")
def _symbolic_gradient(
    *operands: Value, ctx: Context, node: Node, f: str, Tout: list[np.dtype]
) -> list[Array]:
    """The gradient of a function, from its arguments and the cotangents of its results."""
    if (name := gradient_function(ctx, f)) is not None:
        return ctx.call(name, operands)
    primals, cotangents = operands[: len(Tout)], arrays(operands[len(Tout) :])
    active = [i for i, v in enumerate(primals) if _is_differentiable(v)]

    def results(values: Sequence[Array]) -> list[Array]:
        child = ctx.on(dict(ctx.state))
        by_place = dict(zip(active, values, strict=True))
        outputs = child.call(f, [by_place.get(i, v) for i, v in enumerate(primals)])
        variables = [r for r in child.state if r.kind == "variable" and r in ctx.state]
        if any(child.state[r] is not ctx.state[r] for r in variables):
            raise node.error(
                "differentiates a function that assigns variables",
                "Assign them outside of the function that is differentiated.",
            )
        return [array(v) for v in outputs if _is_differentiable(v)]

    _, pullback = jax.vjp(results, [jnp.asarray(array(primals[i])) for i in active])
    (slopes,) = pullback([g for g in cotangents if _is_differentiable(g)])
    gradients = dict(zip(active, slopes, strict=True))
    return [
        gradients[i] if i in gradients else jnp.zeros_like(array(v)) for i, v in enumerate(primals)
    ]


def _is_differentiable(value: Value) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.inexact)
