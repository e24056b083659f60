"""The mesh that a program for several devices runs on.

The mesh that `jax.set_mesh` sets comes first, then that of the arguments, then the first devices.
Axes left to the partitioner may have other sizes than in the original, those of a `shard_map` not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from invert._entry import Shardings
from invert._errors import MeshError
from invert._private.jax import is_tracer

AnyMesh = AbstractMesh | Mesh


def chosen(
    meshes: Mapping[AbstractMesh, frozenset[str]], values: Sequence[Any]
) -> dict[AbstractMesh, AnyMesh]:
    """The mesh in the place of each one that a program names.

    **Arguments:**

    - `meshes`: the meshes of the program, each with its manual axes.
    - `values`: what it is called on.

    **Raises:** `MeshError` where the mesh that is set, or that of the arguments, does not fit, and
        where there are too few devices.
    """
    given = _given(values)
    return {mesh: _one(mesh, manual, given, values) for mesh, manual in meshes.items()}


def _given(values: Sequence[Any]) -> AnyMesh | None:
    """The mesh that the caller has set, or put the arguments on."""
    current = jax.sharding.get_abstract_mesh()
    if not current.empty:
        return current
    for value in values:
        sharding = None if is_tracer(value) else getattr(value, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return sharding.mesh
    return None


def _one(
    mesh: AbstractMesh, manual: frozenset[str], given: AnyMesh | None, values: Sequence[Any]
) -> AnyMesh:
    if given is not None:
        missing = [a for a in mesh.axis_names if a not in given.axis_names]
        if missing and len(missing) == len(mesh.axis_names) and given.size == mesh.size:
            return mesh  # the same devices under other names
        if missing:
            raise MeshError(
                f"the mesh {_text(given)} has no axis {missing[0]!r}, which the program uses; "
                f"{_remedy(mesh)}"
            )
        for axis in sorted(manual):
            if given.shape[axis] != mesh.shape[axis]:
                raise MeshError(
                    f"the axis {axis!r} has {given.shape[axis]} devices, and the program's "
                    f"shard_map is for {mesh.shape[axis]}; {_remedy(mesh)}"
                )
        return given
    if not manual:
        return mesh
    here = jax.device_count()
    if here < mesh.size:
        raise MeshError(
            f"the program runs on shards over {_text(mesh)}, which takes {mesh.size} devices, and "
            f"this process has {here}; XLA_FLAGS=--xla_force_host_platform_device_count="
            f"{mesh.size} simulates them on a CPU"
        )
    if any(map(is_tracer, values)):
        return mesh
    devices = jax.devices()[: mesh.size]
    return jax.make_mesh(
        mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, devices=devices
    )


def _text(mesh: AnyMesh) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def _remedy(mesh: AbstractMesh) -> str:
    return f"jax.make_mesh({mesh.axis_sizes}, {mesh.axis_names}) makes one that fits"


def check_divides(
    name: str, shape: Sequence[int], spec: PartitionSpec, mesh: AnyMesh
) -> NamedSharding:
    """The sharding of an array of this shape.

    **Raises:** `MeshError` where the mesh lacks an axis, or where the sizes do not divide.
    """
    if len(spec) > len(shape):
        raise MeshError(f"{name} has {len(shape)} dimensions, and its spec {spec} has {len(spec)}")
    for i, entry in enumerate(spec):
        axes = entry if isinstance(entry, tuple) else (entry,)
        axes = [a for a in axes if isinstance(a, str)]
        for axis in axes:
            if axis not in mesh.axis_names:
                raise MeshError(
                    f"{name}: the mesh {_text(mesh)} has no axis {axis!r}; name one of its axes, "
                    f"or make a mesh that has it"
                )
        parts = math.prod(mesh.shape[a] for a in axes)
        if shape[i] % parts:
            raise MeshError(
                f"{name}: dimension {i} has {shape[i]} elements, which {parts} devices along "
                f"{' and '.join(map(repr, axes))} do not divide; leave it whole, or choose "
                "another axis"
            )
    return NamedSharding(mesh, spec)


def placed(
    shardings: Shardings | None, mesh: Mapping[AbstractMesh, AnyMesh], values: Sequence[Any]
) -> list[Any]:
    """The arguments where the original takes them, as far as the mesh is one of devices."""
    if shardings is None or shardings.mesh is None:
        return list(values)
    target = mesh.get(shardings.mesh)
    if not isinstance(target, Mesh):
        return list(values)
    found = []
    for i, (value, spec) in enumerate(zip(values, shardings.arguments, strict=True)):
        if spec is None or is_tracer(value):
            found.append(value)
            continue
        to = check_divides(f"argument {i}", value.shape, spec, target)
        found.append(jax.device_put(value, to))
    return found


def results_on(
    shardings: Shardings | None, mesh: Mapping[AbstractMesh, AnyMesh], types: Sequence[Any]
) -> list[NamedSharding | None] | None:
    """Where the results go, for `jax.jit`; `None` where no mesh of devices is known."""
    if shardings is None or shardings.mesh is None:
        return None
    target = mesh.get(shardings.mesh)
    if not isinstance(target, Mesh):
        return None
    specs = [*shardings.results, *(None for _ in types[len(shardings.results) :])]
    return [
        None if spec is None else check_divides(f"result {i}", v.aval.shape, spec, target)
        for i, (spec, v) in enumerate(zip(specs, types, strict=True))
    ]
