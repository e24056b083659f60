"""Loops that count from zero, with the rows they read and collect."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
from jax import lax

from invert._private.jax import (
    close_like,
    consts_of,
    dce,
    dim_as_value_p,
    max_dim,
    min_dim,
    open_jaxpr,
    rename,
    renamed,
)
from invert.ir.graph import Graph
from invert.ir.jaxprs import map_jaxprs
from invert.ir.loops import WhileParts
from invert.ir.passes import Made, cleaned, rewritten
from invert.ir.sizes import DimSize, is_open
from invert.ir.types import Atom, Eqn, J, Literal, Var
from invert.ir.unit_axes import only_unit_axes


@dataclasses.dataclass(frozen=True)
class Counted:
    """A loop `for i in range(length)`.

    **Arguments:**

    - `body`: the body as a graph; `consts`, `carry`: its arguments.
    - `counter`: position of `i` in the carry.
    - `length`: a number, or an expression of open dimensions.
    """

    body: Graph
    consts: Sequence[Var]
    carry: Sequence[Var]
    counter: int
    length: DimSize

    def index(self, atom: Atom) -> tuple[int, DimSize] | None:
        """`(a, b)` if the value of `atom` is `a * i + b`."""
        if (size := _size(atom, self.body)) is not None:
            return 0, size
        if isinstance(atom, Literal):
            return None
        if atom is self.carry[self.counter]:
            return 1, 0
        if (eqn := self.body.producer(atom, "add", "sub")) is None:
            return None
        x, y = (self.index(a) for a in eqn.invars)
        if x is None or y is None:
            return None
        sign = 1 if eqn.primitive.name == "add" else -1
        return x[0] + sign * y[0], x[1] + sign * y[1]

    def direction(self, atom: Atom) -> bool | None:
        """Return `True` if `atom` counts down from the last step, `False` if it counts up."""
        line = self.index(atom)
        if line == (1, 0):
            return False
        return True if line == (-1, self.length - 1) else None

    def is_negative(self, atom: Atom) -> bool | None:
        """Return whether an index is negative, if that is the same in all steps."""
        line = self.index(atom)
        if line is None or is_open(line[1]) or is_open(self.length):
            return None
        signs = {line[0] * i + line[1] < 0 for i in (0, self.length - 1)}
        return signs.pop() if len(signs) == 1 else None


def _size(atom: Atom, graph: Graph) -> DimSize | None:
    """The integer or open size that an atom is known to be."""
    if isinstance(atom, Literal):
        value = np.asarray(atom.val)
        return int(value) if value.ndim == 0 and value.dtype.kind in "iu" else None
    eqn = graph.producer(atom)
    if eqn is not None and eqn.primitive.name == "convert_element_type":
        if isinstance(eqn.invars[0], Literal):
            return _size(eqn.invars[0], graph)
        eqn = graph.producer(eqn.invars[0])
    return eqn.params["dim"] if eqn is not None and eqn.primitive is dim_as_value_p else None


def counted(eqn: Eqn) -> Counted | None:
    """A `while` as `for i in range(length)`; `None` if it is not one."""
    parts = WhileParts.of(eqn)
    test = Graph(parts.cond, consts_of(parts.cond))
    (holds,) = test.jaxpr.outvars
    limits = _limits(holds, test)
    if limits is None or len({v for v, _ in limits}) != 1:
        return None
    variable = limits[0][0]
    length = functools.reduce(min_dim, dict.fromkeys(n for _, n in limits))
    if variable not in parts.tested:
        return None
    counter = parts.tested.index(variable)
    start = parts.init[counter]
    if not isinstance(start, Literal) or int(start.val) != 0:
        return None
    graph = Graph(parts.body, consts_of(parts.body))
    held = graph.jaxpr.invars[: len(parts.body_consts)]
    loop = Counted(graph, held, parts.carried, counter, max_dim(length, 0))
    return loop if loop.index(graph.jaxpr.outvars[counter]) == (1, 1) else None


def _limits(holds: Atom, test: Graph) -> list[tuple[Atom, DimSize]] | None:
    """The comparisons `variable < size` whose conjunction is the condition; `None` for others."""
    eqn = test.producer(holds)
    if eqn is not None and eqn.primitive.name == "and":
        parts = [_limits(a, test) for a in eqn.invars]
        return None if None in parts else [limit for part in parts for limit in part or ()]
    if eqn is None or eqn.primitive.name != "lt":
        return None
    variable, limit = eqn.invars
    size = _size(limit, test)
    return None if size is None or isinstance(variable, Literal) else [(variable, size)]


def with_counted_places(closed: J) -> J:
    """Drop the wrapping of negative indices where a loop reads every row.

    Where a loop only collects these rows again, as TensorFlow's loops do for their gradients, the
    array itself is used instead, and the carry becomes dead.
    """

    def placed(eqn: Eqn) -> Made | None:
        if eqn.primitive is not lax.while_p:
            return None
        loop = _with_rows(eqn)
        return [loop], renamed(eqn.outvars, dict(_collected(loop)))

    return map_jaxprs(closed, lambda jaxpr: cleaned(jaxpr, rewritten(jaxpr, placed)))


def _with_rows(eqn: Eqn) -> Eqn:
    loop = counted(eqn)
    if loop is None:
        return eqn
    parts, names = WhileParts.of(eqn), dict[Var, Atom]()
    for chosen in loop.body.eqns:
        if chosen.primitive is not lax.select_n_p or len(chosen.invars) != 3:
            continue
        test, place, _ = chosen.invars
        made, (out,) = loop.body.producer(test), chosen.outvars
        if made is None or made.primitive is not lax.lt_p or _size(made.invars[1], loop.body) != 0:
            continue
        counts = loop.direction(place) is not None and loop.is_negative(made.invars[0]) is False
        if counts and _reads_rows(out, loop):
            names[out] = place
    if not names:
        return eqn
    body = close_like(parts.body, dce(rename(open_jaxpr(parts.body), names)))
    return dataclasses.replace(parts, body=body).put_into(eqn)


def _collected(eqn: Eqn) -> Iterator[tuple[Var, Atom]]:
    """Results of a loop that collect an array's rows in order, with that array."""
    loop = counted(eqn)
    if loop is None:
        return
    held = dict(zip(loop.consts, WhileParts.of(eqn).body_consts, strict=True))
    results = loop.body.jaxpr.outvars
    for v, buffer, out in zip(eqn.outvars, loop.carry, results, strict=True):
        if (write := loop.body.producer(out, "dynamic_update_slice")) is None:
            continue
        array, row, place, *rest = write.invars
        read = loop.body.producer(row)
        while read is not None and only_unit_axes(read):
            read = loop.body.producer(read.invars[0])
        if read is None or read.primitive is not lax.dynamic_slice_p:
            continue
        source, start, *others = read.invars
        shape = buffer.aval.shape
        rows = read.params["slice_sizes"] == (1, *shape[1:]) == write.invars[1].aval.shape
        if (
            array is buffer
            and place is start
            and shape
            and loop.index(place) == (1, 0)
            and loop.length == shape[0]
            and rows
            and all(_size(a, loop.body) == 0 for a in (*rest, *others))
            and isinstance(source, Var)
            and source in held
            and source.aval.shape == shape
        ):
            yield v, held[source]


def _reads_rows(place: Var, loop: Counted) -> bool:
    """Return whether an index only selects rows of arrays with one row per step."""
    return place not in loop.body.jaxpr.outvars and all(
        e.primitive is lax.dynamic_slice_p
        and e.invars[0] in loop.consts
        and e.invars[0].aval.shape[0] == loop.length
        and e.invars[1] is place
        and all(_size(a, loop.body) == 0 for a in e.invars[2:])
        for e in loop.body.users.get(place, ())
    )
