"""Programs as an author would write them: idiomatic primitives and operands."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from invert._private.jax import dce
from invert.ir.convolutions import with_arguments
from invert.ir.graph import Graph, is_var
from invert.ir.jaxprs import broadcast_in_place_of
from invert.ir.known_numbers import with_known_numbers
from invert.ir.lookups import with_whole_places, with_wrapped_positions
from invert.ir.narrow_operands import with_narrow_operands
from invert.ir.passes import Made, replaced, rewritten
from invert.ir.scan_operands import unreversed, with_plain_operands
from invert.ir.stacks import with_concatenations
from invert.ir.traced_form import unchanged, with_plain_sum
from invert.ir.triangles import with_triangles
from invert.ir.types import Atom, Eqn, Jaxpr, Literal


def as_written(jaxpr: Jaxpr, *, implied: bool = True) -> Jaxpr:
    """A program as an author would write it.

    Sums of cotangents use `+`. Arrays of one number become numbers, and so do results computed from
    numbers. Operations with neutral numbers are dropped, and transposes that undo each other; `x +
    -1.0` is `x - 1.0`, and `-x * y + z` is `z - x * y`. Loops over reversed arrays run in reverse,
    and loops take arrays without axes of size one. Positions are looked up as other indices are,
    rows by their index alone, convolutions pad their images, and arrays are joined along the axis
    that they end up in. What is limited from above and then from below is limited from below first,
    as by `jnp.clip`.

    **Arguments:**

    - `implied`: whether operations broadcast arrays themselves where they can, and not only
        numbers. The derivative of such a broadcast is another one.
    """
    jaxpr = with_whole_places(jaxpr.replace(eqns=[_known(e) for e in jaxpr.eqns]))
    jaxpr = with_known_numbers(jaxpr)
    plain = without_neutral(with_wrapped_positions(jaxpr))
    narrow = with_narrow_operands(plain, arrays=implied)
    # Each may uncover more of the other: `x - zeros / 1.0`, `x - (zeros + zeros)`.
    while (plain := without_neutral(narrow)) is not narrow:
        narrow = with_narrow_operands(plain, arrays=implied)
    narrow = _without_inverse_transposes(narrow)
    narrow = with_arguments(_with_differences(narrow))
    narrow = with_concatenations(_with_clips(narrow))
    return with_triangles(with_plain_operands(unreversed(narrow)))


def _known(eqn: Eqn) -> Eqn:
    """An equation with the primitive that `jax.numpy` uses."""
    eqn = with_plain_sum(eqn)
    if (order := _order_of_axes(eqn)) is not None:
        return eqn.replace(primitive=lax.transpose_p, params={"permutation": order})
    if (
        eqn.primitive.name == "reshape"
        and not eqn.invars[0].aval.shape
        and eqn.outvars[0].aval.shape
    ):
        return broadcast_in_place_of(eqn, eqn.invars[0], eqn.outvars[0], ())
    if eqn.primitive.name != "tile":
        return eqn
    (x,), (out,) = eqn.invars, eqn.outvars
    old, new = x.aval.shape, out.aval.shape
    if old == new or any(m not in (1, n) for m, n in zip(old, new, strict=True)):
        return eqn
    params = {"shape": new, "broadcast_dimensions": tuple(range(len(new))), "sharding": None}
    return eqn.replace(primitive=lax.broadcast_in_dim_p, params=params)


def _order_of_axes(eqn: Eqn) -> tuple[int, ...] | None:
    """The permutation equal to a reshape that moves a last unit axis forward."""
    if eqn.primitive.name != "reshape" or len(eqn.invars) != 1:
        return None
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    rank = len(new)
    if rank < 2 or len(old) != rank or old[:-2] != new[:-2]:
        return None
    exchanged = old[-2:] == new[:-3:-1] and 1 == old[-1] != old[-2]
    return (*range(rank - 2), rank - 1, rank - 2) if exchanged else None


def without_neutral(jaxpr: Jaxpr) -> Jaxpr:
    """Drop `x + 0.0` and `x * 1.0`, as compilers do."""

    def dropped(eqn: Eqn) -> Made | None:
        kept = unchanged(eqn)
        return None if kept is None else ([], [eqn.invars[kept]])

    return rewritten(jaxpr, dropped)


def _without_inverse_transposes(jaxpr: Jaxpr) -> Jaxpr:
    """Drop transposes that undo others, such as those around a softmax over a middle axis.

    Those of the first axis stay: sequences are passed on with the batch first.
    """
    made: dict[Atom, Eqn] = {}

    def dropped(eqn: Eqn) -> Made | None:
        if eqn.primitive is not lax.transpose_p:
            return None
        before, order = made.get(eqn.invars[0]), eqn.params["permutation"]
        made[eqn.outvars[0]] = eqn
        inner = before.params["permutation"] if before is not None else order
        inverse = all(inner[k] == i for i, k in enumerate(order)) and order[0] == 0
        return ([], [before.invars[0]]) if before is not None and inverse else None

    single = rewritten(jaxpr, dropped)
    return single if single is jaxpr else dce(single)


def _with_differences(jaxpr: Jaxpr) -> Jaxpr:
    """Write differences as such: `z - x * y`, `x - 1.0`.

    Both round alike, also in derivatives.
    """
    jaxpr = jaxpr.replace(eqns=[_without_sign(e) for e in jaxpr.eqns])
    graph = Graph(jaxpr)
    instead: dict[Eqn, list[Eqn]] = {}
    for eqn in graph.by_primitive.get("add", ()):
        for product, other in zip(eqn.invars, eqn.invars[::-1], strict=True):
            made = graph.alone(product, "mul")
            negated = made and next((n for a in made.invars if (n := graph.alone(a, "neg"))), None)
            if made is None or negated is None or eqn.outvars[0].aval.dtype.kind not in "fV":
                continue
            (minus,), (x,) = negated.outvars, negated.invars
            factors = [x if a is minus else a for a in made.invars]
            instead[made] = [made.replace(invars=factors)]
            instead[eqn] = [eqn.replace(primitive=lax.sub_p, invars=[other, product])]
            break
    return dce(replaced(jaxpr, instead.get)) if instead else jaxpr


def _with_clips(jaxpr: Jaxpr) -> Jaxpr:
    """Write numbers limited from both sides as `jnp.clip` does: `minimum(6, maximum(0, x))`.

    Where the upper limit is larger, the order changes neither results nor derivatives.
    """
    graph = Graph(jaxpr)
    instead: dict[Eqn, list[Eqn]] = {}
    for one, other in (("max", "min"), ("min", "max")):
        for last in graph.by_primitive.get(one, ()):
            first = next((e for a in last.invars if (e := graph.alone(a, other))), None)
            limits = {e: _limit(e) for e in (first, last) if e is not None}
            if first is None or None in limits.values():
                continue
            low, high = (
                (limits[first], limits[last]) if one == "min" else (limits[last], limits[first])
            )
            if low is not None and high is not None and np.all(low.val < high.val):
                # Of two zeros with different signs, the first one may be the result.
                free = np.all(low.val * high.val != 0) or low.aval.dtype.kind in "iu"
                for step, primitive, limit in ((first, lax.max_p, low), (last, lax.min_p, high)):
                    operands = [limit if isinstance(a, Literal) else a for a in step.invars]
                    operands = sorted(operands, key=is_var) if free else operands
                    instead[step] = [step.replace(primitive=primitive, invars=operands)]
    return replaced(jaxpr, instead.get) if instead else jaxpr


def _limit(eqn: Eqn) -> Literal | None:
    """The number among two operands."""
    numbers = [a for a in eqn.invars if isinstance(a, Literal)]
    return numbers[0] if len(numbers) == 1 else None


def _without_sign(eqn: Eqn) -> Eqn:
    """An equation that subtracts a positive number instead of adding a negative one."""
    for number, x in zip(eqn.invars, eqn.invars[::-1], strict=False):
        dtype = number.aval.dtype
        if eqn.primitive is not lax.add_p or not isinstance(number, Literal) or not is_var(x):
            continue
        with np.errstate(invalid="ignore"):  # NaN
            negative = jax.numpy.issubdtype(dtype, np.floating) and np.all(number.val < 0)
        if negative:
            positive = Literal(-number.val, number.aval)
            return eqn.replace(primitive=lax.sub_p, params={}, invars=[x, positive])
    return eqn
