"""The devices of a module, and the parts of it that run on shards.

Shardy puts such a part into a region. GSPMD, and modules in migration between partitioners, split
values into shards by one custom call and join results by another. This module
finds the ops between them.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from invert._errors import Problem, UnsupportedOpError
from invert._private.mlir import MlirObject, attribute_names, ir
from invert.stablehlo.ops import attributes, shardings
from invert.stablehlo.ops.attributes import discardable
from invert.stablehlo.ops.regions import defining, owner_of
from invert.stablehlo.ops.shardings import Layout, Sharding, Tiling

_ENTRIES = frozenset({"SPMDFullToShardShape", "xla.sdy.GlobalToLocalShape"})
_EXITS = frozenset({"SPMDShardToFullShape", "xla.sdy.LocalToGlobalShape"})

_OPEN_DIMS = re.compile(r"unspecified_dims=\[([\d,]*)\]")
_MESH = re.compile(r"([\w.$-]+) = #sdy\.mesh<([^>]*)>")


class ManualMesh(NamedTuple):
    """The mesh on whose shards ops run, and its manual axes."""

    mesh: AbstractMesh
    axes: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of a module.

    **Arguments:**

    - `named`: meshes of Shardy.
    - `tiles`: the mesh that supports all layouts of GSPMD, if there are any.
    - `count`: the number of devices, 1 by default.
    - `has_shards`: whether custom calls split values into shards.
    - `left_out`: requested shardings that no spec can express; filled as ops are raised.
    """

    named: Mapping[str, AbstractMesh]
    tiles: AbstractMesh | None = None
    count: int = 1
    has_shards: bool = False
    left_out: dict[str, None] = dataclasses.field(default_factory=dict, compare=False)

    def shardy(self, text: str) -> list[Sharding | None]:
        """The shardings in Shardy's text; `None` for those that no spec can express."""
        found = shardings.shardy_shardings(text, self.named)
        if None in found and '"' in text:
            self.left_out.setdefault(text)
        return found

    def annotation(self, op: ir.Operation) -> Sharding | None:
        """The sharding that a custom call requests; `None` if it has no spec."""
        if (text := frontend(op, "xla.sdy.sharding")) is not None:
            return next(iter(self.shardy(text)), None)
        layout = layout_of(op)
        if layout is None or layout.manual is None:
            return None
        return self.tiled(layout, _open_dims(op))

    def tiled(self, layout: Tiling, open_dims: Sequence[int] = ()) -> Sharding | None:
        """A layout over the mesh of all layouts."""
        if self.tiles is None:
            return None
        spec = shardings.tiled_spec(self.tiles, layout, open_dims)
        if spec is None:
            self.left_out.setdefault(str(layout))
        return None if spec is None else Sharding(self.tiles, spec)

    def of_attributes(self, named: MlirObject) -> Sharding | None:
        """The sharding of an argument or a result, from its dictionary of attributes."""
        for key in ("sdy.sharding", "mhlo.frontend_attributes"):
            if key in named and "sdy" in (text := str(discardable(named, key))):
                annotation = self.shardy(text.replace("\\22", '"'))
                return next(iter(annotation), None)
        if "mhlo.sharding" not in named:
            return None
        layout = shardings.tiling(_text(discardable(named, "mhlo.sharding")))
        return None if layout is None or layout.manual is None else self.tiled(layout)


def devices_of(
    module: ir.Module, functions: Mapping[str, ir.Operation], known: AbstractMesh | None
) -> Devices:
    """Read the devices of a module; `known` is a mesh stated by its container."""
    named = {
        key.removeprefix("sdy.mesh "): mesh
        for key, op in functions.items()
        if op.name == "sdy.mesh"
        and (mesh := shardings.shardy_mesh(str(op.attributes["mesh"]))) is not None
    }
    outer = module.operation.attributes
    if "mhlo.frontend_attributes" in outer:
        text = str(discardable(outer, "mhlo.frontend_attributes")).replace("\\22", '"')
        for name, axes in _MESH.findall(text):
            if (mesh := shardings.shardy_mesh(axes)) is not None:
                named.setdefault(name, mesh)
    stated = "mhlo.num_partitions" in outer
    count = attributes.integer(discardable(outer, "mhlo.num_partitions")) if stated else 1
    if stated and count == 1 and not named:
        return Devices(named)
    scan = _Scan(functions)
    scan.run()
    count = max(count, scan.largest)
    layout = Layout(count)
    if known is not None and known.size == count:
        for step, name in ((s, n) for n, s in shardings.mesh_strides(known).items()):
            layout.add((step,))
            layout.name((name,), (step,))
    for strides in scan.strides:
        layout.add(strides)
    for names, strides in scan.names:
        layout.name(names, strides)
        if len(names) == len(strides):
            layout.add(strides)
    for names, strides in scan.names:
        if len(strides) == 1:
            layout.name_rest(names, strides[0])
    # Groups may cover part of an axis; only unnamed axes are split.
    for strides in scan.groups:
        layout.add(tuple(s for s in strides if not layout.is_named(s)))
    tiles = layout.mesh() if scan.strides or scan.has_shards else None
    if tiles is not None and known is not None and _without_ones(tiles) == _without_ones(known):
        tiles = shardings.mesh_of(known.axis_sizes, known.axis_names)
    return Devices(named, tiles, count, scan.has_shards)


def _without_ones(mesh: AbstractMesh) -> list[tuple[str, int]]:
    pairs = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return [(name, size) for name, size in pairs if size > 1]


class _Scan:
    """Collects a module's device layouts, and the axis names in its locations."""

    def __init__(self, functions: Mapping[str, ir.Operation]):
        self.functions = functions
        self.strides: list[shardings.Strides] = []
        self.groups: list[shardings.Strides] = []
        self.names: list[tuple[tuple[str, ...], shardings.Strides]] = []
        self.largest = 1
        self.has_shards = False

    def run(self) -> None:
        for function in self.functions.values():
            if function.name != "func.func":
                continue
            for key in ("arg_attrs", "res_attrs"):
                for named in _listed(function, key):
                    if "mhlo.sharding" in named:
                        self._text(_text(discardable(named, "mhlo.sharding")))
            function.walk(self._op)

    def _text(self, text: str) -> Tiling | None:
        layout = shardings.tiling(text)
        if layout is not None:
            for strides in (*(layout.dims or ()), layout.manual or ()):
                self._add(strides)
        return layout

    def _add(self, strides: shardings.Strides) -> None:
        if strides:
            self.strides.append(strides)
            self.largest = max(self.largest, *(a * b for a, b in strides))

    def _op(self, op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name == "stablehlo.custom_call":
            target = target_of(op)
            self.has_shards |= target in _ENTRIES or target in _EXITS
            if "mhlo.sharding" in op.attributes:
                self._text(_text(discardable(op.attributes, "mhlo.sharding")))
        elif name == "func.call":
            self._call(op)
        elif name.startswith("stablehlo.") and "replica_groups" in op.attributes:
            groups = op.attributes["replica_groups"]
            if isinstance(groups, ir.DenseIntElementsAttr):
                found = shardings.group_strides(attributes.dense_int_rows(groups))
                self.groups += [found] if found else []
        return ir.WalkResult.ADVANCE

    def _call(self, op: ir.Operation) -> None:
        """Read the specs of a `shard_map` from locations and results of its body."""
        function = self.functions.get(attributes.symbol_name(op.attributes["callee"]))
        if function is None or not len(function.regions[0].blocks):
            return
        for value, argument in zip(
            op.operands, function.regions[0].blocks[0].arguments, strict=True
        ):
            entry = owner_of(value)
            if entry is not None and target_of(entry) in _ENTRIES:
                text = attributes.location_name(argument.location)
                self._named(text, layout_of(owner_of(entry.operands[0])))
        for value, named in zip(op.results, _listed(function, "res_attrs"), strict=False):
            layout = next((layout_of(e) for e in _exits(value)), None)
            if "jax.result_info" in named:
                self._named(attributes.string(discardable(named, "jax.result_info")), layout)

    def _named(self, text: str, layout: Tiling | None) -> None:
        if layout is None or layout.dims is None or not text.startswith("["):
            return
        try:
            dims = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return
        if not isinstance(dims, list):
            return
        for names, strides in zip(dims, layout.dims, strict=False):
            if isinstance(names, tuple) and all(isinstance(n, str) for n in names):
                self.names.append((names, strides))


def _listed(function: ir.Operation, key: str) -> Sequence[MlirObject]:
    """The dictionaries of attributes of the arguments or the results of a function."""
    attribute: MlirObject = function.attributes[key] if key in function.attributes else ()  # noqa: SIM401
    return list(attribute)


def _text(attribute: ir.Attribute) -> str:
    return shardings.text_of(attributes.string_bytes(attribute))


def _exits(value: ir.Value) -> Iterator[ir.Operation]:
    """The custom calls that join a value, past annotations."""
    for use in value.uses:
        op = use.owner.operation
        target = target_of(op)
        if target in _EXITS:
            yield op
        elif target == "Sharding":
            yield from _exits(op.results[0])


def target_of(op: ir.Operation | None) -> str:
    """The target of a custom call; `""` for other ops."""
    if op is None or op.name != "stablehlo.custom_call":
        return ""
    return attributes.string(op.attributes["call_target_name"])


def layout_of(op: ir.Operation | None) -> Tiling | None:
    """The layout annotation of an op."""
    if op is None or "mhlo.sharding" not in op.attributes:
        return None
    return shardings.tiling(_text(discardable(op.attributes, "mhlo.sharding")))


def frontend(op: ir.Operation, name: str) -> str | None:
    """A string frontend attribute of an op."""
    if "mhlo.frontend_attributes" not in attribute_names(op):
        return None
    named: MlirObject = op.attributes["mhlo.frontend_attributes"]
    return attributes.string(named[name]) if name in named else None


def _open_dims(op: ir.Operation) -> tuple[int, ...]:
    if "backend_config" not in op.attributes:
        return ()
    match = _OPEN_DIMS.search(str(op.attributes["backend_config"]))
    return tuple(int(n) for n in match[1].split(",") if n) if match else ()


@dataclasses.dataclass
class Shards:
    """Ops of a block that run on shards, between `entries` and `exits`.

    `annotations` state how the operands of the entries are split.
    """

    annotations: list[ir.Operation] = dataclasses.field(default_factory=list)
    entries: list[ir.Operation] = dataclasses.field(default_factory=list)
    inside: list[ir.Operation] = dataclasses.field(default_factory=list)
    exits: list[ir.Operation] = dataclasses.field(default_factory=list)

    def operands(self) -> list[ir.Value]:
        """The values that are split into shards."""
        noted = {op.results[0]: op.operands[0] for op in self.annotations}
        return [noted.get(v, v) for op in self.entries for v in split_values(op)]

    def specs(
        self, devices: Devices, outer: frozenset[str]
    ) -> tuple[ManualMesh, list[PartitionSpec], list[PartitionSpec]]:
        """The mesh, the new manual axes, and the specs of operands and results."""
        asked = [s for op in self.entries for s in _asked(op, devices, entry=True)]
        given = [s for op in self.exits for s in _asked(op, devices, entry=False)]
        mesh = (asked + given)[0].mesh
        axes = frozenset().union(*(_manual_axes(op, devices) for op in self.entries)) - outer
        if not self.entries:
            axes = frozenset(mesh.axis_names) - outer
        operands = [v for op in self.entries for v in split_values(op)]
        results = [r for op in self.exits for r in op.results]
        ins, outs = (
            [
                shardings.of_rank(shardings.closed(s.spec, axes), len(attributes.shape_of(v.type)))
                for s, v in zip(part, values, strict=True)
            ]
            for part, values in ((asked, operands), (given, results))
        )
        return ManualMesh(mesh, axes), ins, outs


def split_values(op: ir.Operation) -> list[ir.Value]:
    """The operands of a custom call that splits or joins values, without open sizes of results."""
    return list(op.operands)[: len(op.results)]


def _asked(op: ir.Operation, devices: Devices, entry: bool) -> list[Sharding]:
    """The shardings of the whole values at an entry or an exit."""
    text = frontend(op, f"xla.sdy.{'in' if entry else 'out'}_shardings")
    found: Sequence[Sharding | None]
    if text is not None:
        found = devices.shardy(text)
    else:
        source = owner_of(op.operands[0]) if entry else op
        found = [None if source is None else devices.annotation(source)]
    if None in found or len(found) != len(op.results):
        reason = "it does not say how its values are split into shards over a mesh of devices"
        raise UnsupportedOpError([_problem(op, reason)])
    return [s for s in found if s is not None]


def _manual_axes(op: ir.Operation, devices: Devices) -> frozenset[str]:
    text = frontend(op, "xla.sdy.manual_axes")
    if text is not None:
        return frozenset(shardings.shardy_axes(text))
    layout, mesh = layout_of(op), devices.tiles
    if layout is None or mesh is None:
        raise UnsupportedOpError([_problem(op, "it does not say which devices it runs on")])
    if layout.manual is None:
        return frozenset(mesh.axis_names)
    return frozenset(shardings.axes_of(mesh, layout.manual) or ())


def _problem(op: ir.Operation, reason: str) -> Problem:
    location = attributes.location_text(op.location)
    return Problem(f"{op.name} @{target_of(op)}", reason, location, "Export it with Shardy.")


def shards_of(block: ir.Block) -> dict[ir.Operation, Shards]:
    """The part of each op that runs on shards, or splits or joins them."""
    operations = [view.operation for view in block.operations]
    targets = {op: target_of(op) for op in operations}
    if not any(t in _EXITS for t in targets.values()):
        return {}
    parent: dict[ir.Operation, ir.Operation] = {}

    def root(op: ir.Operation) -> ir.Operation:
        while parent.setdefault(op, op) != op:
            op = parent[op]
        return op

    for op in operations:
        if targets[op] in _ENTRIES:
            root(op)
            continue
        sources = [o for v in op.operands if (o := owner_of(v)) is not None and o in targets]
        on_shards = [o for o in sources if o in parent and targets[o] not in _EXITS]
        for source in on_shards if len(op.results) else ():
            parent[root(source)] = root(op)
        # A part without operands: the ops that its results depend on.
        pending = [(op, o) for o in sources] if targets[op] in _EXITS and not on_shards else []
        for user, source in pending:
            parent[root(source)] = root(user)
            owners = (owner_of(v) for v in source.operands)
            pending += [(source, o) for o in owners if o in targets and o not in parent]
    shards: dict[ir.Operation, Shards] = {}
    parts: dict[ir.Operation, Shards] = {}
    for op in operations:
        if op not in parent:
            continue
        part = shards[op] = parts.setdefault(root(op), Shards())
        target = targets[op]
        if target in _ENTRIES:
            if part.exits:
                reason = "it splits a value into shards after others of the same part were joined"
                raise UnsupportedOpError([_problem(op, reason)])
            part.entries.append(op)
            for source in filter(None, map(owner_of, split_values(op))):
                if targets.get(source) == "Sharding" and len(list(source.results[0].uses)) == 1:
                    part.annotations.append(source)
                    shards[source] = part
        else:
            (part.exits if target in _EXITS else part.inside).append(op)
    return shards


def coordinates(mesh: AbstractMesh, axes: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Device numbers along some axes, a group for each position on the other axes."""
    steps = shardings.mesh_strides(mesh)
    along = [sum(c) for c in itertools.product(*(_offsets(steps[a]) for a in axes))]
    rest = [steps[a] for a in mesh.axis_names if a not in axes]
    for place in itertools.product(*map(_offsets, rest)):
        yield tuple(sum(place) + n for n in along)


def _offsets(step: tuple[int, int]) -> range:
    stride, size = step
    return range(0, stride * size, stride)


def index_axis(value: ir.Value, mesh: AbstractMesh) -> str | None:
    """The axis whose index is this value, computed from the device number by `/`, `%` and casts.

    JAX lowers `axis_index` this way.
    """
    convert = defining(value, "stablehlo.convert")
    remainder = convert and defining(convert.operands[0], "stablehlo.remainder")
    quotient = remainder and defining(remainder.operands[0], "stablehlo.divide")
    if remainder is None or quotient is None:
        return None
    if defining(quotient.operands[0], "stablehlo.partition_id") is None:
        return None
    if attributes.element_dtype(value.type) != np.int32:
        return None
    wanted = [_number(v) for v in (quotient.operands[1], remainder.operands[1])]
    found = shardings.mesh_strides(mesh).items()
    return next((name for name, step in found if list(step) == wanted), None)


def _number(value: ir.Value) -> int | None:
    op = defining(value, "stablehlo.constant")
    if op is None or attributes.shape_of(value.type):
        return None
    return int(attributes.constant(op))
