"""Brings lookups into one form: negative indices count from the end, bounds are promised."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np
from jax.lax import GatherScatterMode as Mode

from invert._private.jax import dce, names_of, open_jaxpr, with_names
from invert.ir.avals import is_differentiable
from invert.ir.graph import Graph, is_var, literal
from invert.ir.jaxprs import broadcast_in_place_of, equations, fills, map_equations
from invert.ir.passes import replaced
from invert.ir.sizes import DimSize
from invert.ir.types import AnyJaxpr, Atom, Eqn, J, Jaxpr, Literal, Var

# The name of `jnp.take` in a program; its second operand is the index.
_TAKE = "_take"


def has_single_index(shape: Sequence[DimSize], mapped: Container[int]) -> bool:
    """Return whether indices of this shape hold one index, or one for each row of a batch.

    **Arguments:**

    - `mapped`: the axes of the batch.
    """
    return all(n == 1 for i, n in enumerate(shape[:-1]) if i not in mapped)


def hides_mode(eqn: Eqn) -> bool:
    """Return whether an equation looks up numbers with derivatives and may clip indices or not.

    Lookups that JAX makes of dynamic slices under `vmap` are left out, since these always clip.
    """
    if eqn.primitive.name != "gather" or not is_differentiable(eqn.outvars[0].aval):
        return False
    numbers = eqn.params["dimension_numbers"]
    if numbers.start_indices_batching_dims:
        return not eqn.params["unique_indices"]
    # A dynamic slice has a start for each axis, and drops none of them.
    starts, axes = numbers.start_index_map, eqn.params["slice_sizes"]
    return bool(numbers.collapsed_slice_dims) or len(starts) < len(axes)


def clips(eqn: Eqn) -> bool:
    """Return whether an equation clips its indices, but might promise bounds; see `hides_mode`."""
    return hides_mode(eqn) and eqn.params["mode"] == Mode.CLIP


def adds_without_clipping(program: AnyJaxpr) -> bool:
    """Return whether a program adds numbers at indices, but clips no integers.

    The derivative of a gather that clips its indices clips them before it adds.
    """
    found = [*equations(open_jaxpr(program))]
    clamps = (e for e in found if e.primitive.name == "clamp")
    clipped = any(not is_differentiable(e.outvars[0].aval) for e in clamps)
    return not clipped and any(e.primitive.name == "scatter-add" for e in found)


def clipping(program: AnyJaxpr) -> list[Eqn]:
    """The lookups of a program that clip their indices, see `clips`."""
    return list(filter(clips, equations(open_jaxpr(program))))


def undecided(program: AnyJaxpr) -> list[Eqn]:
    """The lookups and updates of numbers that may promise that their indices are in bounds.

    They lower to the same op if they do, but have another derivative: out of bounds, the one drops
    what the other passes on. Updates of zeros are derivatives of lookups; those at places that the
    program looks up, too, are decided with the lookup, see `updates_at`.
    """
    looked_up = {e.invars[1] for e in _all(program, "gather")}
    return clipping(program) + [e for e in _sums(program) if e.invars[1] not in looked_up]


def updates_at(program: AnyJaxpr, lookups: Container[Eqn]) -> list[Eqn]:
    """The updates that may be derivatives of `lookups`: sums at the same indices."""
    places = {e.invars[1] for e in _all(program, "gather") if e in lookups}
    return [e for e in _sums(program) if e.invars[1] in places]


def _all(program: AnyJaxpr, name: str) -> Iterator[Eqn]:
    return (e for e in equations(open_jaxpr(program)) if e.primitive.name == name)


def _sums(program: AnyJaxpr) -> Iterator[Eqn]:
    """The equations that add values to zeros at indices, but for those out of bounds."""
    found = filter(fills, _all(program, "broadcast_in_dim"))
    filled = {e.outvars[0]: literal(e.invars[0]) for e in found}
    for eqn in _all(program, "scatter-add"):
        (x, _, y), (out,) = eqn.invars, eqn.outvars
        drops = eqn.params["mode"] == Mode.FILL_OR_DROP and is_differentiable(out.aval)
        if drops and is_var(x) and is_var(y) and filled.get(x) == 0 and y not in filled:
            yield eqn


def with_promised_bounds(program: J, chosen: Container[Eqn]) -> J:
    """A program whose `chosen` lookups and updates promise that their indices are in bounds."""

    def change(eqn: Eqn) -> Eqn:
        if eqn not in chosen:
            return eqn
        return eqn.replace(params={**eqn.params, "mode": Mode.PROMISE_IN_BOUNDS})

    return map_equations(program, change)


def with_wrapped_positions(jaxpr: Jaxpr) -> Jaxpr:
    """Wrap negative indices in lookups of positions, if another lookup does.

    Positions are never negative, so no result changes, and both lookups become the same layer.
    """
    graph = Graph(jaxpr)
    takes = [e for e in jaxpr.eqns if e.params.get("name") == _TAKE and len(e.invars) == 2]
    templates = {e.invars[1].aval.dtype: w for e in takes if (w := _wrapped(e, graph))}
    instead: dict[Eqn, list[Eqn]] = {}
    for eqn in takes:
        table, index = eqn.invars
        template = templates.get(index.aval.dtype)
        if template is None or not is_var(index) or graph.producer(index, "iota") is None:
            continue
        rows = table.aval.shape[0]
        if isinstance(rows, int) and index.aval.dtype.itemsize > 2:  # too wide to overflow
            instead[eqn] = _wrapping(eqn, index, rows, template)
    return replaced(jaxpr, instead.get)


def with_plain_lookups(jaxpr: Jaxpr) -> Jaxpr:
    """Write lookups of rows as `table[i]` makes them.

    Under `vmap`, as in Equinox's `Embedding`, they also have the start of axes that are taken
    whole, and an axis of one row that the next step drops.
    """
    jaxpr = with_whole_places(jaxpr)
    graph = Graph(jaxpr)
    moving = [e for e in graph.eqns if e.primitive.name in _AXES]
    fewer = {e: made for e in moving if (made := _starts(e, graph))}
    jaxpr = replaced(jaxpr, fewer.get)
    graph = Graph(jaxpr)
    instead: dict[Eqn, list[Eqn]] = {}
    for squeeze in graph.by_primitive.get("squeeze", ()):
        gather = graph.alone(squeeze.invars[0], "gather")
        if gather is not None and (made := _collapsed(gather, squeeze)) is not None:
            instead[squeeze] = [made]
    return dce(replaced(jaxpr, instead.get)) if fewer or instead else jaxpr


def with_whole_places(jaxpr: Jaxpr) -> Jaxpr:
    """Make the empty index of `x.at[:]`, which is a constant in a trace, where it is used."""
    constant = {*jaxpr.constvars, *jaxpr.invars}

    def made(eqn: Eqn) -> list[Eqn] | None:
        if eqn.primitive.name != "gather" and not eqn.primitive.name.startswith("scatter"):
            return None
        x, index, *rest = eqn.invars
        if index.aval.shape != (0,) or index not in constant:
            return None
        zero = Literal(np.zeros((), index.aval.dtype), index.aval.update(shape=()))
        empty = Var(index.aval)
        filled = broadcast_in_place_of(eqn, zero, empty, ())
        return [filled, eqn.replace(invars=[x, empty, *rest])]

    return replaced(jaxpr, made)


# What a lookup or an update calls the axes of its starts.
_AXES = {"gather": "start_index_map", "scatter": "scatter_dims_to_operand_dims"}


def _starts(eqn: Eqn, graph: Graph) -> list[Eqn] | None:
    """A lookup or an update without the starts of axes that are taken whole, if it has any.

    Every start of such an axis is clipped to zero.
    """
    table, index, *rest = eqn.invars
    numbers, name = eqn.params["dimension_numbers"], _AXES[eqn.primitive.name]
    joined = graph.producer(index, "concatenate")
    if joined is None or joined.params["dimension"] != len(index.aval.shape) - 1:
        return None
    axes, columns, sizes = getattr(numbers, name), joined.invars, _window(eqn)
    kept = [k for k, axis in enumerate(axes) if sizes[axis] != table.aval.shape[axis]]
    if eqn.params["mode"] != Mode.CLIP or len(columns) != len(axes):
        return None
    if not kept or len(kept) == len(axes):
        return None
    steps: list[Eqn] = []
    column = columns[kept[0]]
    if len(kept) > 1:
        column = Var(index.aval.update(shape=(*index.aval.shape[:-1], len(kept))))
        steps = [joined.replace(invars=[columns[k] for k in kept], outvars=[column])]
    numbers = numbers._replace(**{name: tuple(axes[k] for k in kept)})
    params = {**eqn.params, "dimension_numbers": numbers}
    return [*steps, eqn.replace(invars=[table, column, *rest], params=params)]


def _window(eqn: Eqn) -> Sequence[DimSize]:
    """The size of what a lookup takes, or an update changes, along each axis."""
    if eqn.primitive.name == "gather":
        return eqn.params["slice_sizes"]
    numbers = eqn.params["dimension_numbers"]
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    sizes = (eqn.invars[2].aval.shape[axis] for axis in numbers.update_window_dims)
    return [1 if axis in single else next(sizes) for axis in range(len(eqn.invars[0].aval.shape))]


def _collapsed(gather: Eqn, squeeze: Eqn) -> Eqn | None:
    """A lookup that drops the axes of one row that the next step drops."""
    numbers, sizes = gather.params["dimension_numbers"], gather.params["slice_sizes"]
    dropped = squeeze.params["dimensions"]
    if not set(dropped) <= set(numbers.offset_dims):
        return None
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    axes = [axis for axis in range(len(sizes)) if axis not in gone]
    taken = dict(zip(numbers.offset_dims, axes, strict=True))
    numbers = numbers._replace(
        offset_dims=tuple(
            k - sum(d < k for d in dropped) for k in numbers.offset_dims if k not in dropped
        ),
        collapsed_slice_dims=tuple(
            sorted((*numbers.collapsed_slice_dims, *(taken[d] for d in dropped)))
        ),
    )
    params = {**gather.params, "dimension_numbers": numbers}
    return gather.replace(params=params, outvars=squeeze.outvars)


def steps_of_wrapping(chosen: Eqn, producers: Mapping[Atom, Eqn]) -> tuple[Eqn, Eqn] | None:
    """The comparison and the sum of `where(i < m, i + n, i)`, if an equation is that."""
    if chosen.primitive.name != "select_n" or len(chosen.invars) != 3:
        return None
    below, added = (producers.get(a) if is_var(a) else None for a in chosen.invars[::2])
    if below is None or added is None:
        return None
    if (below.primitive.name, added.primitive.name) != ("lt", "add"):
        return None
    return (below, added) if below.invars[0] is added.invars[0] is chosen.invars[1] else None


def _wrapped(take: Eqn, graph: Graph) -> tuple[Eqn, Eqn, Eqn] | None:
    """The equations of a wrapped index, `where(i < 0, i + rows, i)`."""
    table, index = take.invars
    chosen = graph.producer(index)
    steps = None if chosen is None else steps_of_wrapping(chosen, graph.producers)
    if chosen is None or steps is None:
        return None
    numbers = tuple(literal(e.invars[1]) for e in steps)
    return (*steps, chosen) if numbers == (0, table.aval.shape[0]) else None


def _wrapping(take: Eqn, index: Var, rows: int, template: tuple[Eqn, Eqn, Eqn]) -> list[Eqn]:
    """A lookup with its index wrapped as in another lookup."""
    below, added, chosen = template
    shape = index.aval.shape
    bools, numbers = (Var(v.aval.update(shape=shape)) for v in (below.outvars[0], index))
    wrapped = Var(index.aval)
    number = added.invars[1]
    steps = [
        below.replace(invars=[index, below.invars[1]], outvars=[bools]),
        added.replace(
            invars=[index, Literal(np.asarray(rows, index.aval.dtype)[()], number.aval)],
            outvars=[numbers],
        ),
        chosen.replace(invars=[bools, index, numbers], outvars=[wrapped]),
    ]
    names = names_of(take)
    return [with_names(e, names) for e in steps] + [take.replace(invars=[take.invars[0], wrapped])]
