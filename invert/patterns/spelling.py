"""Chooses among primitives that lower to the same op.

`x * x` and `lax.square(x)` are one program, and so are a reshape that drops dimensions of size one
and a squeeze. The location decides; without one, the more common primitive is chosen. These run
last, so that no template depends on locations.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from invert._private.jax import add_any_p, name_stack
from invert.ir.hints import Hint, hint_of
from invert.ir.types import JaxFunction, Value
from invert.rewriting.pattern import Call, EquationPattern, Pattern, Site, bind


def _square(site: Site) -> JaxFunction | None:
    """`mul x x` -> `square x` or `integer_pow[y=2] x`."""
    x, y = site.eqn.invars
    if x is not y:
        return None
    # Without locations a square is more likely than a product of equals, except for unsigned
    # integers, whose products wrap around on purpose.
    likelier = not site.named and not jnp.issubdtype(site.out.dtype, jnp.unsignedinteger)
    if site.hint == "square" or likelier:
        return lambda x, _: [lax.square(x)]
    return (lambda x, _: [lax.integer_pow(x, 2)]) if site.hint == "integer_pow" else None


def _add_any(site: Site) -> JaxFunction | None:
    """`add x y` -> `add_any x y`, the sum of cotangents in a derivative."""
    x, y = site.eqn.invars
    # A sum with a number lost its broadcast when it was raised.
    if site.hint != "add_any" or x.aval.shape != y.aval.shape:
        return None
    return lambda x, y: [add_any_p.bind(x, y)]


_BOOL_REDUCTIONS = {
    "reduce_or": ("reduce_max", lax.reduce_max),
    "reduce_and": ("reduce_min", lax.reduce_min),
}


def _bool_reduction(site: Site) -> JaxFunction | None:
    """`reduce_or x` -> `reduce_max x`, and `reduce_and x` -> `reduce_min x`, of booleans."""
    meant, reduction = _BOOL_REDUCTIONS[site.eqn.primitive.name]
    if site.hint != meant:
        return None
    axes = site.eqn.params["axes"]
    return lambda x: [reduction(x, axes)]


def _reshape_dimensions(site: Site) -> Iterator[Call]:
    """`reshape (transpose x)` -> `reshape[dimensions=...] x`."""
    transpose = site.producer(site.eqn.invars[0], "transpose")
    if site.hint != "reshape" or transpose is None:
        return
    if hint_of(transpose).primitive == "reshape":
        params = {**site.eqn.params, "dimensions": transpose.params["permutation"]}
        yield bind(lax.reshape_p, site.aval(transpose.invars[0]), **params)


def _squeeze(site: Site) -> JaxFunction | None:
    """`reshape x` -> `squeeze x`, where it only drops dimensions of size one."""
    if site.hint not in ("squeeze", ""):
        return None
    before, after = site.eqn.invars[0].aval.shape, site.eqn.outvars[0].aval.shape
    if site.eqn.params.get("dimensions") is not None or len(before) <= len(after):
        return None
    dropped, rest = [], list(after)
    for i, n in enumerate(before):
        # From the front, a dimension of size one is dropped unless the result has it here.
        if (
            rest
            and rest[0] == n
            and len(before) - i > 0
            and not (n == 1 and _spare(before, i, rest))
        ):
            rest.pop(0)
        elif n == 1:
            dropped.append(i)
        else:
            return None
    return None if rest else lambda x: [lax.squeeze(x, tuple(dropped))]


def _spare(before: tuple[int, ...], i: int, rest: list[int]) -> bool:
    """Return whether the result shape can still be reached without dimension `i`."""
    remaining = list(before[i + 1 :])
    for n in rest:
        while remaining and remaining[0] != n:
            if remaining.pop(0) != 1:
                return False
        if not remaining:
            return False
        remaining.pop(0)
    return all(n == 1 for n in remaining)


def _explicit_broadcast(site: Site) -> JaxFunction | None:
    """Restore explicit broadcasts of operands."""
    eqn = site.eqn
    shape = eqn.outvars[0].aval.shape
    found = {
        position: number
        for position, number in hint_of(eqn).operands
        if position < len(eqn.invars) and eqn.invars[position].aval.shape != shape
    }
    if not found:
        return None

    def widen(x: Value, number: int) -> Value:
        with name_stack((Hint("broadcast_in_dim", broadcast=number).encode(),)):
            return lax.broadcast_in_dim(x, shape, tuple(range(len(shape))) if x.shape else ())

    def call(*operands: Value) -> Value:
        full = [widen(x, found[i]) if i in found else x for i, x in enumerate(operands)]
        return [eqn.primitive.bind(*full, **eqn.params)]

    return call


def _split(site: Site) -> Iterator[Call]:
    """Slices that tile one axis -> `split`."""
    eqn = site.eqn
    if site.hint not in ("split", "") or eqn.params["strides"] is not None:
        return
    x = eqn.invars[0]
    shape = x.aval.shape
    slices = [
        e
        for e in site.graph.users.get(x, ())
        if e.primitive.name == "slice" and e.params["strides"] is None
    ]
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    axes = [i for i, n in enumerate(shape) if (starts[i], limits[i]) != (0, n)]
    if len(axes) != 1 or len(slices) < 2:
        return
    (axis,) = axes
    at = {}
    for e in slices:
        s, t = e.params["start_indices"], e.params["limit_indices"]
        if all((s[i], t[i]) == (0, n) for i, n in enumerate(shape) if i != axis):
            at.setdefault(s[axis], t[axis])
    sizes, position = [], 0
    while position in at and at[position] > position:
        sizes.append(at[position] - position)
        position = at[position]
    # Without locations, slices of different sizes are more likely to be plain slices.
    meant = site.hint == "split" or len(set(sizes)) == 1
    if position == shape[axis] and len(sizes) > 1 and meant:
        yield bind(lax.split_p, site.aval(x), sizes=tuple(sizes), axis=axis)


def _stack(site: Site) -> Iterator[Call]:
    """`concatenate` of arrays with a new axis -> `stack`."""
    eqn = site.eqn
    if site.hint not in ("stack", ""):
        return
    if not site.hint and any(e.primitive.name == "gather" for e in site.graph.after(eqn)):
        return  # Without locations, the indices of several axes are those of `x[i, j]`.
    axis = eqn.params["dimension"]
    shape = eqn.outvars[0].aval.shape
    if shape[axis] != len(eqn.invars):
        return
    x = _like(site, shape[:axis] + shape[axis + 1 :])
    yield bind(lax.stack_p, *[x] * len(eqn.invars), axis=axis)


def _like(site: Site, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, site.out.dtype)


def _tile(site: Site) -> Iterator[Call]:
    """`reshape (broadcast_in_dim (reshape x))` -> `tile`."""
    broadcast = site.producer(site.eqn.invars[0])
    if site.hint not in ("tile", "") or broadcast is None:
        return
    if broadcast.primitive.name != "broadcast_in_dim":
        return
    shape = broadcast.outvars[0].aval.shape
    out = site.eqn.outvars[0].aval.shape
    if len(shape) != 2 * len(out) or any(
        shape[2 * i] * shape[2 * i + 1] != n for i, n in enumerate(out)
    ):
        return
    yield bind(lax.tile_p, _like(site, shape[1::2]), reps=tuple(shape[::2]))


def _unstack(site: Site) -> Iterator[Call]:
    """Slices of length one along an axis, each squeezed -> `unstack`."""
    if site.hint != "unstack":
        return
    if (source := site.producer(site.eqn.invars[0], "slice")) is None:
        return
    x = source.invars[0]
    out = site.eqn.outvars[0].aval.shape
    for axis, n in enumerate(x.aval.shape):
        if x.aval.shape[:axis] + x.aval.shape[axis + 1 :] == out and n >= 1:
            yield bind(lax.unstack_p, site.aval(x), axis=axis)


# The primitives for which raising turns broadcast scalars into scalar operands.
_NARY = tuple(
    "add and atan2 clamp complex div eq ge gt le lt max min mul ne or pow rem select_n shift_left "
    "shift_right_arithmetic shift_right_logical sub xor".split()
)

PATTERNS = (
    Pattern("split", ("slice",), _split),
    Pattern("stack", ("concatenate",), _stack),
    Pattern("tile", ("reshape",), _tile),
    Pattern("unstack", ("reshape",), _unstack),
    Pattern("reshape_dimensions", ("reshape",), _reshape_dimensions),
    EquationPattern("bool_reduction", ("reduce_or", "reduce_and"), _bool_reduction),
    EquationPattern("square", ("mul",), _square),
    EquationPattern("add_any", ("add",), _add_any),
    EquationPattern("squeeze", ("reshape",), _squeeze),
    EquationPattern("broadcast", _NARY, _explicit_broadcast),
)
