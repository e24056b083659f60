"""Device meshes and shardings, read from the annotations of both partitioners.

Shardy names the axes of its meshes. GSPMD numbers devices, and an annotation lays them out as tiles
of an array. The mesh is the coarsest one that supports all these layouts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from invert._errors import MalformedModelError
from invert.protos.messages import parse
from invert.protos.types import OpSharding

# Devices along one dimension, major first: stride and number.
Strides = tuple[tuple[int, int], ...]

# Larger meshes are not enumerated.
_MOST_DEVICES = 1 << 20
# JAX numbers devices by 32-bit integers.
_MOST_NUMBERS = (1 << 31) - 1


def mesh_of(sizes: Sequence[int], names: Sequence[str]) -> AbstractMesh:
    """A mesh with automatic axes.

    **Raises:** `MalformedModelError` if JAX cannot number its devices.
    """
    if math.prod(sizes) > _MOST_NUMBERS:
        axes = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
        raise MalformedModelError(
            f"a mesh has more than {_MOST_NUMBERS} devices: {axes}",
            remedy="Export the program for fewer devices.",
        )
    return AbstractMesh(tuple(sizes), tuple(names), axis_types=(AxisType.Auto,) * len(names))


# --- Shardy ---------------------------------------------------------------------------------------

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_AXIS = re.compile(_QUOTED + r"\s*=\s*(\d+)")
_NAME = re.compile(_QUOTED)
# A sharding: its mesh, by name or written out, and the axes of each dimension.
_SHARDING = re.compile(r'<(@"?[\w.$-]+"?|mesh<[^>]*>), \[((?:\{[^}]*\}(?:p\d+)?(?:, )?)*)\]')
_DIM = re.compile(r"\{([^}]*)\}")


def shardy_mesh(text: str) -> AbstractMesh | None:
    """The mesh printed as `<["x"=2, "y"=4]>`; `None` if it has no axes."""
    axes = _AXIS.findall(text)
    return mesh_of([int(size) for _, size in axes], [name for name, _ in axes]) if axes else None


class Sharding(NamedTuple):
    """A spec and its mesh; open dimensions are `UNCONSTRAINED`."""

    mesh: AbstractMesh
    spec: PartitionSpec


def shardy_shardings(text: str, meshes: Mapping[str, AbstractMesh]) -> list[Sharding | None]:
    """The shardings in a text, such as `<@mesh, [{"x"}, {"y", ?}, {}]>`.

    `None` for shardings over parts of axes or over missing meshes.
    """
    found: list[Sharding | None] = []
    for where, dims in _SHARDING.findall(text):
        inline = where.startswith("mesh")
        mesh = shardy_mesh(where) if inline else meshes.get(where.strip('@"'))
        entries = [_entry(_NAME.findall(d), "?" in d) for d in _DIM.findall(dims)]
        usable = mesh is not None and '":(' not in dims
        found.append(Sharding(mesh, PartitionSpec(*entries)) if usable and mesh else None)
    return found


def shardy_axes(text: str) -> tuple[str, ...]:
    """The names in `#sdy<manual_axes{"x", "y"}>`."""
    return tuple(_NAME.findall(text))


def _entry(names: Sequence[str], is_open: bool) -> object:
    if not names:
        return PartitionSpec.UNCONSTRAINED if is_open else None
    return names[0] if len(names) == 1 else tuple(names)


def closed(spec: PartitionSpec, axes: Iterable[str]) -> PartitionSpec:
    """The spec over some of the axes only, without open dimensions."""
    kept = set(axes)
    entries = []
    for entry in spec:
        names = entry if isinstance(entry, tuple) else (entry,)
        entries.append(_entry([n for n in names if isinstance(n, str) and n in kept], False))
    return PartitionSpec(*entries)


def of_rank(spec: PartitionSpec, rank: int) -> PartitionSpec:
    """The spec with an entry for each dimension, as in Shardy."""
    return PartitionSpec(*spec, *[None] * (rank - len(spec)))


def is_open(spec: PartitionSpec) -> bool:
    """Return whether a spec constrains nothing."""
    return len(spec) > 0 and all(entry is PartitionSpec.UNCONSTRAINED for entry in spec)


# --- GSPMD ----------------------------------------------------------------------------------------


class Tiling(NamedTuple):
    """The layout of devices over an array: along each dimension, and manual.

    `manual` is `None` if all are manual; `dims` is `None` if no dimension is split. `size` is the
    number of devices that are distinguished.
    """

    dims: tuple[Strides, ...] | None
    manual: Strides | None = ()
    size: int = 1


_TILES = re.compile(
    r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"( last_tile_dim_replicate| last_tile_dims=\{([\w, ]*)\})?"
)


def tiling(text: str) -> Tiling | None:
    """The layout of an annotation such as `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`.

    `None` if it is irregular.
    """
    if "replicated}" in text and "devices" not in text:
        return Tiling(None)
    if text.startswith("{manual"):
        return Tiling(None, None)
    match = _TILES.match(text)
    if match is None:
        return None
    shape, source, order, listed, last, kinds = match.groups()
    dims = _numbers(shape)
    devices = _devices(dims, _numbers(source), _numbers(order), _numbers(listed))
    if devices is None:
        return None
    strides = _strides_by_dim(devices)
    if strides is None:
        return None
    groups = [k.strip() for k in kinds.split(",")] if kinds else (["replicated"] if last else [])
    count = len(dims) - len(groups)
    manual = [s for s, kind in zip(strides[count:], groups, strict=True) if kind == "manual"]
    return Tiling(tuple(strides[:count]), tuple(itertools.chain(*manual)), devices.size)


# Kinds of `OpSharding.Type` (xla/xla_data.proto) that have a keyword in the text format.
_KINDS = {0: "replicated", 1: "maximal", 4: "manual", 5: "unknown"}


def text_of(data: bytes) -> str:
    """The text of an annotation, decoded from a protocol buffer in older modules."""
    if data[:1] == b"{":
        return data.decode(errors="replace")
    proto = parse(OpSharding, data, "mhlo.sharding")
    if proto.type != 3:
        return "{" + _KINDS.get(proto.type, "unknown") + "}"
    shape, source, order, listed = (
        ",".join(map(str, numbers))
        for numbers in (
            proto.tile_assignment_dimensions,
            proto.iota_reshape_dims,
            proto.iota_transpose_perm,
            proto.tile_assignment_devices,
        )
    )
    devices = listed or f"<=[{source}]" + (f"T({order})" if order else "")
    last = " last_tile_dim_replicate" if proto.replicate_on_last_tile_dim else ""
    if proto.last_tile_dims:
        kinds = ", ".join(_KINDS.get(kind, "unknown") for kind in proto.last_tile_dims)
        last = f" last_tile_dims={{{kinds}}}"
    return f"{{devices=[{shape}]{devices}{last}}}"


def _numbers(text: str | None) -> list[int]:
    return [int(n) for n in text.split(",") if n] if text else []


def _devices(
    dims: Sequence[int], source: Sequence[int], order: Sequence[int], listed: Sequence[int]
) -> np.ndarray | None:
    """The device numbers as an array of tiles."""
    count = math.prod(dims)
    if not 0 < count <= _MOST_DEVICES:
        return None
    if listed:
        return np.array(listed).reshape(dims) if len(listed) == count else None
    if math.prod(source) != count or sorted(order) not in ([], list(range(len(source)))):
        return None
    return np.arange(count).reshape(source).transpose(order or None).reshape(dims)


def _strides_by_dim(devices: np.ndarray) -> list[Strides] | None:
    """The strides along each dimension, if the numbers are sums of strides."""
    found = []
    total = np.zeros_like(devices)
    for axis, size in enumerate(devices.shape):
        place = tuple(slice(None) if i == axis else 0 for i in range(devices.ndim))
        line = devices[place]
        steps = strides_of(line.tolist())
        if steps is None:
            return None
        found.append(steps)
        total += line.reshape([size if i == axis else 1 for i in range(devices.ndim)])
    return found if (total == devices).all() else None


def strides_of(numbers: Sequence[int]) -> Strides | None:
    """The strides, major first, of numbers that count from zero in mixed radix."""
    if not numbers or numbers[0] != 0:
        return None
    strides: list[tuple[int, int]] = []
    run = 1
    while run < len(numbers):
        stride, size = numbers[run], 2
        if stride <= 0:
            return None
        while size * run < len(numbers) and numbers[size * run] == size * stride:
            size += 1
        strides.append((stride, size))
        run *= size
    want = [0]
    for stride, size in strides:
        want = [d * stride + n for d in range(size) for n in want]
    return tuple(reversed(strides)) if want == list(numbers) else None


def group_strides(groups: Sequence[Sequence[int]]) -> Strides | None:
    """The strides of groups of devices that differ only by an offset."""
    first = next((g for g in groups if g and g[0] == 0), None)
    steps = None if first is None else strides_of(first)
    if first is None or steps is None:
        return None
    alike = all([n - g[0] for n in g] == list(first) for g in groups)
    return steps if alike else None


@dataclasses.dataclass
class Layout:
    """Collects statements of a module about device numbers, and builds the mesh."""

    count: int
    cuts: set[int] = dataclasses.field(default_factory=set)
    names: dict[tuple[int, int], str] = dataclasses.field(default_factory=dict)

    def add(self, strides: Strides) -> None:
        """Distinguish devices with these strides."""
        for stride, size in strides:
            self.cuts |= {stride, stride * size}

    def name(self, names: Sequence[str], strides: Strides) -> None:
        """Name the axes of a dimension."""
        if len(names) == len(strides):
            for name, step in zip(names, strides, strict=True):
                self.names.setdefault(step, name)

    def name_rest(self, names: Sequence[str], step: tuple[int, int]) -> None:
        """Name the last unknown axis among those that split a dimension together."""
        sizes = {name: size for (_, size), name in self.names.items()}
        unknown = [name for name in names if name not in sizes]
        stride, size = step
        known = math.prod(sizes[name] for name in names if name in sizes)
        if len(unknown) != 1 or size % known:
            return
        sizes[unknown[0]] = size // known
        for name in reversed(names):
            if name in unknown:
                self.name((name,), ((stride, sizes[name]),))
                self.add(((stride, sizes[name]),))
            stride *= sizes[name]

    def is_named(self, step: tuple[int, int]) -> bool:
        """Return whether devices with this stride are part of a named axis."""
        stride, size = step
        return any(a <= stride and stride * size <= a * n for a, n in self.names)

    def mesh(self) -> AbstractMesh | None:
        """The coarsest mesh with these cuts; `None` if they do not nest."""
        cuts = sorted(self.cuts | {1, self.count})
        steps = [(a, b // a) for a, b in itertools.pairwise(cuts)]
        if cuts[-1] != self.count or any(b % a for a, b in itertools.pairwise(cuts)):
            return None
        taken: set[str] = set()
        names = []
        for step in reversed(steps):
            wanted = self.names.get(step)
            names.append(wanted if wanted and wanted not in taken else None)
            taken |= {wanted} if wanted else set()
        free = (n for n in _axis_names() if n not in taken)
        return mesh_of([size for _, size in reversed(steps)], [n or next(free) for n in names])


def _axis_names() -> Iterator[str]:
    """Names for unnamed axes: `x`, `y`, `z`, then `axis3` and so on."""
    yield from "xyz"
    yield from (f"axis{i}" for i in itertools.count(3))


def axes_of(mesh: AbstractMesh, strides: Strides) -> tuple[str, ...] | None:
    """The axes of a mesh with these strides, in order, if it has any."""
    steps = mesh_strides(mesh)
    axes: list[str] = []
    for stride, size in strides:
        inside = [
            name
            for name, (step, count) in steps.items()
            if stride <= step and step * count <= stride * size and count > 1
        ]
        if math.prod(steps[name][1] for name in inside) != size:
            return None
        axes += inside
    return tuple(axes)


def mesh_strides(mesh: AbstractMesh) -> dict[str, tuple[int, int]]:
    """The stride and number of devices of each axis."""
    found, stride = {}, mesh.size
    for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True):
        stride //= size
        found[name] = stride, size
    return found


def tiled_spec(
    mesh: AbstractMesh, layout: Tiling, open_dims: Iterable[int]
) -> PartitionSpec | None:
    """The layout as a spec over a mesh, if that can express it."""
    entries = []
    unspecified = set(open_dims)
    for i, strides in enumerate(layout.dims or ()):
        names = axes_of(mesh, strides)
        if names is None:
            return None
        entries.append(_entry(names, i in unspecified))
    return PartitionSpec(*entries)
