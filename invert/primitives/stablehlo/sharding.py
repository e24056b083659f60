"""Sharding annotations of both partitioners as constraints; regions on shards."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from invert.primitives.stablehlo import dynamic
from invert.stablehlo.ops import shardings
from invert.stablehlo.ops.devices import ManualMesh, layout_of
from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.registry import CUSTOM_CALL, Array, Attribute, Ints, Op, Value, rule
from invert.stablehlo.ops.shardings import Sharding
from invert.stablehlo.ops.values import data


@rule(
    f"{CUSTOM_CALL} @Sharding",
    f"{CUSTOM_CALL} @SPMDFullToShardShape",
    f"{CUSTOM_CALL} @SPMDShardToFullShape",
    takes_any=True,
)
def _annotation(
    *operands: Value, ctx: Context, op: Op, indices_of_shape_operands: Ints = ()
) -> Value:
    """`@Sharding` of the older partitioner; has no effect on one device.

    Where sizes are open, the second operand is the shape of the result.
    """
    arrays, wanted = dynamic.result_avals(op, operands, indices_of_shape_operands)
    x = data(arrays[0])
    want = x if not wanted or wanted[0] is None else wanted[0]
    if x.shape != want.shape:
        raise op.error(
            f"it splits {list(x.shape)} into shards of {list(want.shape)}, and nothing joins "
            "them again",
            "Export the program for one device.",
        )
    layout = layout_of(op.operation)
    if layout is not None and layout.manual is None:
        return x
    return _constrained(ctx, x, ctx.devices.annotation(op.operation))


@rule(
    f"{CUSTOM_CALL} @annotate_device_placement",
    f"{CUSTOM_CALL} @xla.sdy.FuncResultSharding",
    takes_any=True,
)
def _placement(*operands: Array) -> Sequence[Value]:
    """Identities that place values on devices."""
    return operands


def _constrained(ctx: Context, x: Value, sharding: Sharding | None) -> Value:
    """The value under a sharding constraint, unless the constraint is empty."""
    if sharding is None:
        return x
    mesh, spec = sharding
    spec = shardings.of_rank(spec, x.ndim)
    if ctx.manual is None:
        if x.ndim and shardings.is_open(spec):
            return x
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    # Lowering puts an open constraint on every value of a part that is manual on some axes only.
    free = [a for a in mesh.axis_names if a not in ctx.manual.axes]
    entries = [
        e if e is PartitionSpec.UNCONSTRAINED else shardings.closed(PartitionSpec(e), free)[0]
        for e in spec
    ]
    if not any(e not in (None, PartitionSpec.UNCONSTRAINED) for e in entries):
        return x
    return lax.with_sharding_constraint(x, PartitionSpec(*entries))


@rule("sdy.mesh", takes_any=True)
def _mesh() -> None:
    """Ignored: meshes are read before anything is raised."""


@rule("sdy.sharding_constraint", "sdy.reshard")
def _constraint(x: Array, *, ctx: Context, sharding: Attribute) -> Value:
    annotation = ctx.devices.shardy(str(sharding))
    return _constrained(ctx, x, next(iter(annotation), None))


@rule("sdy.propagation_barrier", "sdy.sharding_group", takes_any=True)
def _barrier(x: Array, *, op: Op) -> Sequence[Value]:
    """Identities that guide the propagation of shardings."""
    return [x][: len(op.result_types())]


@rule("sdy.all_gather", "sdy.all_reduce", "sdy.all_slice", "sdy.all_to_all", takes_any=True)
def _resharding(x: Array, *, ctx: Context, out_sharding: Attribute | None = None) -> Value:
    """Identities that move values, to `out_sharding`."""
    annotation = ctx.devices.shardy(str(out_sharding))
    return _constrained(ctx, x, next(iter(annotation), None))


@rule("sdy.manual_computation")
def _manual_computation(
    *operands: Value,
    ctx: Context,
    op: Op,
    manual_axes: Attribute,
    in_shardings: Attribute,
    out_shardings: Attribute,
) -> Sequence[Value]:
    region = op.regions[0]
    axes = frozenset(shardings.shardy_axes(str(manual_axes)))
    named = ctx.devices.named
    ins = shardings.shardy_shardings(str(in_shardings), named)
    outs = shardings.shardy_shardings(str(out_shardings), named)
    known = [s for s in (*ins, *outs) if s is not None]
    whole = len(ins) == len(operands) and len(outs) == len(op.result_types())
    if not known or len(known) != len(ins) + len(outs) or not whole:
        raise op.error(
            "its shardings are over parts of axes, or over a mesh that the module does not hold",
            "Export it with whole axes of one mesh.",
        )

    def body(inner: Context, *shards: Value) -> Sequence[Value]:
        return inner.region(region)(*shards)

    in_specs, out_specs = (
        [shardings.closed(s.spec, axes) for s in part if s is not None] for part in (ins, outs)
    )
    return ctx.sharded(ManualMesh(known[0].mesh, axes), in_specs, out_specs, body, operands)


@rule("sdy.named_computation", takes_any=True)
def _named_computation(*operands: Array, ctx: Context, op: Op) -> Sequence[Value]:
    return ctx.region(op.regions[0])(*operands)
