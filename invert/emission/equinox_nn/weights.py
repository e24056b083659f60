"""Turns parameters into arrays of the emitted module: stacked, or in other layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax

from invert._private.jax import open_jaxpr
from invert.emission.equinox_nn.layout import Comparison, Layout, flat, laid
from invert.emission.layers import stack
from invert.emission.layers.stack import Nested, Rows
from invert.ir import traced_form
from invert.ir.types import AnyJaxpr, Atom, Value, Var

_T = TypeVar("_T")


@dataclasses.dataclass
class Weights:
    """Parameters that were stacked, or whose layout was changed.

    **Arguments:**

    - `rows`: the parameters in each stack, by the first of them.
    - `layouts`: the layouts of parameters of `equinox.nn` layers.
    """

    rows: dict[Var, Rows] = dataclasses.field(default_factory=dict)
    layouts: dict[Var, Layout] = dataclasses.field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Return whether any parameter is stacked or has another layout."""
        return bool(self.rows or self.layouts)

    def array(self, v: Var, values: Mapping[Var, Value]) -> Value:
        """The module's array for a parameter, or for a stack by its first."""
        return arranged(self.rows.get(v, v), self.layouts.get(v), values)

    def type_of(self, v: Var) -> jax.ShapeDtypeStruct:
        """The type of that array."""
        aval = stack.stacked_type(self.rows.get(v, v))
        if v not in self.layouts:
            return aval
        depth = len(aval.shape) - len(v.aval.shape)
        shape = (*aval.shape[:depth], *self.layouts[v][1])
        return jax.ShapeDtypeStruct(shape, aval.dtype)

    def difference(
        self, traced: AnyJaxpr, program: AnyJaxpr, held: Sequence[Var], leaves: Sequence[Var]
    ) -> str | None:
        """`None` if a trace of the text equals the program, otherwise the difference.

        **Arguments:**

        - `held`: variables of the parameters, the leading arguments of `program`.
        - `leaves`: variables of the module's arrays, the leading arguments of `traced`.
        """
        if not self.changed:
            return traced_form.difference(traced, program)
        layouts = {
            w: self.layouts[v]
            for v in leaves
            if v in self.layouts
            for w in stack.leaves_of(self.rows.get(v, v))
        }
        shapes = {w: layout[1] for w, layout in layouts.items()}
        rows = [self.rows.get(v, v) for v in leaves]
        again = stack.unrolled(traced, held, rows, shapes)
        if not layouts:
            return traced_form.difference(again, program)
        again, wanted = flat(traced_form.normal(again)), flat(traced_form.normal(program))
        mine, theirs = (open_jaxpr(p).invars for p in (again, wanted))
        pairs: dict[Atom, Var] = dict(zip(mine, theirs, strict=True))
        own: dict[Var, Layout] = {
            q: layouts[v] for q, v in zip(mine, held, strict=False) if v in layouts
        }
        return Comparison(again, wanted, pairs, own).difference()


def arranged(rows: Nested[_T], layout: Layout | None, values: Mapping[_T, Value]) -> Value:
    """The value of a parameter or stack, as the module's array."""
    array = stack.stacked(rows, values)
    depth = 0
    while isinstance(rows, (list, tuple)):
        rows, depth = rows[0], depth + 1
    return array if layout is None else laid(array, layout, depth)


def spread(
    rows: Nested[_T], layout: Layout | None, array: Value, shapes: Mapping[_T, Sequence[int]]
) -> dict[_T, Value]:
    """The values of parameters in an array of the module; the inverse of `arranged`."""
    if isinstance(rows, (list, tuple)):
        parts = [spread(row, layout, array[i], shapes) for i, row in enumerate(rows)]
        return {name: value for part in parts for name, value in part.items()}
    if layout is None:
        return {rows: array}
    order, _ = layout
    shape = [shapes[rows][i] for i in order]
    return {rows: array.reshape(shape).transpose([order.index(i) for i in range(len(order))])}
