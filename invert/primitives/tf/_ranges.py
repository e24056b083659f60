"""How large numbers of a graph can get, and how often a loop runs that compares with them.

A loop that counts up to a number that depends on data, such as the squarings of
`tf.linalg.expm`, ends for every finite number after so many steps as the largest one asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp

from ._node import Body, Node
from ._registry import Context

# The least and the largest value of a tensor, none of whose numbers is infinite.
Range = tuple[float, float]
_Source = tuple[int, int]

# Deeper chains have no known range.
_MAX_DEPTH = 32


_Arguments = Callable[[int], Range]


def _unknown(index: int) -> Range:
    return -math.inf, math.inf


def range_of(
    ctx: Context, body: Body, source: _Source, arguments: _Arguments = _unknown, depth: int = 0
) -> Range:
    """The range of a value in `body`, given as `(node index, output index)`.

    **Arguments:**

    - `arguments`: the range of an argument of `body`, by the index of its node.
    """
    node = body.nodes[source[0]]
    if source[0] in body.args:
        return arguments(source[0])
    whole = _whole(node)
    if node.op == "Const":
        value = ctx.constant(node)
        return (float(value.min()), float(value.max())) if value.size else whole
    rule = _RULES.get(node.op)
    if rule is None or source[1] or depth > _MAX_DEPTH:
        return whole
    count = 2 if node.op in _OF_TWO else 1
    operands = (range_of(ctx, body, i, arguments, depth + 1) for i in node.inputs[:count])
    low, high = rule(*operands)
    return max(low, whole[0]), min(high, whole[1])


def _whole(node: Node) -> Range:
    """The finite numbers of the type of a node."""
    for name in ("T", "DstT", "dtype"):
        dtype = node.attr(name)
        if isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.floating):
            return -float(jnp.finfo(dtype).max), float(jnp.finfo(dtype).max)
    return -math.inf, math.inf


def _log_of(x: float) -> float:
    if x <= 0:
        return -math.inf
    return math.log(x) if math.isfinite(x) else x


def _floor_of(x: float) -> float:
    return math.floor(x) if math.isfinite(x) else x


def _product(x: Range, y: Range) -> Range:
    corners = [a * b for a in x for b in y]
    known = all(not math.isnan(c) for c in corners)
    return (min(corners), max(corners)) if known else (-math.inf, math.inf)


def _quotient(x: Range, y: Range) -> Range:
    if y[0] <= 0 <= y[1]:
        return -math.inf, math.inf
    return _product(x, (1 / y[1], 1 / y[0]))


def _abs(x: Range) -> Range:
    return max(x[0], -x[1], 0.0), max(-x[0], x[1])


_OF_TWO: dict[str, Callable[..., Range]] = {
    **dict.fromkeys(("Add", "AddV2"), lambda x, y: (x[0] + y[0], x[1] + y[1])),
    **dict.fromkeys(("Div", "RealDiv"), _quotient),
    "Maximum": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "Minimum": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "Mul": _product,
}
_RULES: dict[str, Callable[..., Range]] = {
    **_OF_TWO,
    **dict.fromkeys(
        ("Cast", "ExpandDims", "Identity", "Max", "Min", "Reshape", "Squeeze", "StridedSlice"),
        lambda x: x,
    ),
    "Abs": _abs,
    "Floor": lambda x: (_floor_of(x[0]), _floor_of(x[1])),
    "Log": lambda x: (_log_of(x[0]), _log_of(x[1])),
    # Of how many numbers is not known.
    "Sum": lambda x: (-math.inf if x[0] < 0 else 0.0, math.inf if x[1] > 0 else 0.0),
}


def bounded(ctx: Context, node: Node, operands: list[Any]) -> list[Any]:
    """The operands of a node, as numbers those scalars that can only be one whole number.

    Such is the size of a count with as many bins at least as at most.
    """
    if ctx.within is None or node not in ctx.within.nodes:
        return operands
    found = list(operands)
    for i, (value, source) in enumerate(zip(operands, node.inputs, strict=True)):
        dtype = getattr(value, "dtype", None)
        is_whole = isinstance(dtype, np.dtype) and dtype.kind == "i"
        if isinstance(value, np.ndarray) or not is_whole or getattr(value, "shape", None) != ():
            continue
        low, high = range_of(ctx, ctx.within, source)
        if low == high:
            found[i] = np.asarray(low, dtype)
    return found


def most_steps(
    ctx: Context, outer: Body, node: Node, functions: tuple[str, str], values: Sequence[Any]
) -> int | None:
    """An upper bound of the steps of a loop that counts up to a number; `None` where there is none.

    **Arguments:**

    - `outer`: the body that holds the loop `node`.
    - `functions`: its condition and its body.
    - `values`: the initial values of its variables.
    """
    condition, body = (ctx.body(f) for f in functions)

    def known(variable: int) -> Range:
        """The range of a variable; no step changes it."""
        same = _passed(body, body.outputs[variable]) == (body.args[variable], 0)
        return range_of(ctx, outer, node.inputs[variable]) if same else _unknown(variable)

    def until(counter: int, limit: float) -> int | None:
        """The steps until a variable has reached a number."""
        start, step = values[counter], _step(ctx, body, counter)
        if step is None or not isinstance(start, np.ndarray) or start.ndim or math.isinf(limit):
            return None
        return max(math.ceil((limit - float(start)) / step), 0)

    return _while_true(
        ctx, condition, condition.outputs[0], range(len(condition.args)), known, until
    )


def _while_true(
    ctx: Context,
    body: Body,
    source: _Source,
    variables: Sequence[int | None],
    known: _Arguments,
    until: Callable[[int, float], int | None],
) -> int | None:
    """How many steps a truth value of `body` can hold.

    **Arguments:**

    - `variables`: for each argument of `body` the variable of the loop that it is.
    - `known`: the range of a variable.
    - `until`: the steps until a variable has reached a number.
    """
    of = dict(zip(body.args, variables, strict=True))
    index, _ = _passed(body, source)
    test = body.nodes[index]
    if test.op == "Const":
        return None if ctx.constant(test).any() else 0
    if test.op in ("Less", "Greater"):
        less, more = test.inputs if test.op == "Less" else reversed(test.inputs)
        counter = of.get(_passed(body, less)[0])
        if counter is None:
            return None

        def argument(index: int) -> Range:
            variable = of[index]
            return _unknown(index) if variable is None else known(variable)

        return until(counter, range_of(ctx, body, more, argument)[1])
    if test.op == "LogicalAnd":
        found = [_while_true(ctx, body, i, variables, known, until) for i in test.inputs]
        return min((n for n in found if n is not None), default=None)
    if test.op in ("If", "StatelessIf"):
        given = [of.get(_passed(body, i)[0]) for i in test.inputs[1:]]
        branches = [ctx.body(test.attr(name)) for name in ("then_branch", "else_branch")]
        counts = [_while_true(ctx, b, b.outputs[source[1]], given, known, until) for b in branches]
        bounds = [n for n in counts if n is not None]
        return max(bounds) if len(bounds) == len(counts) else None
    return None


def _step(ctx: Context, body: Body, counter: int) -> float | None:
    """By how much a variable grows in a step."""
    node = body.nodes[_passed(body, body.outputs[counter])[0]]
    if node.op not in ("Add", "AddV2"):
        return None
    ends = [_passed(body, i)[0] for i in node.inputs]
    if body.args[counter] not in ends:
        return None
    ends.remove(body.args[counter])
    other = body.nodes[ends[0]]
    value = ctx.constant(other) if other.op == "Const" else np.zeros(())
    return float(value) if value.ndim == 0 and value > 0 else None


def _passed(body: Body, source: _Source) -> _Source:
    while body.nodes[source[0]].op == "Identity":
        source = body.nodes[source[0]].inputs[0]
    return source
