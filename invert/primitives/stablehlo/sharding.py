"""Sharding annotations, kept as constraints."""

from __future__ import annotations

import re
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from invert._errors import Problem, UnsupportedOpError
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises


def annotation(ctx: Context, op: Op, x: Value) -> Value:
    """`@Sharding` and its kin of the older partitioner: they do not change values.

    The older annotations name devices by number and no mesh, so there is no `PartitionSpec` to
    write; on one device they mean nothing.
    """
    want = ctx.avals(op)[0] if op.result_types() else x
    if x.shape != want.shape:
        raise UnsupportedOpError(
            [
                Problem(
                    op.name,
                    f"it cuts {list(x.shape)} into shards of {list(want.shape)} for a program that "
                    "runs on several devices",
                    op.location,
                    "Export the program for one device.",
                )
            ]
        )
    return x


def _mesh(text: str) -> AbstractMesh | None:
    """The mesh of `sdy.mesh`, printed as `<["x"=2, "y"=4]>`; `None` where it has no axes."""
    axes = re.findall(r'"((?:[^"\\]|\\.)*)"\s*=\s*(\d+)', text)
    if not axes:
        return None
    return AbstractMesh(
        tuple(int(size) for _, size in axes),
        tuple(name for name, _ in axes),
        axis_types=(AxisType.Auto,) * len(axes),
    )


def _spec(text: str) -> PartitionSpec | None:
    """The spec of `#sdy.sharding<@mesh, [{"x"}, {"y", ?}, {}]>`; `None` for sub-axes."""
    body = re.search(r"\[(.*)\]", text)
    if body is None or '":(' in text:
        return None
    entries: list[Any] = []
    for part in re.findall(r"\{([^}]*)\}", body[1]):
        names = re.findall(r'"((?:[^"\\]|\\.)*)"', part)
        if names:
            entries.append(names[0] if len(names) == 1 else tuple(names))
        else:
            entries.append(PartitionSpec.UNCONSTRAINED if "?" in part else None)
    return PartitionSpec(*entries)


@raises("sdy.mesh")
def _mesh_rule(ctx: Context, op: Op) -> Value:
    return []


@raises("sdy.sharding_constraint", "sdy.reshard")
def _constraint(ctx: Context, op: Op, x: Value) -> Value:
    text = str(op["sharding"])
    name = re.search(r'@"?([\w.$-]+)', text)
    mesh_op = ctx.functions.get(f"sdy.mesh {name[1]}") if name else None
    mesh = None if mesh_op is None else _mesh(str(mesh_op.attributes["mesh"]))
    spec = _spec(text)
    if mesh is None or spec is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


@raises("sdy.propagation_barrier", "sdy.sharding_group")
def _barrier(ctx: Context, op: Op, x: Value) -> Value:
    """They guide the propagation of shardings and do not change values."""
    for name in list(op.unread):
        op.get(name)
    return [x][: len(op.result_types())]
