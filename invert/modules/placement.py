"""Chooses the mesh that a program for several devices runs on.

The mesh of `jax.set_mesh` takes precedence, then that of the arguments, then the first devices.
Axes left to the partitioner may differ in size from the original; axes of a `shard_map` may not.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from invert._entry import EntryPoint, Param, Shardings
from invert._errors import MeshError
from invert._private.jax import is_tracer, open_jaxpr
from invert.ir.arrays import aligned, device_arrays
from invert.ir.graph import is_var
from invert.ir.meshes import AnyMesh
from invert.ir.types import Atom, Value
from invert.stablehlo.ops.shardings import mesh_of, of_rank

if TYPE_CHECKING:
    from invert.modules.specializations import Specialization


def chosen(
    meshes: Mapping[AbstractMesh, frozenset[str]], values: Sequence[Value], first: bool = False
) -> dict[AbstractMesh, AnyMesh]:
    """The mesh that replaces each mesh that a program names.

    **Arguments:**

    - `meshes`: the meshes of the program, each with its manual axes.
    - `values`: the arguments of the call.
    - `first`: whether a program without a mesh runs on the first devices in any case.

    **Raises:** `MeshError` if the mesh that is set, or that of the arguments, does not fit, or if
    there are too few devices.
    """
    given = _callers_mesh(values)
    return {mesh: _one(mesh, manual, given, values, first) for mesh, manual in meshes.items()}


def _callers_mesh(values: Sequence[Value]) -> AnyMesh | None:
    """The mesh set by the caller, or the arguments' mesh."""
    current = jax.sharding.get_abstract_mesh()
    if not current.empty:
        return current
    for value in values:
        sharding = None if is_tracer(value) else getattr(value, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return sharding.mesh
    return None


def _one(
    mesh: AbstractMesh,
    manual: frozenset[str],
    given: AnyMesh | None,
    values: Sequence[Value],
    first: bool,
) -> AnyMesh:
    if given is not None:
        missing = [a for a in mesh.axis_names if a not in given.axis_names]
        if missing and isinstance(given, Mesh) and given.size == mesh.size:
            return mesh  # the same devices, along axes that the module may lack
        if missing:
            raise MeshError(
                f"the mesh {_text(given)} has no axis {missing[0]!r}, which the program uses",
                remedy=_remedy(mesh),
            )
        kinds = zip(given.axis_names, given.axis_types, strict=True)
        explicit = [name for name, kind in kinds if kind == AxisType.Explicit]
        if explicit:
            raise MeshError(
                f"the axis {explicit[0]!r} of the mesh is of type Explicit, but the program leaves "
                "its axes to the partitioner",
                remedy=(
                    "Make the mesh with "
                    f"axis_types=(jax.sharding.AxisType.Auto,) * {len(given.axis_names)}."
                ),
            )
        for axis in sorted(manual):
            if given.shape[axis] != mesh.shape[axis]:
                raise MeshError(
                    f"the axis {axis!r} has {given.shape[axis]} devices, but the program's "
                    f"shard_map is for {mesh.shape[axis]}",
                    remedy=_remedy(mesh),
                )
        return given
    here = jax.device_count()
    if not manual and not (first and here >= mesh.size):
        return mesh
    if here < mesh.size:
        raise MeshError(
            f"the program runs on shards over {_text(mesh)}, which needs {mesh.size} devices, but "
            f"this process has {here}",
            remedy=f"XLA_FLAGS=--xla_force_host_platform_device_count={mesh.size} simulates "
            "them on a CPU.",
        )
    if not first and any(not jax.typeof(v).sharding.mesh.empty for v in values if is_tracer(v)):
        return mesh  # compiled for the devices of the arguments
    devices = jax.devices()[: mesh.size]
    return jax.make_mesh(
        mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, devices=devices
    )


def _text(mesh: AnyMesh) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def _remedy(mesh: AbstractMesh) -> str:
    return f"Use a mesh such as jax.make_mesh({mesh.axis_sizes}, {mesh.axis_names})."


def check_divides(
    name: str, shape: Sequence[int], spec: PartitionSpec, mesh: AnyMesh
) -> NamedSharding:
    """The sharding of an array of this shape.

    **Raises:** `MeshError` if the mesh lacks an axis, or if sizes are not divisible.
    """
    used = [a for e in spec for a in (e if isinstance(e, tuple) else (e,)) if isinstance(a, str)]
    twice = next((a for a in used if used.count(a) > 1), None)
    if twice is not None:
        raise MeshError(
            f"{name}: its spec {spec} uses the axis {twice!r} twice", remedy="Use it once."
        )
    if len(spec) > len(shape):
        raise MeshError(
            f"{name} has {len(shape)} dimensions, but its spec {spec} has {len(spec)}",
            remedy="Shorten the spec.",
        )
    for i, entry in enumerate(spec):
        axes = entry if isinstance(entry, tuple) else (entry,)
        axes = [a for a in axes if isinstance(a, str)]
        for axis in axes:
            if axis not in mesh.axis_names:
                raise MeshError(
                    f"{name}: the mesh {_text(mesh)} has no axis {axis!r}",
                    remedy="Name one of its axes, or make a mesh that has it.",
                )
        parts = math.prod(mesh.shape[a] for a in axes)
        if shape[i] % parts:
            raise MeshError(
                f"{name}: dimension {i} has {shape[i]} elements, which is not divisible by the "
                f"{parts} devices along {' and '.join(map(repr, axes))}",
                remedy="Do not split it, or choose another axis.",
            )
    return NamedSharding(mesh, spec)


@dataclasses.dataclass(frozen=True)
class ParameterPlacement:
    """Places the parameters of a container: specs by patterns of their names."""

    mesh: Mesh | None
    shardings: Mapping[str, PartitionSpec]
    # Arrays as read and as shared, by address. The former are kept alive, so that no other array
    # can take their address.
    _shared: dict[Hashable, tuple[np.ndarray, np.ndarray]] = dataclasses.field(
        default_factory=dict, init=False
    )

    def entry(self, entry: EntryPoint) -> EntryPoint:
        """The entry point with its parameters on the mesh.

        **Raises:** `MeshError` if a pattern fits no parameter, or a spec does not fit its
        parameter.
        """
        if self.mesh is None:
            return self._sharing(entry)
        used: set[str] = set()
        made = planned(entry, automatic(self.mesh), self.shardings, used)
        check_patterns(self.shardings, used, [p.name for p in entry.params])
        return made

    def entries(self, entries: Mapping[str, EntryPoint]) -> Mapping[str, EntryPoint]:
        """Entry points, each read and put on the mesh on access."""
        return _Planned(entries, self)

    def _sharing(self, entry: EntryPoint) -> EntryPoint:
        """The entry point with parameters whose device arrays share memory."""
        params: list[Param] = []
        for param in entry.params:
            value = param.value
            # Functions share a variable, but not its array.
            key = (value.ctypes.data, value.shape, value.strides, value.dtype)
            if key not in self._shared:
                self._shared[key] = value, aligned(value)
                if self._shared[key][1] is not value:
                    _forget(value)
            params.append(dataclasses.replace(param, value=self._shared[key][1]))
        return dataclasses.replace(entry, params=tuple(params))


class _Planned(Mapping[str, EntryPoint]):
    def __init__(self, entries: Mapping[str, EntryPoint], plan: ParameterPlacement):
        self._entries, self._plan = entries, plan

    def __getitem__(self, name: str) -> EntryPoint:
        if self._plan.mesh is None:
            return self._plan.entry(self._entries[name])
        # A pattern may fit only the parameters of other functions.
        mesh = automatic(self._plan.mesh)
        return planned(self._entries[name], mesh, self._plan.shardings, set())

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def planned(
    entry: EntryPoint, mesh: Mesh, shardings: Mapping[str, PartitionSpec], used: set[str]
) -> EntryPoint:
    """The entry point with its parameters on a mesh.

    **Arguments:**

    - `shardings`: specs by patterns of names, such as `"*/kernel"`; the first match counts. The
        program constrains the parameters that they name. Others are replicated.
    - `used`: receives the patterns that fit a parameter.

    **Raises:** `MeshError` if a spec does not fit its parameter or the mesh.
    """
    specs: dict[str, PartitionSpec] = {}
    params = []
    for param in entry.params:
        pattern = next((p for p in shardings if fits(param.name, p)), None)
        spec = PartitionSpec()
        if pattern is not None:
            used.add(pattern)
            spec = specs[param.name] = shardings[pattern]
        sharding = check_divides(param.name, param.value.shape, spec, mesh)
        params.append(dataclasses.replace(param, sharding=sharding))
    plain = mesh_of(mesh.axis_sizes, mesh.axis_names)
    places = [
        NamedSharding(plain, of_rank(specs[p.name], p.value.ndim)) if p.name in specs else None
        for p in params
    ]

    def fn(values: Sequence[Value], *args: Value) -> Sequence[Value]:
        constrained = [
            v if to is None else jax.lax.with_sharding_constraint(v, to)
            for v, to in zip(values, places, strict=True)
        ]
        return entry.fn(constrained, *args)

    known = entry.shardings or Shardings(plain, (), ())
    return dataclasses.replace(
        entry,
        fn=fn if specs else entry.fn,
        params=tuple(params),
        shardings=dataclasses.replace(known, params=specs) if specs else entry.shardings,
    )


def automatic(mesh: Mesh) -> Mesh:
    """The same devices on a mesh with automatic axes."""
    return Mesh(mesh.devices, mesh.axis_names)


def fits(name: str, pattern: str) -> bool:
    """Return whether the name of a parameter fits a pattern; `*/kernel` fits `kernel` too."""
    name, pattern = name.replace("/", "."), pattern.replace("/", ".")
    return fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern)


def check_patterns(
    shardings: Mapping[str, PartitionSpec], used: set[str], names: Sequence[str]
) -> None:
    """Check that each pattern fits a parameter. **Raises:** `MeshError` otherwise."""
    unused = [p for p in shardings if p not in used]
    if unused:
        shown = ", ".join(list(names)[:8]) or "none"
        raise MeshError(
            f"no parameter fits the pattern {unused[0]!r}",
            remedy=f"Use patterns of the names of the parameters: {shown}.",
        )


def param_arrays(params: Sequence[Param]) -> list[Value]:
    """The values of parameters; on a mesh, each device reads its own part."""
    whole = [p for p in params if not _is_cut(p)]
    arrays = iter(device_arrays([p.value for p in whole]))
    return [_parts(p) if _is_cut(p) else next(arrays) for p in params]


def _is_cut(param: Param) -> bool:
    kept = jax.dtypes.canonicalize_dtype(param.value.dtype) == param.value.dtype
    return param.sharding is not None and kept


def _parts(param: Param) -> Value:
    value, sharding = param.value, param.sharding
    assert sharding is not None
    made = jax.make_array_from_callback(value.shape, sharding, lambda i: np.asarray(value[i]))
    made.block_until_ready()
    _forget(value)
    return made


def _forget(value: Value) -> None:
    """Release pages of a mapped file; they are read again on demand."""
    while isinstance(value, (np.ndarray, memoryview)):
        value = value.base if isinstance(value, np.ndarray) else value.obj
    if isinstance(value, mmap.mmap) and hasattr(value, "madvise"):
        value.madvise(mmap.MADV_DONTNEED)


def placed(
    shardings: Shardings | None, mesh: Mapping[AbstractMesh, AnyMesh], values: Sequence[Value]
) -> list[Value]:
    """The arguments, placed as in the original if the mesh has devices."""
    if shardings is None or shardings.mesh is None:
        return list(values)
    target = mesh.get(shardings.mesh)
    if not isinstance(target, Mesh):
        return list(values)
    arrays = []
    specs = shardings.arguments or (None,) * len(values)
    for i, (value, spec) in enumerate(zip(values, specs, strict=True)):
        if spec is None or is_tracer(value):
            arrays.append(value)
            continue
        to = check_divides(f"argument {i}", value.shape, spec, target)
        arrays.append(jax.device_put(value, to))
    return arrays


def shardings_of(entry: EntryPoint, stage: Specialization | None) -> Shardings | None:
    """The shardings stated by the container, otherwise those of the constraints."""
    stated = entry.shardings
    if stage is None or not stage.meshes:
        return stated
    jaxpr = open_jaxpr(stage.jaxpr)
    users: dict[Atom, PartitionSpec] = {}
    makers: dict[Atom, PartitionSpec] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "sharding_constraint":
            users.setdefault(eqn.invars[0], eqn.params["sharding"].spec)
            makers[eqn.outvars[0]] = eqn.params["sharding"].spec
        elif eqn.primitive.name == "shard_map":
            for v, spec in zip(eqn.invars, eqn.params["in_specs"], strict=True):
                if is_var(v):
                    users.setdefault(v, spec)
            makers.update(zip(eqn.outvars, eqn.params["out_specs"], strict=True))
    own = jaxpr.invars[len(stage.constants) :]
    count = len(entry.params)
    params = {
        p.name: users[v] for p, v in zip(entry.params, own[:count], strict=True) if v in users
    }
    rest = own[count : len(own) - entry.draws]
    results = jaxpr.outvars[: len(jaxpr.outvars) - len(entry.assigned) - len(entry.checks)]
    arguments = tuple(map(users.get, rest))
    made = tuple(makers.get(v) if is_var(v) else None for v in results)
    if stated is None:
        return Shardings(next(iter(stage.meshes)), arguments, made, params)
    return Shardings(
        stated.mesh,
        _first(stated.arguments, arguments),
        _first(stated.results, made),
        {**params, **stated.params},
    )


def _first(
    stated: tuple[PartitionSpec | None, ...], found: tuple[PartitionSpec | None, ...]
) -> tuple[PartitionSpec | None, ...]:
    pairs = zip(stated or (None,) * len(found), found, strict=True)
    return tuple(b if a is None else a for a, b in pairs)
