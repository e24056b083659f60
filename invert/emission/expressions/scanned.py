"""Writes a run of layers as `lax.scan` over a module with stacked arrays."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from invert.emission.expressions import control_flow
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.statements import FunctionText, Parameter, Statement
from invert.emission.layers.cut import Layer
from invert.emission.layers.stack import Pick, Run
from invert.emission.python import syntax
from invert.emission.python.naming import singular, snake
from invert.emission.python.syntax import call, number


def run(
    body: Body,
    eqn: Run,
    field: str,
    applied_to: Callable[[ast.expr, Layer, Sequence[ast.expr]], ast.expr],
) -> Placed:
    """A scan over a module, whose arrays it slices.

    **Arguments:**

    - `applied_to`: makes the call of a layer, given by an expression, on its inputs.
    """
    layer = eqn.layer
    outs = [syntax.new_token() for _ in layer.outputs]
    arguments = {i: syntax.new_token() for i, _ in eqn.carried}
    given: list[ast.expr] = []
    for i, v in enumerate(layer.inputs):
        token = body.token(v)
        if i in arguments:
            given.append(_use(arguments[i]))
        else:
            given.append(body.given.get(token, _use(token)))
    one = syntax.new_token()
    modules = syntax.field(ast.Name("self", ast.Load()), field)
    applied = applied_to(_use(one), layer, given)
    carried = [j for _, j in eqn.carried]
    statements: list[Statement] = []
    called = "layer"
    if len(outs) == 1 and not eqn.collected:
        called = singular(field)
        carry: ast.expr = applied
        rows: ast.expr = number(None)
    else:
        noun = snake(layer.name, "y").rstrip("_0123456789") or "y"
        hints = ["x" if j in carried else noun for j in range(len(outs))]
        statements.append(Statement(outs, applied, hints))
        carry = control_flow.packed([_use(outs[j]) for j in carried])
        rows = control_flow.packed([_use(outs[j]) for j in eqn.collected])
    tokens = [arguments[i] for i, _ in eqn.carried]
    first: Parameter = tokens[0] if len(tokens) == 1 else tuple(tokens)
    function = FunctionText(
        syntax.new_token(), "step", [first, one], ["x" if len(tokens) == 1 else "carry", called],
        statements, syntax.tuple_of([carry, rows]),
        types={t: body.type_of(layer.inputs[i]) for i, t in arguments.items()},
    )  # fmt: skip
    start = control_flow.packed([body.operand(layer.inputs[i]) for i, _ in eqn.carried])
    expression = call("lax.scan", _use(function.token), start, modules)
    count = len(carried)
    pattern = (
        control_flow.unpacking(range(count)),
        control_flow.unpacking(range(count, len(eqn.outvars))),
    )
    noun = snake(field, "ys")
    hints = ["x"] * count + [noun] * (len(eqn.outvars) - count)
    return Placed(expression, False, [function], hints, flows=False, pattern=pattern)


def pick(body: Body, eqn: Pick) -> Placed:
    """One of the values stacked by a run."""
    value = syntax.item(body.operand(eqn.invars[0]), number(eqn.index))
    return Placed(value, hints=[snake(eqn.name, "y")], flows=False)


def _use(token: str) -> ast.expr:
    return ast.Name(token, ast.Load())
