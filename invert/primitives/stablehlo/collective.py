"""Collectives: over mesh axes inside `shard_map`, over groups of one device outside."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh

from invert._private.mlir import ir
from invert.stablehlo.ops import attributes, shardings
from invert.stablehlo.ops.devices import ManualMesh, coordinates
from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.regions import defining
from invert.stablehlo.ops.registry import Array, Attribute, IntRows, Op, Value, rule

_AXIS_REF = re.compile(r'axis_ref<name = "((?:[^"\\]|\\.)*)"(, sub_axis_info)?')


class Groups(NamedTuple):
    """The axes of a mesh along which devices communicate.

    `index_groups` are groups of indices along these axes; `None` for all of them. `size` is the
    number of devices in a group.
    """

    axes: tuple[str, ...]
    size: int
    index_groups: list[list[int]] | None = None

    @property
    def name(self) -> str | tuple[str, ...]:
        """A single axis name, or a tuple of several, as JAX's functions take them."""
        return self.axes[0] if len(self.axes) == 1 else self.axes


# Numbering of devices and identity of calls, already determined by the groups.
_CHANNELS = ("channel_handle", "use_global_device_ids", "channel_id")


def _groups(ctx: Context, op: Op, attribute: ir.Attribute) -> Groups | None:
    """The groups of an op; `None` if each group is a single device."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        return _named_groups(ctx, op, str(attribute))
    rows = [[n for n in row if n >= 0] for row in attributes.dense_int_rows(attribute)]
    if all(len(row) <= 1 for row in rows):
        return None
    if ctx.manual is None:
        raise op.error(
            f"it communicates among {max(map(len, rows))} devices, but the program has no device "
            "mesh",
            "Export the program for one device, or before partitioning.",
        )
    found = _along_axes(rows, ctx.manual)
    if found is None:
        raise op.error(
            f"its groups of devices, {rows}, do not follow manual axes of the mesh "
            f"{dict(ctx.manual.mesh.shape)}",
            "Export it with groups along the axes of its mesh.",
        )
    return found


def _named_groups(ctx: Context, op: Op, text: str) -> Groups:
    """Groups in newer modules, given as mesh axes."""
    references = _AXIS_REF.findall(text)
    axes = tuple(name for name, _ in references)
    sizes = {} if ctx.manual is None else dict(ctx.manual.mesh.shape)
    if any(part for _, part in references) or not set(axes) <= set(sizes):
        raise op.error(
            f"no mesh has its groups of devices, {text}", "Export it with groups along whole axes."
        )
    return Groups(axes, int(np.prod([sizes[a] for a in axes])))


def _along_axes(rows: Sequence[Sequence[int]], manual: ManualMesh) -> Groups | None:
    mesh = manual.mesh
    strides = shardings.group_strides(rows)
    axes = None if strides is None else shardings.axes_of(mesh, strides)
    if axes and set(axes) <= manual.axes and _same(rows, coordinates(mesh, axes)):
        return Groups(axes, len(rows[0]))
    # Groups within one axis, or within all manual axes.
    ordered = tuple(a for a in mesh.axis_names if a in manual.axes)
    for axes in [(a,) for a in ordered] + [ordered]:
        lines = list(coordinates(mesh, axes))
        place = {device: i for i, device in enumerate(lines[0])}
        inner = [[place[n] for n in row] for row in rows if set(row) <= set(lines[0])]
        made = [[line[i] for i in group] for line in lines for group in inner]
        if inner and _same(made, rows):
            return Groups(axes, len(rows[0]), inner)
    return None


def _same(rows: Iterable[Sequence[int]], others: Iterable[Sequence[int]]) -> bool:
    """Return whether these are the same groups, in any order."""
    return sorted(map(tuple, rows)) == sorted(map(tuple, others))


def _reducer(op: Op) -> str:
    """The single op of a reducer, ignoring annotations."""
    block = op.regions[0].blocks[0]
    names = [view.operation.name for view in block.operations]
    ops = [n for n in names[:-1] if not n.startswith("sdy.") and n != "stablehlo.custom_call"]
    if len(ops) != 1:
        raise op.error(f"it reduces by {', '.join(ops)}", "Reduce by sum, min or max.")
    return ops[0]


_REDUCERS: dict[str, Callable[..., Value]] = {
    "stablehlo.add": lax.psum,
    "stablehlo.maximum": lax.pmax,
    "stablehlo.minimum": lax.pmin,
}


@rule("stablehlo.all_reduce", "stablehlo.cross-replica-sum", ignores=_CHANNELS)
def _all_reduce(
    *operands: Array, ctx: Context, op: Op, replica_groups: Attribute
) -> Sequence[Value]:
    groups = _groups(ctx, op, replica_groups)
    if groups is None:
        return list(operands)
    name = "stablehlo.add" if not op.regions else _reducer(op)
    reduce = _REDUCERS.get(name)
    if reduce is None:
        raise op.error(f"it reduces by {name}", "Reduce by sum, min or max.")
    if groups.index_groups is None:
        return [reduce(x, groups.axes) for x in operands]
    return [reduce(x, groups.name, axis_index_groups=groups.index_groups) for x in operands]


@rule("stablehlo.all_gather", ignores=_CHANNELS)
def _all_gather(
    *operands: Array, ctx: Context, op: Op, replica_groups: Attribute, all_gather_dim: int
) -> Sequence[Value]:
    axis = all_gather_dim
    groups = _groups(ctx, op, replica_groups)
    if groups is None:
        return list(operands)
    results = []
    for x, value in zip(operands, op.operation.operands, strict=True):
        inner = _without_axis(ctx, value, axis)
        gathered = lax.all_gather(
            x if inner is None else inner,
            groups.name,
            axis=axis,
            tiled=inner is None,
            axis_index_groups=groups.index_groups,
        )
        results.append(gathered)
    return results


def _without_axis(ctx: Context, value: ir.Value, axis: int) -> Value | None:
    """The value before a dimension of size one was inserted at `axis`."""
    if (owner := defining(value, "stablehlo.broadcast_in_dim")) is None:
        return None
    kept = attributes.dense_ints(owner.attributes["broadcast_dimensions"])
    shape = attributes.shape_of(value.type)
    inner = ctx.env.get(owner.operands[0])
    if inner is None or shape[axis] != 1:
        return None
    others = [i for i in range(len(shape)) if i != axis]
    same = list(kept) == others and [shape[i] for i in others] == list(inner.shape)
    return inner if same else None


@rule("stablehlo.reduce_scatter", ignores=_CHANNELS)
def _reduce_scatter(
    x: Array, *, ctx: Context, op: Op, replica_groups: Attribute, scatter_dimension: int
) -> Value:
    groups = _groups(ctx, op, replica_groups)
    if groups is None:
        return x
    if (name := _reducer(op)) != "stablehlo.add":
        raise op.error(f"it reduces by {name}", "Reduce by sum.")
    return lax.psum_scatter(
        x,
        groups.name,
        scatter_dimension=scatter_dimension,
        axis_index_groups=groups.index_groups,
        tiled=True,
    )


@rule("stablehlo.all_to_all", ignores=_CHANNELS)
def _all_to_all(
    *operands: Array,
    ctx: Context,
    op: Op,
    replica_groups: Attribute,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
) -> Sequence[Value]:
    groups = _groups(ctx, op, replica_groups)
    if groups is None:
        return operands
    if split_count != groups.size:
        raise op.error(
            f"it splits into {split_count} parts for {groups.size} devices", "Export it again."
        )
    return [
        lax.all_to_all(
            x,
            groups.name,
            split_dimension,
            concat_dimension,
            axis_index_groups=groups.index_groups,
            tiled=True,
        )
        for x in operands
    ]


@rule("stablehlo.collective_broadcast", ignores=_CHANNELS)
def _collective_broadcast(x: Array, *, ctx: Context, op: Op, replica_groups: IntRows) -> Value:
    rows = replica_groups
    if all(len(row) <= 1 for row in rows):
        return x
    if ctx.manual is not None:
        for axes in _choices(ctx.manual):
            lines = {frozenset(line): line for line in coordinates(ctx.manual.mesh, axes)}
            sources = {
                lines[frozenset(row)].index(row[0]) for row in rows if frozenset(row) in lines
            }
            if len(sources) == 1 and {frozenset(row) for row in rows} == set(lines):
                return lax.pbroadcast(x, axes[0] if len(axes) == 1 else axes, sources.pop())
    raise op.error(f"no mesh axis has its groups of devices, {rows}", "Export it for one device.")


def _choices(manual: ManualMesh) -> list[tuple[str, ...]]:
    """All sets of manual axes, smallest first."""
    ordered = [a for a in manual.mesh.axis_names if a in manual.axes]
    return [c for n in range(1, len(ordered) + 1) for c in itertools.combinations(ordered, n)]


@rule("stablehlo.collective_permute", ignores=_CHANNELS)
def _collective_permute(
    *operands: Array, ctx: Context, op: Op, source_target_pairs: IntRows
) -> Sequence[Value]:
    pairs = source_target_pairs
    if ctx.manual is None:
        if not pairs:  # zeros where no device sends, by the specification
            return [jnp.zeros_like(x) for x in operands]
        if (0, 0) in pairs and len(pairs) == 1:
            return list(operands)
        raise op.error(
            "it sends data between devices, but the program has no device mesh",
            "Export the program for one device, or before partitioning.",
        )
    for axes in _choices(ctx.manual):
        perm = _permutation(pairs, ctx.manual.mesh, axes)
        if perm is not None:
            name = axes[0] if len(axes) == 1 else axes
            return [lax.ppermute(x, name, perm) for x in operands]
    raise op.error(
        f"its pairs of devices, {list(pairs)}, do not follow manual axes of the mesh "
        f"{dict(ctx.manual.mesh.shape)}",
        "Export it with a permutation along the axes of its mesh.",
    )


def _permutation(
    pairs: Sequence[Sequence[int]], mesh: AbstractMesh, axes: tuple[str, ...]
) -> list[tuple[int, int]] | None:
    """The pairs as a permutation along some axes, the same one everywhere else."""
    lines = list(coordinates(mesh, axes))
    place = {device: i for i, device in enumerate(lines[0])}
    perm = [(place[a], place[b]) for a, b in pairs if a in place and b in place]
    made = {(line[a], line[b]) for line in lines for a, b in perm}
    return perm if made == set(map(tuple, pairs)) else None


@rule("stablehlo.partition_id", "stablehlo.replica_id")
def _identifier(*, ctx: Context, op: Op) -> Value:
    if ctx.manual is None:
        if ctx.devices.count > 1 and op.name == "stablehlo.partition_id":
            reason = f"it reads the index of its device among {ctx.devices.count}, but has no mesh"
            raise op.error(reason, "Export the program for one device.")
        return lax.full((), np.uint32(0))
    total = np.uint32(0)
    for name, (stride, _) in shardings.mesh_strides(ctx.manual.mesh).items():
        if name in ctx.manual.axes:
            index = lax.convert_element_type(lax.axis_index(name), np.uint32)
            total = lax.add(lax.mul(index, np.uint32(stride)), total)
    return total
