"""Finds `lax.associative_scan` in the slices that JAX unrolls it into.

A scan of `n` elements combines pairs of neighbours, scans the `n // 2` results, combines these with
the remaining elements, and interleaves both (jax/_src/lax/control_flow/loops.py, jax 0.10). The
function that combines is what the first and the second level have in common; that the whole is the
scan is then proved by tracing it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import jax
from jax import lax

from invert._errors import only_refusals
from invert._private.jax import (
    REFUSALS,
    ShapedArray,
    dce,
    eval_closed,
    open_jaxpr,
    rename,
    trace_closed,
)
from invert._private.programs import close, new_jaxpr
from invert.ir import kinds, traced_form
from invert.ir.graph import Graph, computed_from, from_outside, is_var
from invert.ir.interpret import bind, interpret
from invert.ir.jaxprs import is_wide
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Value, Var
from invert.ir.unit_axes import only_unit_axes

# The name of the calls.
NAME = "associative_scan"
# What a function that combines may compute, so that it holds for any number of elements.
_COMBINING = kinds.ELEMENTWISE | {"dot_general"}


@dataclasses.dataclass(frozen=True)
class AssociativeScan:
    """A scan of elements along an axis.

    **Arguments:**

    - `combine`: maps `consts`, then the left and the right elements, to their combination.
    - `elements`: the arrays.
    - `of`: the number of the element that each result is a scan of.
    """

    combine: Jaxpr
    consts: tuple[Var, ...]
    elements: tuple[Var, ...]
    results: tuple[Var, ...]
    of: tuple[int, ...]
    axis: int
    reverse: bool = False


@dataclasses.dataclass(frozen=True)
class _Level:
    """The elements, and the scan of the combined pairs, that one result interleaves."""

    elements: Var
    odd: Atom
    axis: int

    @property
    def count(self) -> int:
        return self.elements.aval.shape[self.axis]


def outlined(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr with a call named `NAME` in place of each scan; inner jaxprs stay as they are."""
    if sum(e.primitive.name == "pad" for e in jaxpr.eqns) < 4:
        return jaxpr
    while (found := next(_found(Graph(jaxpr)), None)) is not None:
        scan, inner = found
        jaxpr = _with_call(jaxpr, scan, inner)
    return jaxpr


def of_call(eqn: Eqn) -> AssociativeScan | None:
    """The scan of a call, in its own variables."""
    if eqn.primitive.name != "jit" or eqn.params["name"] != NAME:
        return None
    jaxpr = open_jaxpr(eqn.params["jaxpr"])
    found = next(_found(Graph(jaxpr)), None)
    if found is None or {*found[0].results} != {*jaxpr.outvars}:
        return None  # a function of that name which computes more
    scan, _ = found
    return scan if {*scan.consts, *scan.elements} <= {*jaxpr.invars} else None


def _with_call(jaxpr: Jaxpr, scan: AssociativeScan, inner: Jaxpr) -> Jaxpr:
    def associative_scan(*operands: Value) -> list[Value]:
        return eval_closed(closed, operands)

    closed = close(inner, ())
    types = [v.aval for v in inner.invars]
    (call,) = open_jaxpr(trace_closed(jax.jit(associative_scan), *types)).eqns
    first = next(e for e in jaxpr.eqns if not set(e.outvars).isdisjoint(scan.results))
    call = first.replace(
        primitive=call.primitive,
        invars=inner.invars,
        outvars=list(scan.results),
        params={**call.params, "jaxpr": closed},
        effects=call.effects,
    )
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn is first:
            eqns.append(call)
        if set(eqn.outvars).isdisjoint(scan.results):
            eqns.append(eqn)
    return dce(jaxpr.replace(eqns=eqns))


def _found(graph: Graph) -> Iterator[tuple[AssociativeScan, Jaxpr]]:
    """The scans of a jaxpr, the outermost first, each with the jaxpr of its slices."""
    levels = {e: level for e in graph.eqns if (level := _level(e, graph)) is not None}
    wide = sorted((e for e in levels if levels[e].count >= 4), key=lambda e: -levels[e].count)
    alone = {e: scan for e in wide if (scan := _scan_of([e], levels, graph)) is not None}
    for eqn in sorted(alone, key=lambda e: (-levels[e].count, -len(alone[e].elements))):
        own = {*alone[eqn].elements}
        with_others = [
            e
            for e, scan in alone.items()
            if _alike(levels[e], levels[eqn]) and own.issuperset(scan.elements)
        ]
        for chosen in (with_others, [eqn]) if len(with_others) > 1 else ([eqn],):
            scan = _scan_of(chosen, levels, graph)
            if scan is not None and (inner := _proved(scan, graph)) is not None:
                yield _reversed(scan, inner, graph)
                break


def _alike(a: _Level, b: _Level) -> bool:
    return (a.count, a.axis) == (b.count, b.axis)


def _level(eqn: Eqn, graph: Graph) -> _Level | None:
    """The level that an equation interleaves, if it does."""
    if eqn.primitive.name not in ("add", "or"):
        return None
    pads = [graph.producer(a, "pad") for a in eqn.invars]
    for even, odd in itertools.permutations(pads):
        joined = None if even is None else graph.producer(even.invars[0], "concatenate")
        if joined is None or odd is None or len(joined.invars) != 2:
            continue
        axis = joined.params["dimension"]
        first = graph.producer(joined.invars[0], "slice")
        if first is None or not is_var(x := first.invars[0]):
            continue
        whole = x.aval.shape == eqn.outvars[0].aval.shape and isinstance(x.aval.shape[axis], int)
        if whole and first.outvars[0].aval.shape[axis] == 1:
            return _Level(x, odd.invars[0], axis)
    return None


def _side(atom: Atom, level: _Level, graph: Graph) -> tuple[Var, int] | None:
    """The elements that an atom has every second one of, and the first of these."""
    eqn = graph.producer(atom, "slice")
    if eqn is None or not is_var(x := eqn.invars[0]) or not x.aval.shape:
        return None
    starts, strides, axis = eqn.params["start_indices"], eqn.params["strides"], level.axis
    if len(x.aval.shape) <= axis or strides is None or strides[axis] != 2:
        return None
    others = [n for i, n in enumerate(strides) if i != axis]
    count = x.aval.shape[axis]
    paired = count == level.count and eqn.outvars[0].aval.shape[axis] == count // 2
    plain = all(n == 1 for n in others) and starts[axis] in (0, 1)
    whole = all(
        a == b
        for i, (a, b) in enumerate(zip(x.aval.shape, eqn.outvars[0].aval.shape, strict=True))
        if i != axis
    )
    return (x, int(starts[axis])) if paired and plain and whole else None


def _scan_of(
    roots: Sequence[Eqn], levels: Mapping[Eqn, _Level], graph: Graph
) -> AssociativeScan | None:
    """The scan whose results some equations are, as the first two levels suggest it."""
    partners: dict[Var, Atom] = {}
    level = levels[roots[0]]
    for root in roots:
        made = graph.producer(levels[root].odd)
        below = None if made is None else levels.get(made) or _level(made, graph)
        if below is None or below.axis != level.axis or below.count != level.count // 2:
            return None
        if partners.setdefault(levels[root].elements, below.elements) is not below.elements:
            return None
        made = graph.producer(below.odd)
        deeper = None if made is None else _level(made, graph)
        last = below.odd if below.count // 2 < 2 else deeper and deeper.elements
        if last is None or not _paired(below.elements, last, level, below, graph, partners):
            return None
    elements = _elements([*partners.values()], level, graph)
    if elements is None or any(v not in partners for v in elements):
        return None
    left, right = ({v: Var(_half(v, level)) for v in elements} for _ in range(2))
    ends = [partners[v] for v in elements]
    eqns, _ = graph.needed(ends)
    slices = {v: side for e in eqns for v in e.outvars if (side := _side(v, level, graph))}
    eqns, _ = graph.needed(ends, slices)
    inside = computed_from(slices, eqns)
    if not all(e.primitive.name in _COMBINING or _adds_axes(e) for e in inside):
        return None
    names: dict[Var, Atom] = {v: (left, right)[side][x] for v, (x, side) in slices.items()}
    body = rename(new_jaxpr([], [], ends, inside), names)
    given = [*left.values(), *right.values()]
    consts = [v for v in from_outside(body.eqns, body.outvars) if v not in given]
    return AssociativeScan(
        body.replace(invars=[*consts, *given]),
        tuple(consts),
        tuple(elements),
        tuple(root.outvars[0] for root in roots),
        tuple(elements.index(levels[root].elements) for root in roots),
        level.axis,
    )


def _adds_axes(eqn: Eqn) -> bool:
    """Return whether an equation only adds axes of size one, as `x[..., None]` does."""
    is_broadcast = eqn.primitive.name == "broadcast_in_dim" and len(eqn.invars) == 1
    return is_broadcast and bool(eqn.invars[0].aval.shape) and only_unit_axes(eqn)


def _at_any_size(eqn: Eqn, operands: Sequence[Value]) -> list[Value]:
    """An equation of `combine` on any number of elements."""
    if not _adds_axes(eqn):
        return bind(eqn, operands)
    kept = eqn.params["broadcast_dimensions"]
    added = [i for i in range(len(eqn.params["shape"])) if i not in kept]
    return [lax.expand_dims(operands[0], added)]


def _half(v: Var, level: _Level) -> ShapedArray:
    shape = list(v.aval.shape)
    shape[level.axis] //= 2
    return v.aval.update(shape=tuple(shape))


def _paired(
    a: Atom, b: Atom, level: _Level, below: _Level, graph: Graph, partners: dict[Var, Atom]
) -> bool:
    """Return whether two combinations have one form; collects the elements that correspond."""
    pending, seen = [(a, b)], set[tuple[Atom, Atom]]()
    while pending:
        one, other = pending.pop()
        if isinstance(one, Literal) or isinstance(other, Literal):
            if not isinstance(one, Literal) or not isinstance(other, Literal):
                return False
            continue
        if one is other or (one, other) in seen:
            continue
        seen.add((one, other))
        here, there = _side(one, level, graph), _side(other, below, graph)
        if here is not None and there is not None:
            if here[1] != there[1] or partners.setdefault(here[0], there[0]) is not there[0]:
                return False
            continue
        made, again = graph.producer(one), graph.producer(other)
        if made is None or again is None or made.primitive is not again.primitive:
            return False
        if len(made.invars) != len(again.invars) or made.outvars.index(one) != (
            again.outvars.index(other)
        ):
            return False
        pending += zip(made.invars, again.invars, strict=True)
    return True


def _elements(ends: Sequence[Atom], level: _Level, graph: Graph) -> list[Var] | None:
    """The elements that the combinations of pairs are made of, in order of use."""
    eqns, _ = graph.needed(ends)
    found = [_side(a, level, graph) for e in eqns for a in e.invars]
    elements = list(dict.fromkeys(side[0] for side in found if side is not None))
    return elements or None


def _proved(scan: AssociativeScan, graph: Graph) -> Jaxpr | None:
    """The jaxpr of a scan's slices, if tracing the scan gives exactly these.

    A value inside that other equations use is computed twice, which compilers merge.
    """
    eqns, _ = graph.needed(scan.results, scan.elements)
    inside = computed_from(scan.elements, eqns)
    if any(v not in (*scan.consts, *scan.elements) for v in from_outside(inside)):
        return None
    target = new_jaxpr([], [*scan.consts, *scan.elements], list(scan.results), inside)
    count = len(scan.consts)

    def run(*values: Value) -> list[Value]:
        consts, elements = values[:count], values[count:]

        def combine(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
            return interpret(scan.combine, [*consts, *left, *right], _at_any_size)

        scanned: list[Value] = lax.associative_scan(combine, [*elements], axis=scan.axis)
        return [scanned[i] for i in scan.of]

    try:
        with only_refusals(), jax.enable_x64(any(map(is_wide, target.invars))):
            traced = trace_closed(run, *(v.aval for v in target.invars))
    except REFUSALS:
        return None
    return target if traced_form.difference(traced, target) is None else None


def _reversed(scan: AssociativeScan, inner: Jaxpr, graph: Graph) -> tuple[AssociativeScan, Jaxpr]:
    """The scan with the reversals around it, if all its elements and results are reversed."""
    before = [graph.producer(v, "rev") for v in scan.elements]
    after = [graph.users.get(v, ()) for v in scan.results]
    flips = [*before, *(users[0] if len(users) == 1 else None for users in after)]
    if any(v in graph.results for v in scan.results):
        return scan, inner
    own = [e for e in flips if e is not None and e.primitive.name == "rev"]
    if len(own) < len(flips) or any(e.params["dimensions"] != (scan.axis,) for e in own):
        return scan, inner
    count = len(before)
    elements = tuple(e.invars[0] for e in own[:count])
    if not all(map(is_var, elements)):
        return scan, inner
    results = tuple(e.outvars[0] for e in own[count:])
    inner = inner.replace(
        invars=[*scan.consts, *elements],
        outvars=list(results),
        eqns=[*own[:count], *inner.eqns, *own[count:]],
    )
    return dataclasses.replace(scan, elements=elements, results=results, reverse=True), inner
