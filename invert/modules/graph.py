"""The picture of a program: its layers as boxes, with data flow as arrows."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax

from invert import emission
from invert._entry import EntryPoint
from invert._errors import plain
from invert._private.jax import open_jaxpr
from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.lists import Loop
from invert.ir.avals import type_text
from invert.ir.kinds import CONVERSIONS, IDENTITIES, MOVES
from invert.ir.types import Atom, Eqn, Literal, Var
from invert.modules import svg
from invert.modules.function import Function
from invert.modules.svg import BOTTOM, TOP, Box, Edge
from invert.modules.texts import layers_of

_MOST_NAMES = 4  # primitives listed in one box
_MOST_BOXES = 60  # boxes visible before a click
# Equations that only rearrange or convert values.
_QUIET = MOVES | CONVERSIONS | IDENTITIES | {"iota"}


@dataclasses.dataclass(frozen=True)
class Graph:
    """An interactive picture of the layers of a program, for notebooks.

    **Attributes:**

    - `svg`: the text of an SVG file, without external resources.
    """

    svg: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the SVG to a file, which any browser shows.

        **Raises:** `OSError` if it cannot be written.
        """
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Graph: {len(self.svg)} characters of SVG; save(path) writes them>"


def graph_of(function: Function, depth: int | None = None) -> Graph:
    """The picture of a function, with layers deeper than `depth` folded.

    **Raises:** `SignatureError` if sizes are open that no example has fixed.
    """
    box = _whole(layers_of(function), function.entry)
    if depth is None:
        depth = next((d for d in range(box.depth, 1, -1) if box.count(d) <= _MOST_BOXES), 1)
    return Graph(svg.draw(box, depth))


def _whole(layered: emission.emit.Layered, entry: EntryPoint) -> Box:
    """The outermost box, with boxes for arguments and results."""
    root, names = layered.root, [name for name, _ in entry.named_specs()]
    names += ["key"] * (len(root.inputs) - len(names))
    level = _Level(root, layered)
    given = {
        v: level.add(Box("end", _lines(name, [v])))
        for v, name in zip(root.inputs, names, strict=True)
    }
    level.flow({v: {i} for v, i in given.items()})
    for name, v in zip(_result_names(entry, len(root.outputs)), root.outputs, strict=True):
        number = level.add(Box("end", _lines(name, [v])))
        level.connect(level.sources(v), number)
    return level.box(level.head(root, [root], entry.name))


def _result_names(entry: EntryPoint, count: int) -> list[str]:
    tree = jax.tree_util.tree_unflatten(entry.out_tree, range(entry.out_tree.num_leaves))
    names = [
        "result" + jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    return names + ["check"] * (count - len(names))


class _Level:
    """The boxes inside a layer, and the edges between them."""

    def __init__(self, layer: Layer, layered: emission.emit.Layered):
        self.layer, self.layered = layer, layered
        self.boxes: list[Box] = []
        self.edges: dict[tuple[int, int], None] = {}
        self._sources: dict[Var, set[int]] = {}

    def add(self, box: Box) -> int:
        self.boxes.append(box)
        return len(self.boxes) - 1

    def connect(self, sources: Iterable[int], target: int) -> None:
        self.edges |= {(source, target): None for source in sorted(sources)}

    def sources(self, atom: Atom) -> set[int]:
        """The boxes that a value depends on; none for parameters."""
        return set() if isinstance(atom, Literal) else self._sources.get(atom, set())

    def flow(self, given: Mapping[Var, set[int]]) -> None:
        """Make the boxes of the steps, given the sources of the layer's inputs."""
        self._sources = dict(given)
        for unit in _units(self.layered.found.looped(self.layer.steps)):
            if isinstance(unit, LayerCall):
                number = self.add(self._layer_box(unit))
                self.connect(set().union(*map(self.sources, unit.invars)), number)
                self._sources |= {v: {number} for v in unit.outvars}
            else:
                self._group(unit)

    def _group(self, eqns: Sequence[Eqn]) -> None:
        own = {v for e in eqns for v in e.outvars}
        operands = [v for e in eqns for v in e.invars if not isinstance(v, Literal)]
        sources = set().union(*(self.sources(v) for v in operands if v not in own))
        if sources and (names := _names(eqns)):
            number = self.add(Box("ops", (names,)))
            self.connect(sources, number)
            sources = {number}
        self._sources |= dict.fromkeys(own, sources)

    def _layer_box(self, step: LayerCall) -> Box:
        layer = step.layer
        layers = _listed(self.layer.steps, layer) if isinstance(step, Loop) else [layer]
        inner = _Level(layer, self.layered)
        head = self.head(layer, layers, self.layered.name(layer))
        if not any(isinstance(s, LayerCall) for s in layer.steps):
            names = _names(layer.steps)
            return Box("layer", (*head, *([names] if names else [])), title="/".join(layer.path))
        inner.flow({v: {TOP} for v in layer.inputs})
        for v in layer.outputs:
            inner.connect(inner.sources(v), BOTTOM)
        return inner.box(head, "/".join(layer.path))

    def head(self, layer: Layer, layers: Sequence[Layer], name: str) -> tuple[str, ...]:
        """The lines about a layer, or about a list of layers."""
        title = f"{layer.listed} × {len(layers)}" if len(layers) > 1 else name
        count = sum(map(self._size, layers))
        return (*_lines(title, layer.results), *([f"{count:,} parameters"] if count else []))

    def _size(self, layer: Layer) -> int:
        shapes = [v.aval.shape for v in layer.parameters if v not in self.layered.constants]
        return sum(map(math.prod, shapes)) + sum(map(self._size, layer.children.values()))

    def box(self, lines: tuple[str, ...], title: str = "") -> Box:
        """The enclosing box, with inner boxes in rows, each below its inputs."""
        rank = [0] * len(self.boxes)
        for source, target in self.edges:  # sources come before their targets
            if source >= 0 and target >= 0:
                rank[target] = max(rank[target], rank[source] + 1)
        rows = [[i for i, r in enumerate(rank) if r == n] for n in range(max(rank, default=-1) + 1)]
        place = {old: new for new, old in enumerate(i for row in rows for i in row)}
        place |= {TOP: TOP, BOTTOM: BOTTOM}
        edges = tuple(Edge(place[s], place[t]) for s, t in self.edges)
        return Box(
            "layer",
            lines,
            tuple(tuple(self.boxes[i] for i in row) for row in rows),
            edges,
            plain(title),
        )


def _units(steps: Sequence[Eqn]) -> list[LayerCall | list[Eqn]]:
    """Calls of layers and groups of equations between them, in topological order.

    The level of a value is the number of layers on the longest path to it. Connected equations of
    one level form a group; no path leads from a group through a layer back to it.
    """
    level: dict[Var, int] = {}
    group: dict[Var, list[Eqn]] = {}
    units: dict[int, tuple[int, bool, LayerCall | list[Eqn]]] = {}
    for step in steps:
        operands = [v for v in step.invars if not isinstance(v, Literal)]
        highest = max((level.get(v, 0) for v in operands), default=0)
        if isinstance(step, LayerCall):
            highest += 1
            units[id(step)] = (highest, False, step)
        else:
            joined: list[Eqn] = []
            for v in operands:
                other = group.get(v, joined)
                if other is not joined and level[v] == highest:
                    joined, less = sorted((joined, other), key=len, reverse=True)
                    joined += less
                    group |= {v: joined for e in less for v in e.outvars}
                    units.pop(id(less), None)
            joined.append(step)
            group |= dict.fromkeys(step.outvars, joined)
            units[id(joined)] = (highest, True, joined)
        level |= dict.fromkeys(step.outvars, highest)
    return [unit for _, _, unit in sorted(units.values(), key=lambda u: u[:2])]


def _names(eqns: Sequence[Eqn]) -> str:
    """A one-line summary of equations."""
    names = list(dict.fromkeys(n for e in eqns if (n := _name(e)) not in _QUIET))
    more = len(names) - _MOST_NAMES
    return " · ".join(names[:_MOST_NAMES]) + (f" · {more} more" if more > 0 else "")


def _name(eqn: Eqn) -> str:
    if isinstance(name := eqn.params.get("name"), str):
        return plain(name)
    # A function with a derivative rule is named after the function it calls.
    inner = eqn.params.get("call_jaxpr")
    eqns = [] if inner is None else open_jaxpr(inner).eqns
    return _name(eqns[0]) if len(eqns) == 1 else eqn.primitive.name


def _listed(steps: Sequence[Eqn], first: Layer) -> list[Layer]:
    """The layers of the list that starts with `first`."""
    layers = [s.layer for s in steps if isinstance(s, LayerCall)]
    return [x for x in layers if x.listed == first.listed and x.path[:-1] == first.path[:-1]]


def _lines(name: str, results: Sequence[Atom]) -> tuple[str, ...]:
    avals = (v.aval for v in results if hasattr(v.aval, "shape"))
    types = ", ".join(type_text(a.dtype, a.shape) for a in avals)
    return (plain(name), *([types] if types else []))
