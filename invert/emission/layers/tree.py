"""The parameters of a program as a tree of modules: layers, and holders that do not compute."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

import equinox as eqx

from invert._errors import EmissionError
from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.state import locate
from invert.emission.python.naming import Names, identifier, stem
from invert.ir import kinds
from invert.ir.types import Eqn, Var

Path = tuple[str, ...]

# Names of collections of variables, which say nothing about where a variable belongs.
_COLLECTIONS = frozenset({"params", "variables", "batch_stats"})


@dataclasses.dataclass(eq=False)
class Node:
    """A module: its fields are variables of parameters, or nodes.

    **Arguments:**

    - `name`: what its class is called after.
    - `layers`: what it computes, for each program that calls it; none where it only holds
        parameters.
    - `program`: the number of the program for which it was made.
    - `inner`: the nodes among its fields, with their fields, by the names that were wanted.
    """

    name: str
    fields: dict[str, Var | Node] = dataclasses.field(default_factory=dict)
    layers: list[Layer] = dataclasses.field(default_factory=list)
    names: Names = dataclasses.field(default_factory=Names)
    program: int = 0
    inner: dict[str, tuple[str, Node]] = dataclasses.field(default_factory=dict)

    def add(self, wanted: str, value: Var | Node) -> str:
        """Adds a field; returns its name."""
        name = self.names.new(identifier(wanted, "field"))
        self.fields[name] = value
        return name

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, Var]]:
        """The parameters with their places, in the order of the fields."""
        for name, value in self.fields.items():
            if isinstance(value, Node):
                yield from value.leaves((*path, name))
            else:
                yield (*path, name), value


# What every class has: a field of such a name would have it as its default.
METHODS = frozenset({*dir(eqx.Module), *dir(type(eqx.Module))})


def split_name(name: str) -> Path:
    """`encoder/layer_0/kernel:0` and `encoder.layer_0.kernel` as paths."""
    name = re.sub(r":\d+$", "", name)
    parts = [p for p in re.split(r"[/.]", name) if re.search(r"[A-Za-z0-9]", p)]
    return tuple(parts) or ("parameter",)


# What an array is called that has no name, by the first equation that computes with it.
_USES = {
    "dot_general": "weight", "conv_general_dilated": "kernel", "add": "bias", "sub": "offset",
    "mul": "scale", "div": "scale", "gather": "table", "select_n": "choice",
}  # fmt: skip
# Of an array that is known, a slice at places that are known is a part of it by the same name.
_MOVES = kinds.LAYOUT | {"convert_element_type", "slice"}


def constant_name(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> str:
    """A name for an array that the program holds itself."""
    for _ in range(8):
        first = next(iter(users.get(v, ())), None)
        if first is None or first.primitive.name not in _MOVES:
            break
        v = first.outvars[0]
    else:
        return "constant"
    return "constant" if first is None else _USES.get(first.primitive.name, "constant")


@dataclasses.dataclass
class Tree:
    """The modules of one program, or of several on the same parameters.

    **Attributes:**

    - `root`: the outermost module.
    - `places`: for each layer, where its own parameters are, from `self`.
    - `names`: for each layer but the outermost, the name of its field in the layer above.
    - `programs`: for each layer, the name of the program that it is a part of.
    """

    root: Node
    places: dict[Layer, dict[Var, Path]] = dataclasses.field(default_factory=dict)
    names: dict[Layer, str] = dataclasses.field(default_factory=dict)
    programs: dict[Layer, str] = dataclasses.field(default_factory=dict)


def tree_of(roots: Mapping[str, Layer], paths: Mapping[Var, Path], name: str) -> Tree:
    """The modules of the programs that `roots` are.

    A layer of one program and a layer of another are one module where they have the same name in
    the same place.

    **Raises:** `EmissionError` where two programs need a parameter in different modules.
    """
    building = _Building(paths, Tree(Node(name, names=Names({*METHODS, *roots}))))
    for number, (program, root) in enumerate(roots.items()):
        building.program, building.called = number, program
        building.build(root, building.tree.root, ())
    places = {v: path for path, v in building.tree.root.leaves()}
    for root in roots.values():
        locate(root, building.at, places)
    return building.tree


class _Building:
    def __init__(self, paths: Mapping[Var, Path], tree: Tree):
        self.paths, self.tree = paths, tree
        self.common = _shared_prefix(list(paths.values()))
        self.program, self.called = 0, ""
        self.at: dict[Layer, Path] = {}
        self._placed: dict[Var, Path] = {}
        self._taken: set[tuple[int, Node]] = set()

    def build(self, layer: Layer, node: Node, path: Path) -> None:
        """Puts the parameters and the layers of a layer into its node."""
        node.layers.append(layer)
        self.at[layer] = path
        self.tree.programs[layer] = self.called
        self._taken.add((self.program, node))
        places = self.tree.places[layer] = {}
        if layer.native is not None:
            for field, v in layer.arrays.items():
                places[v] = (node.add(field, v),)
                self._placed[v] = (*path, *places[v])
            return
        holders: dict[Path, tuple[Node, Path]] = {(): (node, ())}
        for v in layer.parameters:
            if v not in self._placed:
                *inside, last = _rest(self.paths[v], layer, self.common)
                owner, where = self._holder(holders, tuple(inside))
                # TensorFlow numbers what has no name of its own through the whole program.
                last = stem(last) if stem(last).lower() == "variable" else last
                self._placed[v] = (*path, *where, owner.add(last, v))
            elif self._placed[v][: len(path)] != path:
                name = ".".join(self._placed[v])
                raise EmissionError(f"the methods need the parameter {name} in different layers")
            places[v] = self._placed[v][len(path) :]
        for step in layer.steps:
            if isinstance(step, LayerCall) and step.layer not in self.tree.names:
                called = _called(step.layer, self.paths)
                field, child = self._child(node, called, step.layer.field or called)
                self.tree.names[step.layer] = field
                self.build(step.layer, child, (*path, field))

    def _child(self, node: Node, name: str, wanted: str) -> tuple[str, Node]:
        """The node of a field inside of another; one of an earlier program where there is one."""
        if wanted in node.inner:
            field, found = node.inner[wanted]
            if found.program < self.program and (self.program, found) not in self._taken:
                return field, found
        child = Node(name, names=Names(METHODS), program=self.program)
        field = node.add(wanted, child)
        node.inner.setdefault(wanted, (field, child))
        return field, child

    def _holder(self, holders: dict[Path, tuple[Node, Path]], path: Path) -> tuple[Node, Path]:
        """The node for a path, made where it is missing."""
        if path not in holders:
            parent, where = self._holder(holders, path[:-1])
            field, child = self._child(parent, path[-1], path[-1])
            holders[path] = child, (*where, field)
        return holders[path]


def _called(layer: Layer, paths: Mapping[Var, Path]) -> str:
    """The name of a layer: its scope's, or that in the names of its parameters where these differ
    in the number only. Keras counts the layers of a process in its scopes."""
    said = {paths[v][-2] for v in layer.parameters if len(paths[v]) > 1}
    (other,) = said if len(said) == 1 else (layer.name,)
    return other if stem(other) == stem(layer.name) else layer.name


def _rest(path: Path, layer: Layer, common: int) -> Path:
    """The part of a parameter's name that a layer does not say."""
    for names, name in ((path[:-1], layer.name), (tuple(map(stem, path[:-1])), stem(layer.name))):
        if name and name in names:
            return path[len(names) - names[::-1].index(name) :]
    path = path[common:]
    while len(path) > 1 and path[0] in _COLLECTIONS:
        path = path[1:]
    # Scopes above may be a part of the name too: what they say is said by the place.
    for above in layer.path:
        for names, name in ((path[:-1], above), (tuple(map(stem, path[:-1])), stem(above))):
            if name in names:
                path = path[names.index(name) + 1 :]
                break
    return path


def _shared_prefix(paths: Sequence[Path]) -> int:
    """How many names all parameters begin with."""
    if len(paths) < 2:
        return max((len(p) - 2 for p in paths), default=0) if paths else 0
    n = 0
    shortest = min(len(p) for p in paths) - 1
    while n < shortest and len({p[n] for p in paths}) == 1:
        n += 1
    return n
