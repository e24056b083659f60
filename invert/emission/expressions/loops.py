"""Writes loops over the layers of a tuple, and over the parts of an array."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from invert.emission.expressions import spelling
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.statements import Repeat
from invert.emission.layers.cut import Layer
from invert.emission.layers.lists import Loop, Unrolled
from invert.emission.python import syntax
from invert.emission.python.naming import singular, snake
from invert.emission.python.nouns import PLAIN, STREAM
from invert.ir.types import Var

# Makes the call of a layer, given by an expression, on its inputs.
Apply: TypeAlias = Callable[[ast.expr, Layer, Sequence[ast.expr]], ast.expr]
# What is passed on and combined by a loop, and a layer whose tuple has a shorter name.
_TOTAL, _LAYER = "total", "block"


def over_list(
    body: Body, eqn: Loop, field: str, applied: Apply, hint: str, rows: Sequence[str]
) -> Placed:
    """`for block in self.blocks: x = block(x)`, or with results that are combined.

    If each is given a row: `for block, key in zip(self.blocks, keys, strict=True)`.

    **Arguments:**

    - `field`: the field of the tuple; `hint`: the name of what is passed on; `rows`: those of rows.
    """
    starts = [body.operand(eqn.invars[i]) for i, _ in eqn.carried]
    starts += [body.operand(t.start) for t in eqn.totals]
    element, tokens = syntax.new_token(), [body.token(v) for v in eqn.outvars]
    passed = {i: t for (i, _), t in zip(eqn.carried, tokens, strict=False)}
    beside = {i: (syntax.new_token(), row) for i, row in zip(eqn.rows, rows, strict=True)}
    passed |= {i: token for i, (token, _) in beside.items()}
    args = [
        ast.Name(passed[i], ast.Load()) if i in passed else body.settled(a)
        for i, a in enumerate(eqn.given)
    ]
    layers: ast.expr = syntax.field(syntax.name("self"), field)
    if eqn.skipped:
        layers = syntax.item(layers, ast.Slice(syntax.number(eqn.skipped)))
    if beside:
        arrays = [body.settled(eqn.invars[i]) for i in eqn.rows]
        layers = syntax.call("zip", layers, *arrays, strict=syntax.number(True))
    outs: list[str | None] = [None] * len(eqn.layer.outputs)
    for (_, j), token in zip(eqn.carried, tokens, strict=False):
        outs[j] = token
    totals: list[tuple[str, ast.expr]] = []
    for total, token in zip(eqn.totals, tokens[len(eqn.carried) :], strict=True):
        outs[total.place] = result = syntax.new_token()
        spelled = spelling.spell(total.eqn, body.writer)
        own = {body.token(total.before): token, body.token(total.of): result}
        totals.append((token, syntax.renamed(spelled, own)))
    hints = [hint, *[PLAIN] * (len(eqn.carried) - 1), *[_TOTAL] * len(eqn.totals)]
    name = singular(re.sub(r".*\d_|\d+$", "", snake(field, "layer")))
    repeat = Repeat(
        layers,
        element,
        _LAYER if len(name) < 3 else name,
        applied(ast.Name(element, ast.Load()), eqn.layer, args),
        outs if len(outs) > 1 else (),
        totals,
        list(beside.values()),
    )
    start = syntax.one_or_tuple(starts)
    return Placed(start, False, hints=hints, flows="blank", repeat=repeat)


def over_parts(body: Body, eqn: Unrolled, function: ast.expr, applied: Apply) -> Placed:
    """`for i in range(6): h = self.cell(h, x[:, i])`, or the same over the parts of a split.

    `for _ in range(6): x = self.layer(x)` if there are no parts.
    """
    token, target = syntax.new_token(), body.token(eqn.outvars[0])
    element: ast.expr = ast.Name(token, ast.Load())
    whole = element if eqn.element is None else body.settled(eqn.invars[eqn.element])
    if eqn.split is None and eqn.element is not None:
        every: list[ast.expr] = [ast.Slice() for _ in range(eqn.axis)]
        element = syntax.item(whole, syntax.tuple_of([*every, element]) if every else element)
    for form in eqn.forms if eqn.split is not None else ():
        (atom,) = form.invars
        assert isinstance(atom, Var)
        spelled = spelling.spell(form, body.writer)
        element = syntax.substitute(spelled, {body.token(atom): element})
    args = [
        ast.Name(target, ast.Load())
        if i == eqn.carried
        else element
        if i == eqn.element
        else body.settled(a)
        for i, a in enumerate(eqn.invars)
    ]
    parts = syntax.call("range", syntax.number(eqn.count))
    if eqn.split is not None:
        parts = spelling.spell(eqn.split, body.writer)
        atom = eqn.split.invars[0]
        if isinstance(atom, Var):
            parts = syntax.substitute(parts, {body.token(atom): whole})
    hint = "" if eqn.element is None else "i" if eqn.split is None else "x_t"
    repeat = Repeat(parts, token, hint, applied(function, eqn.layer, args))
    start = body.operand(eqn.invars[eqn.carried])
    passed = STREAM if eqn.element is None else "h"
    return Placed(start, False, hints=[passed], flows="blank", repeat=repeat)
