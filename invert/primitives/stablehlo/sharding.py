"""Sharding annotations of both partitioners, as constraints; regions that run on shards."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from invert._errors import Problem, UnsupportedOpError
from invert.stablehlo.ops import shardings
from invert.stablehlo.ops.devices import Manual, layout_of
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises
from invert.stablehlo.ops.shardings import Sharding


def annotation(ctx: Context, op: Op, x: Value) -> Value:
    """`@Sharding` of the older partitioner; on one device it means nothing."""
    want = ctx.avals(op)[0] if op.result_types() else x
    if x.shape != want.shape:
        raise UnsupportedOpError(
            [
                Problem(
                    op.name,
                    f"it cuts {list(x.shape)} into shards of {list(want.shape)}, and nothing puts "
                    "them together",
                    op.location,
                    "Export the program for one device.",
                )
            ]
        )
    layout = layout_of(op.op)
    if layout is not None and layout.manual is None:
        return x
    return constrained(ctx, x, ctx.devices.annotation(op.op))


def constrained(ctx: Context, x: Value, sharding: Sharding | None) -> Value:
    """The value under a constraint, unless that asks for nothing."""
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


@raises("sdy.mesh")
def _mesh_rule(ctx: Context, op: Op) -> Value:
    return []


@raises("sdy.sharding_constraint", "sdy.reshard")
def _constraint(ctx: Context, op: Op, x: Value) -> Value:
    found = shardings.shardy_shardings(str(op["sharding"]), ctx.devices.named)
    return constrained(ctx, x, next(iter(found), None))


@raises("sdy.propagation_barrier", "sdy.sharding_group")
def _barrier(ctx: Context, op: Op, x: Value) -> Value:
    """They guide the propagation of shardings and do not change values."""
    for name in list(op.unread):
        op.get(name)
    return [x][: len(op.result_types())]


@raises("sdy.all_gather", "sdy.all_reduce", "sdy.all_slice", "sdy.all_to_all")
def _resharding(ctx: Context, op: Op, x: Value) -> Value:
    """They change where values are; `out_sharding` says where to."""
    sharding = op.get("out_sharding")
    for name in list(op.unread):
        op.get(name)
    found = shardings.shardy_shardings(str(sharding), ctx.devices.named)
    return constrained(ctx, x, next(iter(found), None))


@raises("sdy.manual_computation")
def _manual_computation(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    region = op.regions[0]
    axes = frozenset(shardings.shardy_axes(str(op["manual_axes"])))
    named = ctx.devices.named
    ins = shardings.shardy_shardings(str(op["in_shardings"]), named)
    outs = shardings.shardy_shardings(str(op["out_shardings"]), named)
    known = [s for s in (*ins, *outs) if s is not None]
    whole = len(ins) == len(operands) and len(outs) == len(op.result_types())
    if not known or len(known) != len(ins) + len(outs) or not whole:
        reason = (
            "its shardings are over parts of axes, or over a mesh that the module does not hold"
        )
        raise UnsupportedOpError(
            [Problem(op.name, reason, op.location, "Export it with whole axes of one mesh.")]
        )

    def body(inner: Context, *shards: Value) -> Sequence[Value]:
        return inner.region(region)(*shards)

    in_specs, out_specs = (
        [shardings.closed(s.spec, axes) for s in part if s is not None] for part in (ins, outs)
    )
    return ctx.sharded(Manual(known[0].mesh, axes), in_specs, out_specs, body, operands)


@raises("sdy.named_computation")
def _named_computation(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    for other in list(op.unread):
        op.get(other)
    return ctx.region(op.regions[0])(*operands)
