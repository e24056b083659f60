"""Normal form of programs that trace alike, derivatives included: to compare emitted source.

Primitives, loops and functions with derivative rules are kept. The form removes only what may
differ between two traces of equivalent source: weak types, the order of closed-over operands,
wrappers of `jax.numpy`. `lowered_form` is the coarser form of programs that lower alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar, cast

import jax
import numpy as np
from jax import lax

from invert._private.jax import (
    DropVar,
    ShapedArray,
    by_jaxpr,
    close_like,
    constants_as_arguments,
    consts_of,
    dce,
    full_tracebacks,
    is_tracer,
    jvp_rule_of,
    open_jaxpr,
    plain_params,
    rename,
    renamed,
    trace_closed,
)
from invert._private.meshes import NO_MESH, mesh_of_now
from invert.ir import kinds
from invert.ir.avals import is_keys, is_weak, type_of
from invert.ir.closed_over import (
    in_order_of_use,
    order_of_use,
    typed,
    with_arguments_once,
    with_closed_over,
    with_each_operand_once,
    with_numbers_inside,
)
from invert.ir.composed_axes import composed, with_axes_as_such
from invert.ir.graph import Graph, is_var
from invert.ir.interpret import bind, retrace
from invert.ir.jaxprs import (
    canonicalize,
    enabling_x64,
    equations,
    is_wide,
    map_equations,
    map_jaxprs,
    names_in,
    returning,
    with_equations,
    without_empty,
    without_unique,
)
from invert.ir.lookups import has_single_index, with_plain_lookups
from invert.ir.loops import ScanParts
from invert.ir.match import Deferred
from invert.ir.match import difference as _difference
from invert.ir.merging import merge_equations
from invert.ir.meshes import jvp_of, vjp_of
from invert.ir.narrow_indices import with_narrow_counters
from invert.ir.narrow_operands import with_narrow_operands
from invert.ir.passes import Made, in_place_of, replaced, rewritten
from invert.ir.size_slices import with_slices
from invert.ir.size_values import with_size_values
from invert.ir.sorted_scans import with_sorted_scans
from invert.ir.types import (
    AnyJaxpr,
    Atom,
    Aval,
    ClosedJaxpr,
    Eqn,
    J,
    Jaxpr,
    Literal,
    Value,
    Var,
)
from invert.ir.unit_axes import (
    with_axes_after_operations,
    with_kept_axes,
    with_late_axes,
    with_sums_of_real_axes,
)
from invert.ir.wrappers import unwrapped

_A = TypeVar("_A", bound=Atom)

# How deep derivative rules inside derivative rules are compared.
_DEPTH = 2


def difference(a: AnyJaxpr, b: AnyJaxpr) -> str | None:
    """`None` if two programs have the same normal form, otherwise the first difference."""
    return _difference(normal(a), normal(b))


def normal(closed: J, depth: int = 0) -> J:
    """The normal form: no dead code, no duplicates, operands in order of use."""
    new = _normal[min(depth, _DEPTH)](closed)
    return closed if new is None else cast(J, new)


def _normalized(closed: J, depth: int) -> J | None:
    """The normal form; `None` if the program has it already, so that the cache does not hold it."""

    def one(jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = rewritten(jaxpr, _hoisted)
        eqns = []
        for eqn in jaxpr.eqns:
            eqn = without_silent_params(eqn)
            if eqn.primitive.name in _NORMAL:
                eqn = _NORMAL[eqn.primitive.name](eqn, depth)
            eqns.append(eqn)
        return with_equations(jaxpr, eqns)

    derived = _may_hold_derivatives(closed)
    # Before axes move: a broadcast that a sum undoes is gone then.
    narrow = strong(_with_axes_of_sums(closed) if derived else closed)
    if derived := derived or _may_hold_derivatives(narrow):
        axes = map_jaxprs(_with_axes_of_sums(narrow), with_axes_after_operations)
        narrow = strong(axes)
    simple = merged(map_jaxprs(narrow, _sliced))
    once = with_each_operand_once(
        map_jaxprs(simple, lambda j: rewritten(j, _with_each_result_once))
    )
    # Equal constants, such as those of a call that is written twice, are one operand only now.
    equal = once if once is simple else merged(once)
    new = map_jaxprs(with_sorted_scans(equal) if derived else equal, one)
    new = map_jaxprs(new, lambda jaxpr: _with_ordered_results(_with_ordered_sums(jaxpr)))
    return None if new is closed else new


def _may_hold_derivatives(program: AnyJaxpr) -> bool:
    """Return whether a program sums up derivatives, or undoes a broadcast by a sum."""
    jaxpr = open_jaxpr(program)
    names = names_in(jaxpr)
    return "add_any" in names or ("reduce_sum" in names and any(map(_is_squeeze, equations(jaxpr))))


def _is_squeeze(eqn: Eqn) -> bool:
    """Return whether an equation is a sum over axes of size one, as of a derivative."""
    if eqn.primitive.name != "reduce_sum" or not (axes := eqn.params["axes"]):
        return False
    return all(eqn.invars[0].aval.shape[i] == 1 for i in axes)


def _with_axes_of_sums(closed: J) -> J:
    """With axes that derivatives sum up as such: those of size one are added and removed."""
    return map_jaxprs(map_equations(closed, _as_change_of_axes), with_sums_of_real_axes)


def _as_change_of_axes(eqn: Eqn) -> Eqn:
    """As `with_axes_as_such`; a sum over axes of size one is a squeeze."""
    if _is_squeeze(eqn):
        axes = tuple(eqn.params["axes"])
        return eqn.replace(primitive=lax.squeeze_p, params={"dimensions": axes})
    return with_axes_as_such(eqn) if eqn.primitive.name in kinds.LAYOUT else eqn


def _with_ordered_results(jaxpr: Jaxpr) -> Jaxpr:
    """With the results of each branch, and the arrays that each loop fills, in order of use.

    Derivatives read what loops and branches save for them in the order in which these compute it.
    """

    def ordered(eqn: Eqn) -> Eqn:
        if (name := eqn.primitive.name) not in ("scan", "cond"):
            return eqn
        count = plain_params(eqn.params)["num_carry"] if name == "scan" else 0
        order = order_of_use(jaxpr, eqn.outvars[count:], through=True)
        if order == sorted(order):
            return eqn
        places = [*range(count), *(count + i for i in order)]
        params = dict(eqn.params)
        if name == "scan":
            params["jaxpr"] = returning(params["jaxpr"], places)
        else:
            params["branches"] = tuple(returning(b, places) for b in params["branches"])
        eqn = eqn.replace(params=params, outvars=[eqn.outvars[i] for i in places])
        return with_closed_over(eqn) if name == "cond" else eqn

    return with_equations(jaxpr, [ordered(e) for e in jaxpr.eqns])


def _with_ordered_sums(jaxpr: Jaxpr) -> Jaxpr:
    """With the terms of each sum of two derivatives in an order that depends on what they are.

    JAX adds them up in the order in which the value was read. Two terms have the same sum in either
    order.
    """
    if all(e.primitive.name != "add_any" for e in jaxpr.eqns):
        return jaxpr
    graph = Graph(jaxpr)

    def levels(atom: Atom) -> list[list[str]]:
        """The primitives that make a term, and those of their operands, nearest first."""
        level, found = [atom], list[list[str]]()
        for _ in range(_LEVELS):
            made = [*map(graph.producer, level)]
            found.append(["" if e is None else e.primitive.name for e in made])
            level = [a for e in made if e is not None for a in e.invars]
        return found

    def ordered(eqn: Eqn) -> Eqn:
        if eqn.primitive.name != "add_any":
            return eqn
        return eqn.replace(invars=sorted(eqn.invars, key=levels))

    return with_equations(jaxpr, [ordered(e) for e in jaxpr.eqns])


# So many primitives before a term tell it from others; further ones may be spelled in other ways.
_LEVELS = 4


# An expression tried in several places is traced once; calls share their derivative rule.
_normal = [
    by_jaxpr(functools.partial(_normalized, depth=depth), traces=True)
    for depth in range(_DEPTH + 1)
]


def has_shared_rules(compared: AnyJaxpr) -> bool:
    """Return whether a compared program's rules are the other's own functions.

    They are the same under any setting then. Other rules are compared as they trace under one.
    """
    rules = (e.params.get("rule") for e in equations(open_jaxpr(normal(compared))))
    return all(rule is None or (isinstance(rule, Deferred) and not rule.is_made) for rule in rules)


def strong(closed: J) -> J:
    """Remove dead code, weak types, copies and conversions to the same type.

    None of them survives lowering. Wrappers of `jax.numpy` are inlined, and a reshape that only
    adds or removes axes of size one becomes a broadcast or a squeeze.
    """
    return _in_64_bits(_strong, closed)


def of_either_setting(closed: J) -> J:
    """The first steps of `strong`, after which most traces are the same whatever x64 was.

    Programs that are isomorphic then have the same normal form, but for rules of derivatives.
    """
    return _in_64_bits(_of_either_setting, closed)


def _in_64_bits(form: Callable[[AnyJaxpr], AnyJaxpr | None], closed: J) -> J:
    """A form of a program whose parts may have 64-bit types: the same under both settings."""
    closed = without_empty(without_unique(closed))
    with jax.enable_x64(True):
        new = form(closed)
    return closed if new is None else cast(J, new)


@functools.partial(by_jaxpr, traces=True)
def _strong(closed: AnyJaxpr) -> AnyJaxpr | None:
    """As `strong`; `None` if the program is so already, as for `_normalized`."""
    made = _of_either_setting(closed)
    typed = closed if made is None else made
    new = map_jaxprs(typed, lambda jaxpr: with_narrow_counters(_narrow(jaxpr)))
    return None if new is closed else new


@functools.partial(by_jaxpr, traces=True)
def _of_either_setting(closed: AnyJaxpr) -> AnyJaxpr | None:
    """As `of_either_setting`; `None` if the program is so already, as for `_normalized`."""
    simple = map_jaxprs(_with_numbers(closed), lambda jaxpr: composed(_with_bounds(jaxpr)))
    new = map_jaxprs(canonicalize(simple), lambda j: with_narrow_counters(_strengthened(j)))
    return None if new is closed else new


def _with_numbers(closed: J) -> J:
    """Inline wrappers and compute numbers, with those that loops and branches close over.

    Text writes such a number at each use, where JAX computes with it while it traces.
    """
    computed = map_jaxprs(closed, unwrapped)
    while (inside := with_numbers_inside(computed)) is not computed:
        computed = map_jaxprs(inside, unwrapped)
    return computed


_NUMBERED = frozenset(("_var", "_std", "leaky_relu", "elu", "celu", "remainder", "floor_divide"))


def _with_bounds(jaxpr: Jaxpr) -> Jaxpr:
    """Convert the scalars of some calls to the dtype of their results.

    These are the bounds of random draws, the degrees of freedom of a variance, the slope of an
    activation and a divisor.
    """

    def typed(eqn: Eqn) -> Eqn:
        if not _is_numbered(eqn):
            return eqn
        bounds, dtype = eqn.invars[1:], eqn.outvars[0].aval.dtype
        if not all(isinstance(a, Literal) and not a.aval.shape for a in bounds):
            return eqn
        if all(a.aval.dtype == dtype for a in bounds):
            return _without_stops(eqn)
        numbers = (np.asarray(a.val, dtype) for a in bounds if isinstance(a, Literal))
        values = [Literal(number, ShapedArray((), dtype)) for number in numbers]
        return _without_stops(_with_operands(eqn, [eqn.invars[0], *values]) or eqn)

    return with_equations(jaxpr, [typed(e) for e in jaxpr.eqns])


def _is_numbered(eqn: Eqn) -> bool:
    # A dead call has no results.
    if eqn.primitive.name != "jit" or not eqn.invars or not eqn.outvars:
        return False
    return eqn.params["name"] in _NUMBERED or is_keys(eqn.invars[0])


def _without_stops(eqn: Eqn) -> Eqn:
    """Remove `stop_gradient` from what a call computes from numbers, which have no derivative."""
    inner = open_jaxpr(eqn.params["jaxpr"])
    numbers, idle = set(inner.invars[1:]), dict[Var, Atom]()
    for each in inner.eqns:
        if all(a in numbers for a in each.invars if is_var(a)):
            numbers.update(each.outvars)
            if each.primitive.name == "stop_gradient":
                idle[each.outvars[0]] = each.invars[0]
    if not idle:
        return eqn
    body = rename(
        inner.replace(eqns=[e for e in inner.eqns if idle.keys().isdisjoint(e.outvars)]), idle
    )
    return eqn.replace(params={**eqn.params, "jaxpr": close_like(eqn.params["jaxpr"], body)})


def _with_operands(eqn: Eqn, operands: Sequence[Atom]) -> Eqn | None:
    """A call with other types of scalars, which it only converts to these; else `None`.

    `jnp.std` passes its scalar on to `jnp.var`.
    """
    inner = open_jaxpr(eqn.params["jaxpr"])
    pairs = zip(inner.invars, operands, strict=True)
    changed = {old: Var(new.aval) for old, new in pairs if old.aval.dtype != new.aval.dtype}
    converted: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for each in inner.eqns:
        own = renamed(each.invars, changed)
        if all(new is a for new, a in zip(own, each.invars, strict=True)):
            eqns.append(each)
        elif _is_numbered(each) and (made := _with_operands(each, own)) is not None:
            eqns.append(made)
        elif each.primitive.name == "convert_element_type" and (
            each.outvars[0].aval.dtype == own[0].aval.dtype
        ):
            converted[each.outvars[0]] = own[0]
        else:
            return None
    if any(is_var(v) and v in changed for v in inner.outvars):
        return None
    body = rename(inner.replace(eqns=eqns), converted)
    body = body.replace(invars=[changed.get(v, v) for v in body.invars])
    closed = close_like(eqn.params["jaxpr"], body)
    return eqn.replace(invars=[*operands], params={**eqn.params, "jaxpr": closed})


def plain(closed: J) -> J:
    """As `strong`, but keeping weak types and dead code."""

    def plainer(eqn: Eqn) -> Made:
        kept = _returned(eqn)
        if kept is None:
            return [_typed_operands(eqn)], eqn.outvars
        return [], [typed(eqn.invars[kept])]

    def one(jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = _narrow(with_size_values(rewritten(_with_bounds(unwrapped(jaxpr)), plainer)))
        sliced = with_slices(jaxpr)
        return with_narrow_counters(with_size_values(jaxpr if sliced is jaxpr else dce(sliced)))

    return map_jaxprs(closed, one)


def merged(closed: J, *, within: Callable[[Eqn], Hashable] = lambda eqn: ()) -> J:
    """Eliminate common subexpressions, as compilers do.

    **Arguments:**

    - `within`: equations with different values of it are not merged.
    """
    return map_jaxprs(closed, lambda jaxpr: merge_equations(jaxpr, within=within))


def _narrow(jaxpr: Jaxpr) -> Jaxpr:
    """As `composed`, with operands as narrow as possible."""
    narrow = with_plain_lookups(with_narrow_operands(composed(jaxpr)))
    return composed(with_kept_axes(with_late_axes(narrow)))


def _strengthened(jaxpr: Jaxpr) -> Jaxpr:
    made = [v for e in jaxpr.eqns for v in e.outvars]
    weak = any(is_weak(v) for v in (*jaxpr.constvars, *jaxpr.invars, *made))
    identities = any(_returned(e) is not None for e in jaxpr.eqns)
    eqns = [_typed_operands(e) for e in jaxpr.eqns]
    outs = [typed(a) for a in jaxpr.outvars]
    if any(a is not b for a, b in zip(outs, jaxpr.outvars, strict=True)):
        jaxpr = jaxpr.replace(outvars=outs)
    jaxpr = with_equations(jaxpr, eqns)
    if not weak and not identities:
        return jaxpr

    def on_eqn(eqn: Eqn, operands: list[Value]) -> list[Value]:
        kept = _returned(eqn)
        return bind(eqn, operands) if kept is None else [operands[kept]]

    count = len(jaxpr.constvars)
    jaxpr = constants_as_arguments(jaxpr)
    inner = open_jaxpr(retrace(jaxpr, on_eqn, map(_strong_type, jaxpr.invars)))
    return inner.replace(constvars=inner.invars[:count], invars=inner.invars[count:])


# The right identity element of each operation.
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}


def unchanged(eqn: Eqn) -> int | None:
    """The position of the operand that an operation with its identity element returns."""
    if (neutral := _NEUTRAL.get(eqn.primitive.name)) is None:
        return None
    kept = int(isinstance(eqn.invars[0], Literal) and eqn.primitive.name in ("add", "mul"))
    x, number, out = eqn.invars[kept], eqn.invars[1 - kept], eqn.outvars[0]
    if isinstance(x, Literal) or not isinstance(number, Literal) or np.any(number.val != neutral):
        return None
    return kept if (x.aval.shape, x.aval.dtype) == (out.aval.shape, out.aval.dtype) else None


def _is_plain_reshape(eqn: Eqn) -> bool:
    params = eqn.params
    plain = eqn.primitive is lax.reshape_p and len(eqn.invars) == 1
    return plain and params["dimensions"] is None and params["sharding"] is None


def _returned(eqn: Eqn) -> int | None:
    """The operand that an identity, such as a copy, `x[:]`, `x + 0` or an empty pad, returns."""
    if eqn.primitive.name == "select_n":
        # Of integers that branches use, which all run under `jax.vmap`.
        x, *others = eqn.invars[1:]
        exact = is_var(x) and x.aval.dtype.kind in "biu"
        return 1 if exact and all(other is x for other in others) else None
    # JAX reshapes some scalars to scalars.
    if eqn.primitive.name == "slice" or _is_plain_reshape(eqn):
        whole = eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape
        return 0 if whole and not isinstance(eqn.invars[0], Literal) else None
    if eqn.primitive.name == "pad":
        x, filling = eqn.invars
        nothing = all(widths == (0, 0, 0) for widths in eqn.params["padding_config"])
        # The derivative of another filling may be NaN.
        return 0 if nothing and is_var(x) and isinstance(filling, Literal) else None
    if eqn.primitive.name in ("copy", "convert_element_type"):
        return 0 if eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype else None
    # As JAX traces `arange` of an open length, and `tril`.
    kept = unchanged(eqn)
    return kept if kept is not None and eqn.outvars[0].aval.dtype.kind in "iu" else None


def _strong_type(v: Var) -> Aval:
    return type_of(v) if hasattr(v.aval, "shape") else v.aval


def _typed_operands(eqn: Eqn) -> Eqn:
    invars = [typed(a) for a in eqn.invars]
    changed = any(a is not b for a, b in zip(invars, eqn.invars, strict=True))
    eqn = eqn.replace(invars=invars) if changed else eqn
    if eqn.primitive.name == "slice" and set(eqn.params["strides"] or ()) == {1}:
        # Strides default to one.
        eqn = eqn.replace(params={**eqn.params, "strides": None})
    if eqn.primitive.name in kinds.CONTRACTIONS:
        # The type of the operands is the default.
        types = {a.aval.dtype for a in (*eqn.invars, *eqn.outvars)}
        if len(types) == 1 and eqn.params["preferred_element_type"] is not None:
            eqn = eqn.replace(params={**eqn.params, "preferred_element_type": None})
    if eqn.params.get("unique_indices") and eqn.primitive.name == "gather":
        # The only index into an array is unique, and the parameter does not survive lowering.
        mapped = eqn.params["dimension_numbers"].start_indices_batching_dims
        if has_single_index(eqn.invars[1].aval.shape, mapped):
            eqn = eqn.replace(params={**eqn.params, "unique_indices": False})
    fill = eqn.params.get("fill_value")
    if isinstance(fill, float) and fill != fill:
        # One NaN object for all, since parameters are compared and NaN does not equal NaN.
        eqn = eqn.replace(params={**eqn.params, "fill_value": math.nan})
    return eqn


def without_silent_params(eqn: Eqn) -> Eqn:
    """Remove parameters that have no effect: an empty sharding, the caller's mesh."""
    if "context_mesh" in eqn.params:
        eqn = eqn.replace(params={k: v for k, v in eqn.params.items() if k != "context_mesh"})
    sharding = eqn.params.get("sharding")
    if (
        sharding is not None
        and _is_silent(sharding)
        and eqn.primitive.name != "sharding_constraint"
    ):
        eqn = eqn.replace(params={**eqn.params, "sharding": None})
    return eqn


def _is_silent(sharding: object) -> bool:
    """Return whether a sharding constrains nothing: no devices, or all dimensions unconstrained."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return False
    mesh = sharding.mesh
    return mesh.empty or (
        mesh.are_all_axes_auto and not any(isinstance(e, (str, tuple)) for e in sharding.spec)
    )


def _sliced(jaxpr: Jaxpr) -> Jaxpr:
    """Slices in place of `unstack`, which a loop over an array traces to since jax 0.12."""

    def sliced(eqn: Eqn) -> list[Eqn] | None:
        if eqn.primitive.name != "unstack":
            return None
        (x,), axis = eqn.invars, eqn.params["axis"]

        def rows(x: Value) -> list[Value]:
            found: list[Value] = []
            for i in range(len(eqn.outvars)):
                starts, limits = [0] * len(x.shape), list(x.shape)
                starts[axis], limits[axis] = i, i + 1
                found.append(lax.squeeze(lax.slice(x, starts, limits), (axis,)))
            return found

        return in_place_of(eqn, [x], rows)

    rows = replaced(jaxpr, sliced)
    return jaxpr if rows is jaxpr else dce(rows)


def _with_each_result_once(eqn: Eqn) -> Made | None:
    """A call that returns no value twice, no number, and none of its arguments.

    What its derivative saves may be computed twice, or be the conversion of a number that text
    writes as a Python float, and is an argument here.
    """
    if eqn.primitive.name != "jit":
        return None
    inner = open_jaxpr(eqn.params["jaxpr"])
    known: dict[Var, Atom] = dict(zip(inner.invars, eqn.invars, strict=True))
    results: list[Atom] = []
    for v, out in zip(inner.outvars, eqn.outvars, strict=True):
        if is_var(v) and (v in known or not isinstance(out, DropVar)):
            results.append(known.setdefault(v, out))
        else:
            results.append(v if isinstance(v, Literal) else out)
    own = [i for i, (v, a) in enumerate(zip(eqn.outvars, results, strict=True)) if a is v]
    if len(own) == len(results):
        return None
    if not own and not eqn.effects:
        return [], results
    jaxpr = returning(eqn.params["jaxpr"], own)
    params = {**eqn.params, "jaxpr": jaxpr}
    for name in ("out_shardings", "out_layouts"):
        params[name] = tuple(eqn.params[name][i] for i in own)
    new = eqn.replace(params=params, outvars=[eqn.outvars[i] for i in own])
    return [new], results


def _hoisted(eqn: Eqn) -> Made | None:
    """A scan that closes over unchanged carries and stacks no rows of its inputs again.

    A traced `lax.scan` is such a loop. Derivatives bind the primitive, which keeps both.
    """
    if eqn.primitive.name != "scan":
        return None
    parts = ScanParts.of(eqn)
    body = open_jaxpr(parts.body)
    consts, carry, xs = parts.split(body.invars)
    count = len(carry)
    kept = [body.outvars[i] is v for i, v in enumerate(carry)]
    inputs = dict(zip(xs, parts.xs, strict=True))
    stacked = [inputs.get(v) if is_var(v) else None for v in body.outvars[count:]]
    forwarded = [a is not None for a in stacked]
    if not any(kept) and not any(forwarded):
        return None

    def moved(values: Sequence[_A], of_consts: Sequence[_A], rest: Sequence[_A]) -> list[_A]:
        held = itertools.compress(values, kept)
        return [*of_consts, *held, *_others(values, kept), *rest]

    inner = body.replace(
        invars=moved(carry, consts, xs),
        outvars=[*_others(body.outvars[:count], kept), *_others(body.outvars[count:], forwarded)],
    )
    params = {
        **plain_params(eqn.params),
        "jaxpr": close_like(parts.body, inner),
        "num_consts": len(consts) + sum(kept),
        "num_carry": count - sum(kept),
    }
    outs, rows = eqn.outvars[:count], eqn.outvars[count:]
    new = eqn.replace(
        invars=moved(parts.init, parts.consts, parts.xs),
        outvars=[*_others(outs, kept), *_others(rows, forwarded)],
        params=params,
    )
    starts = (a if k else v for a, v, k in zip(parts.init, outs, kept, strict=True))
    return [new], [*starts, *(v if a is None else a for a, v in zip(stacked, rows, strict=True))]


def _others(values: Sequence[_A], left_out: Sequence[bool]) -> list[_A]:
    return [v for v, out in zip(values, left_out, strict=True) if not out]


def _scan(eqn: Eqn, depth: int) -> Eqn:
    eqn = with_closed_over(eqn)
    parts = ScanParts.of(eqn)
    params = {
        n: v for n, v in plain_params(eqn.params).items() if n not in ("num_consts", "linear")
    }
    # A module with stacked arrays has them in the order of its fields, also those that are unused.
    body = open_jaxpr(parts.body)
    count = len(body.invars) - len(parts.xs)
    first, rows = body.invars[:count], body.invars[count:]
    order = order_of_use(body, rows)
    if order != [*range(len(rows))]:
        body = body.replace(invars=[*first, *(rows[i] for i in order)])
        params["jaxpr"] = close_like(parts.body, body)
    xs = (parts.xs[i] for i in order)
    return eqn.replace(params=params, invars=[*parts.consts, *parts.init, *xs])


def _checkpoint(eqn: Eqn, depth: int) -> Eqn:
    (jaxpr,), kept = in_order_of_use([eqn.params["jaxpr"]], eqn.invars)
    return eqn.replace(params={**eqn.params, "jaxpr": jaxpr}, invars=[eqn.invars[i] for i in kept])


def _while_or_cond(eqn: Eqn, depth: int) -> Eqn:
    return with_closed_over(eqn)


def _jit(eqn: Eqn, depth: int) -> Eqn:
    return with_arguments_once(eqn)


def _custom_call(eqn: Eqn, depth: int) -> Eqn:
    """A function with a derivative rule, which is traced into a jaxpr for comparison."""
    rule = None
    if depth < _DEPTH:
        rule = _rule(eqn, depth)
    return eqn.replace(params={"call_jaxpr": eqn.params["call_jaxpr"], "rule": rule})


def _rule(eqn: Eqn, depth: int) -> Deferred | ClosedJaxpr | str:
    """The normal form of `rule_of`, shared by calls of one function and types."""
    x64: bool = jax.config.jax_enable_x64  # pyright: ignore
    params: Hashable = jvp_rule_of(eqn.params)
    decides = params is not None
    if not decides:
        params = tuple((n, v) for n, v in sorted(eqn.params.items()) if n != "call_jaxpr")
    types = tuple(_type_key(a.aval) for a in (*eqn.invars, *eqn.outvars))
    mesh = mesh_of_now()
    key = eqn.primitive, params, types, mesh, x64
    shared = _is_hashable(key)

    def made() -> ClosedJaxpr | str:
        with jax.enable_x64(x64):
            rule = _rule_by_key(_Ruled(key, eqn)) if shared else rule_of(eqn)
            return rule if isinstance(rule, str) else normal(rule, depth + 1)

    # Later, the mesh has other axes.
    return Deferred(key, made) if decides and shared and mesh == NO_MESH else made()


def _is_hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class _Ruled:
    """An equation, keyed by what its derivative rule depends on."""

    key: Hashable
    eqn: Eqn = dataclasses.field(compare=False)


def _type_key(aval: Aval) -> Hashable:
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)


# Calls share their rule. Only a few, since each keeps its function alive.
@functools.lru_cache(maxsize=256)
def _rule_by_key(ruled: _Ruled) -> ClosedJaxpr | str:
    return rule_of(ruled.eqn)


def _custom_vmap(eqn: Eqn, depth: int) -> Eqn:
    """A function with a batching rule, the rule traced at batch size two."""
    batched = None
    if depth < _DEPTH and eqn.invars:
        avals = [jax.ShapeDtypeStruct((2, *v.aval.shape), v.aval.dtype) for v in eqn.invars]
        with _setting_of(eqn):
            batched = normal(trace_closed(jax.vmap(lambda *xs: bind(eqn, xs)), *avals), depth + 1)
    return eqn.replace(params={"call": eqn.params["call"], "rule": batched})


def _linear_solve(eqn: Eqn, depth: int) -> Eqn:
    """A linear solve with the closed-over operands of its functions in order of use.

    `vecmat` is left out: JAX derives it by transposing `matvec`, with a different number of calls.
    """
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    symmetric = jaxprs.vecmat is not None and jaxprs.vecmat is jaxprs.matvec
    operands: list[Atom] = []
    functions: dict[str, AnyJaxpr] = {}
    counts: dict[str, int] = {}
    start = 0
    for name, length, closed in zip(lengths._fields, lengths, jaxprs, strict=True):
        held = eqn.invars[start : start + length]
        start += length
        if closed is not None and name != "vecmat":
            (functions[name],), kept = in_order_of_use([closed], held)
            counts[name] = len(kept)
            operands += [held[i] for i in kept]
    params = {"symmetric": symmetric, "counts": tuple(counts.items())}
    return eqn.replace(params={**params, **functions}, invars=[*operands, *eqn.invars[start:]])


def rule_of(eqn: Eqn) -> ClosedJaxpr | str:
    """The derivative of a `custom_jvp_call` or `custom_vjp_call` as a closed jaxpr.

    For `custom_jvp` it maps primals and tangents to results and tangents; for `custom_vjp` it maps
    primals and cotangents to cotangents of the primals. Integers have none. If the function
    forbids its derivative, the result is the message of the `LookupError`. That is so, too, where
    the rule holds a value of a trace that has ended, as that of `expn` inside its own rule: JAX
    raises an error as soon as it is used.
    """
    with _setting_of(eqn), full_tracebacks():  # the text of an error is read, not where it was
        try:
            rule = _traced_rule(eqn)
        except LookupError as error:
            if type(error) is not LookupError:
                raise
            return str(error.args[0])
    if any(map(is_tracer, consts_of(rule))):
        return "the derivative holds a value of a trace that has ended"
    return without_empty(map_equations(rule, with_plain_sum))


def with_plain_sum(eqn: Eqn) -> Eqn:
    """A sum of cotangents as any other sum."""
    return eqn.replace(primitive=lax.add_p) if eqn.primitive.name == "add_any" else eqn


def _setting_of(eqn: Eqn) -> contextlib.AbstractContextManager[object]:
    """The 64-bit setting under which the functions of an equation were traced."""
    x64 = any(map(is_wide, (*eqn.invars, *eqn.outvars)))
    return enabling_x64(x64)


def _traced_rule(eqn: Eqn) -> ClosedJaxpr:
    avals = [type_of(v) for v in eqn.invars]
    return (jvp_of if eqn.primitive.name == "custom_jvp_call" else vjp_of)(eqn, avals, bind)


_NORMAL = {
    "jit": _jit,
    "scan": _scan,
    kinds.CHECKPOINT: _checkpoint,
    "while": _while_or_cond,
    "cond": _while_or_cond,
    "custom_jvp_call": _custom_call,
    "custom_vjp_call": _custom_call,
    "custom_vmap_call": _custom_vmap,
    "custom_linear_solve": _linear_solve,
}
