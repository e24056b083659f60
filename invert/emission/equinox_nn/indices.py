"""Symbolic indices of elements, compared by `layout`.

An index is a variable that runs over an axis, given by its number; several merged by a reshape; or
a part of one that was split by a reshape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from jax import lax

from invert.ir.types import Atom, Eqn

# The index into an axis of size one.
ZERO = -1

# A variable's number; `("at", place)` for a fixed place; `("merge", ((index, size), ...))`;
# `("part", index, sizes, place)`.
Index: TypeAlias = int | tuple[Any, ...]

# An array in terms of another: a permutation of its axes, then a shape.
Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


def plain(at: Sequence[Index], shape: Sequence[int]) -> tuple[Index, ...]:
    """Indices into a shape, with `ZERO` for axes of size one."""
    return tuple(ZERO if n == 1 else i for i, n in zip(at, shape, strict=True))


def fresh(*used: Sequence[Index]) -> Iterator[int]:
    """Numbers of new variables, which do not occur in some indices."""
    return itertools.count(1 + max(itertools.chain([-1], *(map(_variables, used)))))


def _variables(at: Sequence[Index]) -> Iterator[int]:
    pending: list[Sequence[Any] | int] = [at]
    while pending:
        item = pending.pop()
        if isinstance(item, int):
            yield item
        elif item and item[0] == "merge":
            pending.extend(i for i, _ in item[1])
        elif item and item[0] == "part":
            pending.append(item[1])
        elif not item or item[0] != "at":
            pending.extend(item)


def renamed(*lists: tuple[Index, ...]) -> tuple[tuple[Index, ...], ...]:
    """The same indices, with variables numbered in order of occurrence."""
    numbers: dict[int, int] = {ZERO: ZERO}

    def new(index: Index) -> Index:
        if isinstance(index, int):
            return numbers.setdefault(index, len(numbers) - 1)
        if index[0] == "at":
            return index
        if index[0] == "merge":
            return ("merge", tuple((new(i), n) for i, n in index[1]))
        return ("part", new(index[1]), index[2], index[3])

    return tuple(tuple(map(new, at)) for at in lists)


def reshaped(at: Sequence[Index], shape: Sequence[int], wanted: Sequence[int]) -> tuple[Index, ...]:
    """Indices into an array of shape `wanted`, before it was reshaped to `shape`."""
    result: list[Index] = []
    i = j = 0
    while i < len(shape) or j < len(wanted):
        here, there = [i], [j]
        rows, columns = (shape[i] if i < len(shape) else 1), (wanted[j] if j < len(wanted) else 1)
        i, j = i + 1, j + 1
        while rows != columns:
            if rows < columns:
                rows *= shape[i]
                here.append(i)
                i += 1
            else:
                columns *= wanted[j]
                there.append(j)
                j += 1
        parts = [(at[k], shape[k]) for k in here if k < len(shape)]
        sizes = [wanted[k] for k in there if k < len(wanted)]
        result += split(merged(parts), sizes)
    return tuple(result)


def merged(parts: Sequence[tuple[Index, int]]) -> Index:
    """The index into an axis that merges several."""
    flat: list[tuple[Index, int]] = []
    for index, size in parts:
        if size == 1:
            continue
        if not isinstance(index, int) and index[0] == "merge":
            flat += index[1]
        else:
            flat.append((index, size))
    if not flat:
        return ZERO
    if len(flat) == 1:
        return flat[0][0]
    first = flat[0][0]
    if not isinstance(first, int) and first[0] == "part" and len(first[2]) == len(flat):
        whole = [("part", first[1], first[2], k) for k in range(len(flat))]
        if [i for i, _ in flat] == whole:
            return first[1]
    return ("merge", tuple(flat))


def split(index: Index, sizes: Sequence[int]) -> list[Index]:
    """The indices into the axes that an axis is split into."""
    real = [n for n in sizes if n != 1]
    if not real:
        return [ZERO] * len(sizes)
    if len(real) == 1:
        parts: list[Index] = [index]
    else:
        parts = _parts(index, tuple(real))
    rest = iter(parts)
    return [ZERO if n == 1 else next(rest) for n in sizes]


def _parts(index: Index, sizes: tuple[int, ...]) -> list[Index]:
    if not isinstance(index, int) and index[0] == "merge":
        groups: list[list[tuple[Index, int]]] = []
        rest = list(index[1])
        for size in sizes:
            group: list[tuple[Index, int]] = []
            # Open sizes are equal or not, but which of two is smaller may be unknown.
            while rest and math.prod(n for _, n in group) != size:
                group.append(rest.pop(0))
            if math.prod(n for _, n in group) != size:
                return [("part", index, sizes, k) for k in range(len(sizes))]
            groups.append(group)
        return [merged(g) for g in groups]
    return [("part", index, sizes, k) for k in range(len(sizes))]


def common(
    a: Sequence[int], b: Sequence[int], numbers: Iterator[int]
) -> tuple[list[Index], list[Index]] | None:
    """Indices for the axes that two operations sum over, which may be split differently.

    **Returns:** `None` if the numbers of elements differ.
    """
    if math.prod(a) != math.prod(b):
        return None
    if sorted(a) == sorted(b):
        made: dict[int, list[int]] = {}
        first = []
        for n in a:
            number = next(numbers)
            made.setdefault(n, []).append(number)
            first.append(ZERO if n == 1 else number)
        return first, [ZERO if n == 1 else made[n].pop(0) for n in b]
    fine, coarse = (a, b) if len(a) >= len(b) else (b, a)
    variables = [next(numbers) for _ in fine]
    own = plain(variables, fine)
    cut = list(reshaped(own, fine, coarse))
    return (list(own), cut) if fine is a else (cut, list(own))


def contracted(eqn: Eqn) -> list[int]:
    """The sizes of the contracted axes of a product."""
    shape = eqn.invars[0].aval.shape
    return [shape[i] for i in eqn.params["dimension_numbers"][0][0]]


def operands_of_dot(eqn: Eqn, at: Sequence[Index], bound: Sequence[Index]) -> list[list[Index]]:
    """The indices of both operands of a `dot_general`."""
    ((left, right), (batch_l, batch_r)) = eqn.params["dimension_numbers"]
    rest = iter(at)
    batch = [next(rest) for _ in batch_l]
    result = []
    for v, adds, batches in zip(eqn.invars, (left, right), (batch_l, batch_r), strict=True):
        known = dict(zip(batches, batch, strict=True)) | dict(zip(adds, bound, strict=True))
        result.append([known[i] if i in known else next(rest) for i in range(len(v.aval.shape))])
    return result


def taken(eqn: Eqn) -> tuple[int, int] | None:
    """The axis along which a `gather` takes single rows, and its index.

    Clipped indices into axes that are taken whole have no effect.
    """
    params, shape = eqn.params, eqn.invars[0].aval.shape
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    axes = list(numbers.start_index_map)
    single = [i for i, n in enumerate(shape) if sizes[i] != n]
    if getattr(numbers, "operand_batching_dims", ()) or len(single) != 1 or sizes[single[0]] != 1:
        return None
    clipped = params["mode"] in _CLIPPED
    if single[0] not in axes or (len(axes) > 1 and not clipped):
        return None
    rows = tuple(numbers.collapsed_slice_dims) in ((), (single[0],))
    return (single[0], axes.index(single[0])) if rows else None


# XLA clips by default.
_CLIPPED = (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def out_of_bounds(eqn: Eqn) -> str:
    """How a `gather` treats indices out of bounds."""
    params = eqn.params
    return "clip" if params["mode"] in _CLIPPED else f"fill with {params['fill_value']}"


def operands_of_take(eqn: Eqn, at: Sequence[Index], bound: int) -> list[list[Index]]:
    """The indices into both operands of a `gather` that takes rows."""
    numbers, row = eqn.params["dimension_numbers"], taken(eqn)
    assert row is not None
    axis, place = row
    rows = iter([at[i] for i in numbers.offset_dims])
    batch = [at[i] for i in range(len(at)) if i not in numbers.offset_dims]
    whole = range(len(eqn.invars[0].aval.shape))
    kept = {i: next(rows) for i in whole if i not in numbers.collapsed_slice_dims}
    return [[bound if i == axis else kept[i] for i in whole], [*batch, ("at", place)]]


def layout(at: Sequence[Index], to: Sequence[Index], shape: Sequence[int]) -> Layout:
    """The layout of an array with indices `at`, relative to one with indices `to`."""
    flat: list[Index] = []
    for index in at:
        if isinstance(index, int):
            flat.append(index)
        elif index[0] == "merge":
            flat += [i for i, _ in index[1]]
    order = [list(to).index(i) for i in flat if i != ZERO and i in to]
    order += [i for i in range(len(to)) if i not in order]
    return tuple(order), tuple(shape)


def part(eqn: Eqn, at: Sequence[Index]) -> tuple[Atom, tuple[Index, ...]] | None:
    """The operand of a `concatenate` that holds a place, and indices into it."""
    axis = eqn.params["dimension"]
    index = at[axis]
    if isinstance(index, int) or index[0] != "at":
        return None
    place = index[1]
    for atom in eqn.invars:
        size = atom.aval.shape[axis]
        if place < size:
            there = [("at", place) if i == axis else k for i, k in enumerate(at)]
            return atom, plain(there, atom.aval.shape)
        place -= size
    return None
