"""Recovers slices at open sizes, which JAX traces to a `gather` or a `dynamic_slice`.

JAX gathers for `x[: n // 2]` if it cannot prove that the slice is in bounds, and always for
`x[::2]` of an open size; for `x[0]` it slices at a computed place. If the sizes prove that it is in
bounds, the equation becomes a `slice`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jax import lax

from invert.ir.passes import in_place_of, replaced
from invert.ir.size_values import sizes_in
from invert.ir.sizes import DimSize, decided, is_open
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Value


def with_slices(jaxpr: Jaxpr) -> Jaxpr:
    """The equations of a jaxpr with such slices; inner jaxprs stay as they are."""
    if not any(_may_be(e) for e in jaxpr.eqns):
        return jaxpr
    makers: dict[Atom, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}

    def sliced(eqn: Eqn) -> Sequence[Eqn] | None:
        if not _may_be(eqn):
            return None
        if eqn.primitive.name == "dynamic_slice":
            return _placed(eqn, makers)
        return _sliced(eqn, makers) or _strided(eqn, makers)

    return replaced(jaxpr, sliced)


def _may_be(eqn: Eqn) -> bool:
    """Return whether an equation gathers from an array with open sizes, or slices it.

    Indices fill what is out of bounds along an axis of known size only if the author asked for it,
    as by `jnp.take`.
    """
    if eqn.primitive.name == "dynamic_slice":
        return any(map(is_open, eqn.invars[0].aval.shape))
    if eqn.primitive.name != "gather":
        return False
    numbers = eqn.params["dimension_numbers"]
    shape, lengths = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    indexed = [n for i in numbers.start_index_map for n in (shape[i], lengths[i])]
    fills = eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    sizes = indexed if fills else (*shape, *lengths)
    return any(map(is_open, sizes)) and not numbers.operand_batching_dims


def _placed(eqn: Eqn, makers: Mapping[Atom, Eqn]) -> list[Eqn] | None:
    """The slice equal to a `dynamic_slice`; `None` if the array may be shorter."""
    x, *starts = eqn.invars
    known = [sizes_in(a, makers) for a in starts]
    places = [n for found in known if found is not None for n in found]
    if len(places) != len(starts):
        return None
    return _cut(eqn, x, places, eqn.params["slice_sizes"], ())


def _sliced(eqn: Eqn, makers: Mapping[Atom, Eqn]) -> list[Eqn] | None:
    """Equations of the equal slice; `None` if the array may be shorter."""
    x, index = eqn.invars
    starts = sizes_in(index, makers) if len(index.aval.shape) == 1 else None
    numbers, lengths = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    if starts is None or any(
        not is_open(lengths[i]) and lengths[i] != 1 for i in numbers.collapsed_slice_dims
    ):
        return None
    places: list[DimSize] = [0] * len(lengths)
    for axis, start in zip(numbers.start_index_map, starts, strict=True):
        places[axis] = start
    return _cut(eqn, x, places, lengths, numbers.collapsed_slice_dims)


def _cut(
    eqn: Eqn, x: Atom, places: Sequence[DimSize], lengths: Sequence[DimSize], dropped: Sequence[int]
) -> list[Eqn] | None:
    """A slice without some axes in place of an equation, if it is in bounds at all sizes."""
    limits = [a + n for a, n in zip(places, lengths, strict=True)]
    for start, limit, size in zip(places, limits, x.aval.shape, strict=True):
        if not (decided("ge", start, 0) and decided("le", limit, size)):
            return None

    def cut(x: Value) -> Value:
        part = lax.slice(x, places, limits)
        return lax.squeeze(part, dropped) if dropped else part

    return in_place_of(eqn, [x], cut)


def _strided(eqn: Eqn, makers: Mapping[Atom, Eqn]) -> list[Eqn] | None:
    """Equations of the equal strided slice; `None` if the array may be shorter."""
    x, index = eqn.invars
    numbers, lengths = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, axes, spaced = x.aval.shape, numbers.start_index_map, numbers.collapsed_slice_dims
    kept = tuple(i for i in range(len(shape)) if i not in spaced)
    whole = all(i in axes or n == shape[i] for i, n in enumerate(lengths))
    if not whole or numbers.offset_dims != kept:
        return None
    if (places := spaced_places(index, axes, spaced, makers)) is None:
        return None
    starts: list[DimSize] = [0] * len(shape)
    limits, steps = list(shape), [1] * len(shape)
    for axis, (start, stride, count) in places.items():
        first, last, size = start, start + lengths[axis], shape[axis]
        if axis in spaced:
            # JAX cannot transpose a strided slice of an open size that may be empty.
            if stride == 0 or not decided("ge", count, 1):
                return None
            first = start if stride > 0 else start + stride * (count - 1)
            steps[axis] = step = abs(stride)
            to_the_end = decided("eq", (size - first + step - 1) // step, count)
            last = size if to_the_end else first + step * (count - 1) + 1
        if not (decided("ge", first, 0) and decided("le", last, size)):
            return None
        starts[axis], limits[axis] = first, last
    turned = [axis for axis in spaced if places[axis][1] < 0]
    # As everywhere, without unit strides.
    strides = steps if max(steps) > 1 else None

    def cut(x: Value) -> Value:
        part = lax.slice(x, starts, limits, strides)
        return lax.rev(part, turned) if turned else part

    return in_place_of(eqn, [x], cut)


# Start, stride and length of evenly spaced indices.
Rows: TypeAlias = tuple[DimSize, int, DimSize]


def spaced_places(
    index: Atom, axes: Sequence[int], spaced: Sequence[int], makers: Mapping[Atom, Eqn]
) -> dict[int, Rows] | None:
    """The evenly spaced indices along each of `axes`; `None` if they are others.

    **Arguments:**

    - `index`: indices in the last axis, one for each of `axes`.
    - `spaced`: the axes whose indices form an axis each of `index`, in order. Others have one.
    """
    if len(index.aval.shape) != len(spaced) + 1 or not spaced or not {*spaced} <= {*axes}:
        return None
    columns: Sequence[Atom] = [index]
    if len(axes) > 1:
        joined = makers.get(index)
        if joined is None or joined.primitive.name != "concatenate":
            return None
        columns = joined.invars
        if joined.params["dimension"] != len(spaced) or len(columns) != len(axes):
            return None
    places: dict[int, Rows] = {}
    for axis, column in zip(axes, columns, strict=True):
        rows: Rows | None = None
        if axis in spaced:
            rows = _along(column, spaced.index(axis), makers)
        elif (number := _number(column, makers)) is not None:
            rows = number, 0, 1
        if rows is None:
            return None
        places[axis] = rows
    return places


def _along(atom: Atom, axis: int, makers: Mapping[Atom, Eqn]) -> Rows | None:
    """As `spaced_rows`, along another axis, of an array that is constant along the others."""
    eqn = makers.get(atom)
    if eqn is None or eqn.primitive.name != "broadcast_in_dim":
        return spaced_rows(atom, makers) if axis == 0 else None
    if eqn.params["broadcast_dimensions"] != (axis,):
        return None
    rows = spaced_rows(eqn.invars[0], makers)
    return rows if rows is not None and rows[2] == atom.aval.shape[axis] else None


def spaced_rows(atom: Atom, makers: Mapping[Atom, Eqn]) -> Rows | None:
    """Start, stride and length of the indices along the first axis of an array.

    `None` if they are not evenly spaced, or depend on data.
    """
    if isinstance(atom, Literal) or (eqn := makers.get(atom)) is None:
        return None
    shape = atom.aval.shape
    if atom.aval.dtype.kind not in "iu" or any(n != 1 for n in shape[1:]):
        return None
    match eqn.primitive.name:
        case "iota" if eqn.params["dimension"] == 0:
            return 0, 1, shape[0]
        case "convert_element_type" | "copy":
            return spaced_rows(eqn.invars[0], makers)
        case "broadcast_in_dim" if eqn.params["broadcast_dimensions"] == (0,):
            rows = spaced_rows(eqn.invars[0], makers)
            return rows if rows is not None and rows[2] == shape[0] else None
        case "rev" if (rows := spaced_rows(eqn.invars[0], makers)) is not None:
            start, stride, count = rows
            return start + stride * (count - 1), -stride, count
        case "add" | "mul" | "sub":
            return _shifted(eqn, makers)
    return None


def _shifted(eqn: Eqn, makers: Mapping[Atom, Eqn]) -> Rows | None:
    """`spaced_rows` of a sum, a difference or a product with one number."""
    pairs = [(spaced_rows(a, makers), _number(a, makers)) for a in eqn.invars]
    for (rows, _), (_, number) in (pairs, pairs[::-1]):
        if rows is None or number is None:
            continue
        start, stride, count = rows
        match eqn.primitive.name:
            case "add":
                return start + number, stride, count
            case "sub" if rows is pairs[0][0]:
                return start - number, stride, count
            case "sub":
                return number - start, -stride, count
            case "mul" if not is_open(number):
                return start * number, stride * int(number), count
    return None


def _number(atom: Atom, makers: Mapping[Atom, Eqn]) -> DimSize | None:
    """The size that fills an array; `None` if it depends on data."""
    eqn = None if isinstance(atom, Literal) else makers.get(atom)
    if eqn is not None and eqn.primitive.name == "broadcast_in_dim":
        return _number(eqn.invars[0], makers)
    sizes = sizes_in(atom, makers) if not atom.aval.shape else None
    return sizes[0] if sizes is not None and len(sizes) == 1 else None
