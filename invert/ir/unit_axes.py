"""Unit axes as written by hand: kept by reductions, or added late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
from jax import lax

from invert._private.jax import dce, rename
from invert.ir import kinds
from invert.ir.graph import Graph, is_var
from invert.ir.jaxprs import broadcast_in_place_of, broadcasts, reshape_in_place_of
from invert.ir.passes import in_place_of, replaced
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, ShapedArray, Var

# Broadcasting axes of size one against others would change what these compute.
_ALONE = frozenset(("clamp", "select_n"))
_MOVED = kinds.ELEMENTWISE - _ALONE


def with_kept_axes(jaxpr: Jaxpr) -> Jaxpr:
    """Let reductions keep axes that later operations would add again.

    `rsqrt(mean(x, -1) + 1e-6)[..., None]` is `rsqrt(mean(x, -1, keepdims=True) + 1e-6)`: the same
    operations on each element, also in derivatives.
    """
    if not any(map(added_axes, jaxpr.eqns)):
        return jaxpr
    graph = Graph(jaxpr)
    kept = _kept(graph)
    if not kept:
        return jaxpr
    names: dict[Var, Var] = {
        v: Var(ShapedArray(_wide(v.aval.shape, axes), v.aval.dtype)) for v, axes in kept.items()
    }
    added: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        out = eqn.outvars[0]
        if out in names and eqn.primitive.name in kinds.REDUCTIONS:
            eqns += [eqn, _widened(eqn, out, names[out])]
        elif out in names:
            operands = [names[a] if isinstance(a, Var) else a for a in eqn.invars]
            eqns.append(eqn.replace(invars=operands, outvars=[names[out]]))
        elif added_axes(eqn) and (x := eqn.invars[0]) in names:
            added[out] = names[x]
        else:
            eqns.append(eqn)
    jaxpr = rename(jaxpr.replace(eqns=eqns), added)
    return dce(jaxpr)


def with_flat_convolutions(jaxpr: Jaxpr) -> Jaxpr:
    """Remove spatial unit axes that were added only for convolutions.

    Both are sums of the same products, in an order that the compiler chooses.
    """
    if not any(e.primitive is lax.conv_general_dilated_p for e in jaxpr.eqns):
        return jaxpr
    graph = Graph(jaxpr)

    def flat(eqn: Eqn) -> list[Eqn] | None:
        places = _flat_places(eqn, graph)
        return in_place_of(eqn, eqn.invars, partial(_convolved, eqn, places)) if places else None

    return replaced(jaxpr, flat)


def _flat_places(eqn: Eqn, graph: Graph) -> list[int]:
    """Find the spatial axes that were added to a convolution's images."""
    if eqn.primitive is not lax.conv_general_dilated_p:
        return []
    if (made := graph.producer(eqn.invars[0], "broadcast_in_dim")) is None:
        return []
    params, added = eqn.params, added_axes(made)
    (_, _, *images), (_, _, *sides), (_, _, *results) = params["dimension_numbers"]
    kernel, out = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    places = [
        k
        for k, (i, j, m) in enumerate(zip(images, sides, results, strict=True))
        if i in added and kernel[j] == out[m] == 1 and tuple(params["padding"][k]) == (0, 0)
    ]
    return places if len(places) < len(images) else []


def _convolved(eqn: Eqn, places: Sequence[int], x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution without some of its spatial axes, which are added again."""
    params = dict(eqn.params)
    specs = params.pop("dimension_numbers")
    gone = [[spec[2 + k] for k in places] for spec in specs]
    less = [
        tuple(i - sum(j < i for j in axes) for i in spec if i not in axes)
        for spec, axes in zip(specs, gone, strict=True)
    ]
    for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation"):
        params[name] = tuple(p for k, p in enumerate(params[name]) if k not in places)
    operands = (lax.squeeze(v, axes) for v, axes in zip((x, kernel), gone, strict=False))
    numbers = lax.ConvDimensionNumbers(*less)
    result = lax.conv_general_dilated_p.bind(*operands, dimension_numbers=numbers, **params)
    return lax.expand_dims(result, gone[2])


_IN_PLACE = kinds.LAYOUT - {"transpose"}


def only_unit_axes(eqn: Eqn) -> bool:
    """Return whether an equation only adds or removes axes of size one."""
    if eqn.primitive.name not in _IN_PLACE or len(eqn.invars) != 1:
        return False
    one, two = ([n for n in v.aval.shape if n != 1] for v in (eqn.invars[0], eqn.outvars[0]))
    ordered = eqn.primitive is not lax.reshape_p or eqn.params["dimensions"] is None
    return not isinstance(eqn.invars[0], Literal) and one == two and ordered


def added_axes(eqn: Eqn) -> tuple[int, ...]:
    """The unit axes that an equation adds, if it does only that; else `()`."""
    if not broadcasts(eqn) or isinstance(eqn.invars[0], Literal):
        return ()
    x, dims, shape = eqn.invars[0], eqn.params["broadcast_dimensions"], eqn.params["shape"]
    axes = tuple(i for i in range(len(shape)) if i not in dims)
    same = tuple(shape[i] for i in dims) == tuple(x.aval.shape)
    return axes if same and all(shape[i] == 1 for i in axes) else ()


def _wide(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """A shape with axes of size one at these places of the result."""
    rest = iter(shape)
    count = len(shape) + len(axes)
    return tuple(1 if i in axes else next(rest) for i in range(count))


def _widened(like: Eqn, x: Var, out: Var) -> Eqn:
    dims = (i for i in range(len(out.aval.shape)) if i not in like.params["axes"])
    return broadcast_in_place_of(like, x, out, dims)


def _kept(graph: Graph) -> dict[Var, tuple[int, ...]]:
    """The values that may keep the reduced axes, with these axes.

    Each use of such a value adds the axes, or computes another such value element by element.
    """
    kept: dict[Var, tuple[int, ...]] = {}
    for eqn in graph.eqns:
        if len(eqn.outvars) != 1:
            continue
        (out,) = eqn.outvars
        if eqn.primitive.name in kinds.REDUCTIONS and out.aval.shape:
            if axes := tuple(eqn.params["axes"]):
                kept[out] = axes
        elif eqn.primitive.name in _MOVED and out.aval.shape:
            before = [a for a in eqn.invars if isinstance(a, Var)]
            places = {kept.get(a) for a in before}
            alike = all(a.aval.shape == out.aval.shape for a in before)
            if alike and len(places) == 1 and None not in places:
                kept[out] = kept[before[0]]
    changed = True
    while changed:
        wrong = [v for v, axes in kept.items() if not _stays(graph, v, axes, kept)]
        for v in wrong:
            del kept[v]
        changed = bool(wrong)
    return kept


def _stays(
    graph: Graph, v: Var, axes: tuple[int, ...], found: Mapping[Var, tuple[int, ...]]
) -> bool:
    users = graph.users.get(v, ())
    made = graph.producers[v]
    if v in graph.results or not users:
        return False
    if made.primitive.name not in kinds.REDUCTIONS and any(
        isinstance(a, Var) and a not in found for a in made.invars
    ):
        return False
    return all(added_axes(u) == axes or _moves_kept(u, found) for u in users)


def _moves_kept(eqn: Eqn, found: Mapping[Var, tuple[int, ...]]) -> bool:
    """Return whether an equation computes another value that keeps the axes of its operands."""
    return eqn.primitive.name not in kinds.REDUCTIONS and eqn.outvars[0] in found


def with_late_axes(jaxpr: Jaxpr) -> Jaxpr:
    """Add leading unit axes to results rather than to operands.

    `rsqrt(var[None, None] + 1e-5)` is `rsqrt(var + 1e-5)`, which broadcasts where it is used.
    """
    if not any(map(added_axes, jaxpr.eqns)):
        return jaxpr
    free = {*jaxpr.invars, *jaxpr.constvars}
    narrow: dict[Var, Var] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        axes = added_axes(eqn)
        if (
            axes
            and axes == tuple(range(len(axes)))
            and (x := eqn.invars[0]) in free
            and x.aval.shape
        ):
            narrow[eqn.outvars[0]] = x
        elif eqn.primitive.name in _MOVED and (inner := _inner(eqn, narrow)) is not None:
            (out,) = eqn.outvars
            rank = len(out.aval.shape)
            first = next(a for a in inner if isinstance(a, Var))
            own = Var(ShapedArray(tuple(first.aval.shape), out.aval.dtype))
            eqns += [
                eqn.replace(invars=inner, outvars=[own]),
                broadcast_in_place_of(eqn, own, out, range(rank - len(own.aval.shape), rank)),
            ]
            narrow[out] = own
            continue
        eqns.append(eqn)
    return dce(jaxpr.replace(eqns=eqns)) if len(eqns) > len(jaxpr.eqns) else jaxpr


def with_axes_after_operations(jaxpr: Jaxpr) -> Jaxpr:
    """Add unit axes after operations: `x[:, None] / y[:, None]` is `(x / y)[:, None]`.

    Operands may also be numbers, as in `x[:, None] / 8`, or arrays filled with one.
    """
    if not any(map(added_axes, jaxpr.eqns)):
        return jaxpr
    narrow: dict[Atom, Eqn] = {}
    filled: dict[Atom, Eqn] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if added_axes(eqn):
            narrow[eqn.outvars[0]] = eqn
        elif broadcasts(eqn) and not eqn.invars[0].aval.shape:
            filled[eqn.outvars[0]] = eqn
        elif (added := _added_to_all(eqn, narrow, filled)) is not None:
            before, eqn = _before_axes(eqn, added, narrow, filled)
            eqns += before
            narrow[eqn.outvars[0]] = eqn
        eqns.append(eqn)
    return dce(jaxpr.replace(eqns=eqns)) if len(eqns) > len(jaxpr.eqns) else jaxpr


def with_sums_of_real_axes(jaxpr: Jaxpr) -> Jaxpr:
    """Sum along axes of more than one alone: the derivative of a `tile` adds others first."""
    graph = Graph(jaxpr)

    def narrow(eqn: Eqn) -> list[Eqn] | None:
        if eqn.primitive is not lax.reduce_sum_p or eqn.params["out_sharding"] is not None:
            return None
        (x,), (out,), axes = eqn.invars, eqn.outvars, eqn.params["axes"]
        made = graph.producer(x)
        if made is not None and added_axes(made):
            (x,), places = made.invars, made.params["broadcast_dimensions"]
            axes = tuple(i for i, place in enumerate(places) if place in axes)
        shape = x.aval.shape
        real = tuple(i for i in axes if shape[i] != 1)
        left = tuple(n for i, n in enumerate(shape) if i not in real)
        if not real or (x is eqn.invars[0] and real == axes):
            return None
        own = eqn.replace(invars=[x], params={**eqn.params, "axes": real})
        if left == tuple(out.aval.shape):
            return [own]
        total = Var(ShapedArray(left, out.aval.dtype))
        return [own.replace(outvars=[total]), reshape_in_place_of(eqn, total, out)]

    return replaced(jaxpr, narrow)


def _added_to_all(eqn: Eqn, narrow: Mapping[Atom, Eqn], filled: Mapping[Atom, Eqn]) -> Eqn | None:
    """The equation that adds the same axes to all arrays of an operation not filled with a number.

    No other axis is broadcast: the arrays have the shape of the result.
    """
    if eqn.primitive.name not in kinds.ELEMENTWISE or len(eqn.outvars) != 1:
        return None
    arrays = [a for a in eqn.invars if a.aval.shape]
    made = [narrow[a] for a in arrays if is_var(a) and a in narrow]
    known = all(is_var(a) and (a in narrow or a in filled) for a in arrays)
    alike = all(a.aval.shape == eqn.outvars[0].aval.shape for a in arrays)
    places = {tuple(e.params["broadcast_dimensions"]) for e in made}
    return made[0] if known and alike and len(places) == 1 else None


def _before_axes(
    eqn: Eqn, added: Eqn, narrow: Mapping[Atom, Eqn], filled: Mapping[Atom, Eqn]
) -> tuple[list[Eqn], Eqn]:
    """The equations of an operation without the axes of its operands, and one that adds them."""
    shape, (out,) = tuple(added.invars[0].aval.shape), eqn.outvars
    eqns, operands = list[Eqn](), list[Atom]()
    for a in eqn.invars:
        if is_var(a) and (number := filled.get(a)):
            less = Var(ShapedArray(shape, a.aval.dtype))
            eqns.append(broadcast_in_place_of(number, number.invars[0], less, ()))
            operands.append(less)
        else:
            operands.append(narrow[a].invars[0] if is_var(a) and a in narrow else a)
    own = Var(ShapedArray(shape, out.aval.dtype))
    eqns.append(eqn.replace(invars=operands, outvars=[own]))
    return eqns, broadcast_in_place_of(eqn, own, out, added.params["broadcast_dimensions"])


def _inner(eqn: Eqn, narrow: Mapping[Var, Var]) -> list[Atom] | None:
    """The operands without axes added to all of them, if there are any."""
    if not any(map(is_var, eqn.invars)) or len(eqn.outvars) != 1:
        return None
    inner: list[Atom] = []
    for atom in eqn.invars:
        if isinstance(atom, Literal) and not atom.aval.shape:
            inner.append(atom)
        elif (
            isinstance(atom, Var)
            and atom in narrow
            and atom.aval.shape == eqn.outvars[0].aval.shape
        ):
            inner.append(narrow[atom])
        else:
            return None
    shapes = {a.aval.shape for a in inner if is_var(a)}
    return inner if len(shapes) == 1 else None
