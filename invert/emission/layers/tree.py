"""A program's parameters as a tree of modules: layers, and holders of arrays."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeVar, final

import equinox as eqx

from invert._errors import EmissionError
from invert._private.jax import by_jaxpr, open_jaxpr
from invert.emission.layers.cut import (
    COLLECTIONS,
    Layer,
    calls,
    common_prefix,
    plain_name,
)
from invert.emission.layers.loop_bodies import LoopBody
from invert.emission.layers.state import locate
from invert.emission.python.naming import Names, identifier, item, singular, stem
from invert.ir import kinds
from invert.ir.graph import Graph, is_var
from invert.ir.loops import bodies
from invert.ir.types import AnyJaxpr, Atom, Eqn, Var

Path = tuple[str, ...]
# What loops call the methods of the layers in their bodies.
STEP = "step"


@final
@dataclasses.dataclass(eq=False)
class Node:
    """A module: its fields are variables of parameters, or nodes.

    **Arguments:**

    - `name`: the name from which that of its class is derived.
    - `layers`: its computations, one for each program that calls it; none if it only holds
        parameters.
    - `program`: the number of the program for which it was created.
    - `inner`: the nodes among its fields, with the names of these, by preferred name.
    - `listed`: whether it is a tuple of modules; its fields are named `0`, `1`, ...
    - `mixed`: whether these may be of several classes.
    """

    name: str
    fields: dict[str, Var | Node] = dataclasses.field(default_factory=dict)
    layers: list[Layer] = dataclasses.field(default_factory=list)
    names: Names = dataclasses.field(default_factory=Names)
    program: int = 0
    inner: dict[str, tuple[str, Node]] = dataclasses.field(default_factory=dict)
    listed: bool = False
    mixed: bool = False

    @property
    def nodes(self) -> list[Node]:
        """The modules among its fields, and those in tuples."""
        nodes = [v for v in self.fields.values() if type(v) is Node]
        return [n for v in nodes for n in (v.nodes if v.listed else [v])]

    def walk(self) -> list[Node]:
        """The module, and all modules inside."""
        found: list[Node] = []
        pending = [self]
        while pending:
            found.append(node := pending.pop())
            pending += node.nodes[::-1]
        return found

    def add(self, wanted: str, value: Var | Node) -> str:
        """Add a field; return its name."""
        name = self.names.new(identifier(wanted, "field"))
        self.fields[name] = value
        return name

    def lengths(self, path: Path = ()) -> Iterator[tuple[str, int]]:
        """The paths of the tuples, with their lengths."""
        for name, value in self.fields.items():
            if isinstance(value, Node):
                if value.listed:
                    yield ".".join((*path, name)), len(value.fields)
                yield from value.lengths((*path, name))

    def leaves(self) -> list[tuple[Path, Var]]:
        """The parameters with their paths, in the order of the fields."""
        found: list[tuple[Path, Var]] = []

        def add(node: Node, path: Path) -> None:
            for name, value in node.fields.items():
                if type(value) is Node:
                    add(value, (*path, name))
                else:
                    found.append(((*path, name), value))

        add(self, ())
        return found


_NUMBER = re.compile(r"_?\d+$")
# Attributes of every class, which a field of that name would get as default.
METHODS = frozenset({*dir(eqx.Module), *dir(type(eqx.Module))})


def split_name(name: str) -> Path:
    """`encoder/layer_0/kernel:0`, `encoder.layer.0.kernel` as paths: `encoder, layer_0, kernel`.

    `layers/0` is `layer_0`, too, and so is `params/0`. Dots in a name with slashes are part of the
    names of layers.
    """
    name = re.sub(r":\d+$", "", name)
    parts: list[str] = []
    for part in name.split("/" if "/" in name else "."):
        if part.isdigit() and parts and parts[-1] not in COLLECTIONS:
            parts[-1] = item(parts[-1], part)
        elif part.isdigit():
            parts.append(f"layer_{part}")
        elif re.search(r"[A-Za-z0-9]", part):
            parts.append(part)
    return tuple(parts) or ("parameter",)


def modules_of(value: Var | Node) -> list[Node]:
    """The modules that a field holds."""
    if not isinstance(value, Node):
        return []
    return value.nodes if value.listed else [value]


def count_of(node: Node) -> int:
    """The number of modules inside a module."""
    return sum(1 + count_of(v) for v in node.nodes)


def lists_of(names: Iterable[str]) -> dict[str, str]:
    """Names of lists in parameter names, by the item names of `split_name`.

    `encoder` and `layers` by `encoder` and `layer`, for `encoder/0/w` and `layers/0/w`.
    """
    found: dict[str, str] = {}
    for name in names:
        parts = re.split(r"[/.]", name)
        for part, number in itertools.pairwise(parts):
            if number.isdigit() and part in COLLECTIONS:
                found["layer"] = "layers"
            elif number.isdigit() and not part.isdigit():
                found[singular(part)] = part
    return found


# Names of constants, by the first equation that uses them.
_USES = {
    "dot_general": "weight", "conv_general_dilated": "kernel", "add": "bias", "sub": "offset",
    "mul": "scale", "div": "scale", "gather": "table", "dynamic_slice": "table",
    "select_n": "choice", "pow": "exponents", "exp": "exponents",
}  # fmt: skip
# The names of factors, and of what is added to arrays.
SCALES, SUMMANDS = ("scale", "frequencies"), ("bias", "positions")
# A slice of a constant is named after the constant.
_MOVES = kinds.LAYOUT | {"convert_element_type", "slice"}


def constant_name(
    v: Var, users: Mapping[Var, Sequence[Eqn]], computed: Mapping[Var, Eqn | None]
) -> str:
    """A name for a constant of a program.

    **Arguments:**

    - `computed`: the arguments of the program, and what is computed from values by equations.
    """
    shape = v.aval.shape
    for _ in range(8):
        first = next(iter(users.get(v, ())), None)
        # That of a loop or a branch is named by its use inside.
        if first is not None and (within := _within(v, first)) is not None:
            v, users = within
        elif first is None or first.primitive.name not in _MOVES:
            break
        else:
            v = first.outvars[0]
    else:
        return "constant"
    if first is None:
        return "constant"
    # A vector that was broadcast is a bias.
    flat = sum(n != 1 for n in shape) < 2
    role = "" if (role := _by_role(v, first, users, computed)) == "positions" and flat else role
    return role or _USES.get(kinds.computes(first), "constant")


def _within(v: Var, eqn: Eqn) -> tuple[Var, Mapping[Var, Sequence[Eqn]]] | None:
    """The variable of a constant in the body of a loop or branch that uses it, with all users."""
    for body, operands in bodies(eqn) if eqn.primitive.name != "jit" else ():
        for inner, atom in zip(open_jaxpr(body).invars, operands, strict=True):
            if atom is v and inner in (users := _users_in(body)):
                return inner, users
    return None


@by_jaxpr
def _users_in(body: AnyJaxpr) -> Mapping[Var, Sequence[Eqn]]:
    return {v: users for v, users in Graph(body).users.items() if is_var(v)}


def _by_role(
    v: Var,
    user: Eqn,
    users: Mapping[Var, Sequence[Eqn]],
    computed: Mapping[Var, Eqn | None],
) -> str:
    """A name that says more than the equation that uses a constant, or `""`."""
    following = [e.primitive.name for w in user.outvars for e in users.get(w, ())]
    if user.primitive.name == "add" and {*following} & {"rsqrt", "sqrt"}:
        return "var"
    if user.primitive.name == "sub" and user.invars[1] is v:
        return "mean" if _is_scaled_by_root(user, users, computed) else ""
    if user.primitive.name == "mul" and {*following} & {"sin", "cos"}:
        return "frequencies"
    sizes = [n for n in v.aval.shape if n != 1]
    if user.primitive.name not in ("add", "add_any") or len(sizes) < 2 or len({*sizes}) < 2:
        return ""
    other = next((a for a in user.invars if is_var(a) and a is not v), None)
    if other is None or {*following} & {"reduce_max", "exp", "jit"}:
        return ""  # it is added to scores
    if other not in computed:
        return ""  # zeros only repeat the constant
    maker = computed[other]
    if maker is not None and maker.primitive.name.startswith("scatter"):
        return ""  # a bias for the sums of segments
    if maker is not None and kinds.computes(maker) == "dot_general":
        ((_, right), (_, batch)) = kinds.product_axes(maker)
        columns = len(maker.invars[1].aval.shape) - len(right) - len(batch)
        if columns >= len(sizes):
            return ""  # a bias for each of the heads and their features
    return "positions"


def _is_scaled_by_root(
    difference: Eqn, users: Mapping[Var, Sequence[Eqn]], computed: Mapping[Var, Eqn | None]
) -> bool:
    """Return whether a difference is multiplied by a root or its inverse, perhaps scaled."""
    (v,) = difference.outvars
    products = [e for e in users.get(v, ()) if e.primitive.name in ("mul", "div")]
    factors = [a for e in products for a in e.invars if a is not v]
    for _ in range(_MOST_FACTORS):
        atom = factors.pop() if factors else None
        maker = computed.get(atom) if isinstance(atom, Var) else None
        if maker is not None and maker.primitive.name in ("rsqrt", "sqrt"):
            return True
        if maker is not None and maker.primitive.name in (*_MOVES, "mul"):
            factors += maker.invars
    return False


# How many equations before a product are searched for a root.
_MOST_FACTORS = 8


@dataclasses.dataclass
class Tree:
    """The modules of one program, or of several on the same parameters.

    **Attributes:**

    - `root`: the outermost module.
    - `places`: for each layer, the paths of its parameters from `self`.
    - `names`: for each layer but the outermost, the name of its field in the layer above.
    - `programs`: for each layer, the name of its program.
    """

    root: Node
    places: dict[Layer, dict[Var, Path]] = dataclasses.field(default_factory=dict)
    names: dict[Layer, str] = dataclasses.field(default_factory=dict)
    programs: dict[Layer, str] = dataclasses.field(default_factory=dict)


def tree_of(
    roots: Mapping[str, Layer],
    paths: Mapping[Var, Path],
    name: str,
    bodies: Sequence[LoopBody] = (),
    *,
    counted: bool = False,
    attributes: Mapping[str, str],
) -> Tree:
    """The modules of some programs.

    Layers of different programs with the same name and path share a module.

    **Arguments:**

    - `bodies`: those of loops, whose layers are beside the loops.
    - `counted`: whether names may have numbers that count through a whole process, as in Keras:
        fields are renumbered.
    - `attributes`: names of fields, by the names of layers.

    **Raises:** `EmissionError` if two programs need a parameter in different modules.
    """
    building = _Building(paths, Tree(Node(name, names=Names({*METHODS, *roots}))))
    building.counted = counted and len(roots) == 1
    building.attributes = attributes
    for number, (program, root) in enumerate(roots.items()):
        building.begin(number, program)
        building.build(root, building.tree.root, ())
    for number, body in enumerate(bodies, len(roots)):
        building.begin(number, STEP)
        building.build(body.root, building.nodes[body.home], building.at[body.home], method=False)
    _rearrange(building.tree.root, paths, {v: i for i, v in enumerate(paths)})
    _align(building.tree.root)
    places = {v: path for path, v in building.tree.root.leaves()}
    for root in roots.values():
        locate(root, building.at, places)
    return building.tree


def _rearrange(node: Node, paths: Mapping[Var, Path], numbers: Mapping[Var, int]) -> None:
    """Put the layers of a module, and of its fields, in the container's order.

    As in `_arranged`, sorted names carry no information. A layer without parameters follows
    the one called before it.
    """
    for value in node.fields.values():
        if isinstance(value, Node):
            _rearrange(value, paths, numbers)
    if node.listed:
        return
    places: dict[str, int] = {}
    known: list[tuple[int, Path]] = []
    last = -1
    for name, value in node.fields.items():
        if not isinstance(value, Node):
            continue
        held = [v for _, v in value.leaves()]
        if held:
            v = min(held, key=numbers.__getitem__)
            last = numbers[v]
            known.append((last, paths[v]))
        places[name] = last
    if not _are_sorted([path for _, path in sorted(known)]):
        ordered = sorted(node.fields, key=lambda name: places.get(name, -1))
        node.fields = {name: node.fields[name] for name in ordered}


def _align(root: Node) -> None:
    """Put fields of the same names in one order, that of the first module: it may be one class."""
    first: dict[Set[str], Node] = {}
    for node in root.walk():
        order = first.setdefault(frozenset(node.fields), node).fields
        node.fields = {name: node.fields[name] for name in order}


class _Building:
    def __init__(self, paths: Mapping[Var, Path], tree: Tree):
        self.paths, self.tree = paths, tree
        self.common = _shared_prefix(list(paths.values()))
        self.program, self.called = 0, ""
        self.counted = False
        self.attributes: Mapping[str, str] = {}
        self.at: dict[Layer, Path] = {}
        self.nodes: dict[Layer, Node] = {}
        self._placed: dict[Var, Path] = {}
        self._taken: set[tuple[int, Node]] = set()
        # The number of items of each tuple that the program has.
        self._items: collections.Counter[Node] = collections.Counter()
        # The layers of lists whose arrays are numbered through the list: `w0`, `w1`, ...
        self._numbered: set[Layer] = set()

    def begin(self, number: int, called: str) -> None:
        """Go on to another program."""
        self.program, self.called = number, called
        self._items.clear()

    def build(self, layer: Layer, node: Node, path: Path, *, method: bool = True) -> None:
        """Add the parameters and the inner layers of a layer to its node.

        `method`: whether the layer is a method of the node.
        """
        if method:
            node.layers.append(layer)
        self.at[layer], self.nodes[layer] = path, node
        self.tree.programs[layer] = self.called
        self._taken.add((self.program, node))
        places = self.tree.places[layer] = {}
        if layer.native is not None:
            for field, v in layer.arrays.items():
                places[v] = (node.add(field, v),)
                self._placed[v] = (*path, *places[v])
            return
        holders: dict[Path, tuple[Node, Path]] = {(): (node, ())}
        arranged = _arranged(layer, self.paths)
        rests = {v: _rest(self.paths[v], layer, self.common) for v in arranged}
        names = {path[0]: path[0] for path in rests.values() if len(path) > 1}
        if self.counted:
            beside = {plain_name(called(c.layer, self.paths)) for c in calls(layer.steps)}
            names = _restarted(names, node.names.taken | beside, set(names), inside=bool(path))
        for v in arranged:
            if v not in self._placed:
                *inside, last = rests[v]
                inside[:1] = [names[part] for part in inside[:1]]
                owner, where = self._holder(holders, tuple(inside))
                # TensorFlow numbers unnamed variables through the whole program.
                last = stem(last) if stem(last).lower() == "variable" else plain_name(last)
                last = _NUMBER.sub("", last) if layer in self._numbered else last
                self._placed[v] = (*path, *where, owner.add(last, v))
            elif self._placed[v][: len(path)] != path:
                name = ".".join(self._placed[v])
                raise EmissionError(f"the methods need the parameter {name} in different layers")
            places[v] = self._placed[v][len(path) :]
        if layer.same is not None:
            earlier = [c.layer for c in calls(layer.same.steps)]
            inner = [c.layer for c in calls(layer.steps)]
            for one, other in zip(earlier, inner, strict=True):
                other.same = one
        fields = self._fields(layer, node, inside=bool(path))
        self._find_numbered(layer)
        for step in calls(layer.steps):
            if step.layer.same is not None:
                first = self.at[step.layer.same]
                self.tree.names[step.layer] = self.tree.names[step.layer.same]
                self.build(step.layer, self.nodes[step.layer.same], first)
            elif step.layer not in self.tree.names:
                wanted = step.layer.kind or plain_name(called(step.layer, self.paths))
                if step.layer.listed:
                    where, child = self._item(node, wanted, step.layer)
                else:
                    field, child = self._child(node, wanted, fields[step.layer])
                    where = (field,)
                self.tree.names[step.layer] = ".".join(where)
                self.build(step.layer, child, (*path, *where))

    def _find_numbered(self, layer: Layer) -> None:
        """Find the lists in a layer whose arrays have the same names, except for their numbers."""
        lists: dict[str, list[Layer]] = {}
        for step in calls(layer.steps):
            if step.layer.listed and not step.layer.mixed:
                lists.setdefault(step.layer.listed, []).append(step.layer)
        for items in lists.values():
            paths = [[_rest(self.paths[v], x, self.common) for v in _arranged(x, self.paths)]
                     for x in items]  # fmt: skip
            names = [tuple(map("/".join, own)) for own in paths]
            plain = {tuple(_NUMBER.sub("", n) for n in own) for own in names}
            if len(plain) == 1 < len({*names}) and all(itertools.chain(*plain)):
                self._numbered.update(items)

    @functools.cached_property
    def _of_kind(self) -> dict[str, str]:
        """The attributes of layers of one kind, where all have one: `act` of activations."""
        found: dict[str, set[str]] = {}
        for name, attribute in self.attributes.items():
            found.setdefault(stem(name), set()).add(attribute)
        return {kind: next(iter(own)) for kind, own in found.items() if len(own) == 1}

    def _fields(self, layer: Layer, node: Node, *, inside: bool) -> dict[Layer, str]:
        """Preferred field names for a layer's layers, outermost or `inside`."""
        inner = [c.layer for c in calls(layer.steps) if c.layer.same is None and not c.layer.listed]
        wanted = {x: x.field or plain_name(called(x, self.paths)) for x in inner}
        chosen = {x: self.attributes[name] for x, name in wanted.items() if name in self.attributes}
        # Those without parameters have the names of scopes, numbered once more at each call.
        chosen |= {
            x: field
            for x, name in wanted.items()
            if not parameters_of(x) and (field := self._of_kind.get(stem(name)))
        }
        if not self.counted:
            return wanted | chosen
        wanted = {x: name for x, name in wanted.items() if x not in chosen}
        # Keras appends a number to scopes that are already counted. Layers without parameters have
        # no other names.
        wanted |= {
            x: re.sub(r"(_\d+)_\d+$", r"\1", name)
            for x, name in wanted.items()
            if not x.field and not parameters_of(x)
        }
        others = {*node.names.taken, *chosen.values()}
        parts = {part for v in parameters_of(layer) for part in self.paths[v][:-1]}
        return _restarted(wanted, others, parts, inside=inside) | chosen

    def _item(self, node: Node, name: str, layer: Layer) -> tuple[Path, Node]:
        """The next node of a tuple in a node, created if missing."""
        wanted = layer.listed
        field, items = (
            self._child(node, name, wanted) if wanted not in node.inner else node.inner[wanted]
        )
        items.listed, items.mixed = True, layer.mixed
        number = str(self._items[items])
        self._items[items] += 1
        child = items.fields.get(number)
        if not isinstance(child, Node):
            child = items.fields[number] = Node(name, names=Names(METHODS), program=self.program)
        return (field, number), child

    def _child(self, node: Node, name: str, wanted: str) -> tuple[str, Node]:
        """The node of a field, perhaps from an earlier program."""
        if wanted in node.inner:
            field, earlier = node.inner[wanted]
            if earlier.program < self.program and (self.program, earlier) not in self._taken:
                return field, earlier
        child = Node(name, names=Names(METHODS), program=self.program)
        field = node.add(wanted, child)
        node.inner.setdefault(wanted, (field, child))
        return field, child

    def _holder(self, holders: dict[Path, tuple[Node, Path]], path: Path) -> tuple[Node, Path]:
        """The node at a path, created if missing."""
        if path not in holders:
            parent, where = self._holder(holders, path[:-1])
            name = plain_name(path[-1])
            field, child = self._child(parent, name, name)
            holders[path] = child, (*where, field)
        return holders[path]


_Key = TypeVar("_Key")


def _restarted(
    names: Mapping[_Key, str], taken: Set[str], parts: Set[str], *, inside: bool
) -> dict[_Key, str]:
    """Names that Keras numbered through a whole process, numbered from one.

    **Arguments:**

    - `taken`: other names beside them.
    - `parts`: all parts of the names of the variables there, further inside too.
    - `inside`: whether they are the names in a layer, rather than the outermost ones.
    """
    wanted = dict(names)
    alike: dict[str, list[tuple[int, _Key]]] = {}
    others = set(taken)
    for x, name in names.items():
        found = re.fullmatch(r"(.*[A-Za-z]\w*?)_(\d+)", name)
        if found is None:
            others.add(name)
        else:
            alike.setdefault(found[1], []).append((int(found[2]), x))
    for name, members in alike.items():
        told = {wanted[x].rpartition("_")[2] for _, x in members}
        bare = [x for x, called in wanted.items() if called == name]
        if inside and bare:  # the first layer of all is `dense`, and the next `dense_1`
            members += [(0, x) for x in bare]
            others -= {name}
        numbers = sorted(number for number, _ in members)
        first, last = numbers[0], numbers[-1]
        # Keras counts without gaps and has no zero: an author chose `bn_3, bn_5` and `bn_0`.
        passed = {n for n in range(first, last) if n in numbers or f"{name}_{n}" in parts}
        counted = "0" not in told and len(passed) == last - first
        counted = counted and len(set(numbers)) == len(numbers)
        alone = len(members) == 1 and not name[0].isupper()  # which a class may be called
        alone = alone and not any(re.match(rf"{re.escape(name)}_\d", n) for n in others)
        if alone and name not in others and "0" not in told:
            wanted[members[0][1]] = name
        elif counted and name not in others:
            new = {x: f"{name}_{numbers.index(number) + 1}" for number, x in members}
            wanted |= {} if others & {*new.values()} else new
    return wanted


# Names of summands that are added last.
_ADDED = frozenset({"bias", "beta", "b"})


def _arranged(layer: Layer, paths: Mapping[Var, Path]) -> list[Var]:
    """The parameters of a layer as their container orders them.

    Sorted names carry no information: then they are in order of use, with biases last.
    """
    if not _are_sorted([paths[v] for v in layer.parameters]):
        return layer.parameters
    used: dict[Atom, int] = {}
    for step in layer.steps:
        for atom in filter(is_var, step.invars):
            used.setdefault(atom, len(used))
    last = len(used)
    return sorted(layer.parameters, key=lambda v: (paths[v][-1] in _ADDED, used.get(v, last)))


def _are_sorted(paths: Sequence[Path]) -> bool:
    """Return whether names are in alphabetical order, perhaps the outer ones first.

    A SavedModel lists the variables of nested dictionaries level by level.
    """
    by_level = sorted(paths, key=lambda path: (len(path), path))
    return [*paths] in (sorted(paths), by_level)


def called(layer: Layer, paths: Mapping[Var, Path]) -> str:
    """A layer's name, from its parameters' names if only the number differs.

    Keras numbers scopes through the whole process."""
    # Constants have no layers in their names.
    inside = [path for v in parameters_of(layer) if (path := paths[v][:-1])]
    if not inside:
        return layer.name
    shared = common_prefix(inside)
    alike = [n for n in shared if stem(n) == stem(layer.name)]
    return alike[-1] if alike else layer.name


def parameters_of(layer: Layer) -> list[Var]:
    """The parameters of a layer and of its inner layers."""
    found: list[Var] = []

    def add(layer: Layer) -> None:
        found.extend(layer.parameters)
        for call in calls(layer.steps):
            add(call.layer)

    add(layer)
    return found


def _rest(path: Path, layer: Layer, common: int) -> Path:
    """The part of a parameter's name after its layer's name."""
    for own in (layer.alias, layer.name):
        for names, name in ((path[:-1], own), (tuple(map(stem, path[:-1])), stem(own))):
            if name and name in names:
                return path[len(names) - names[::-1].index(name) :]
    path = path[common:]
    while len(path) > 1 and path[0] in COLLECTIONS:
        path = path[1:]
    # The scopes above may be part of the name too; the path implies them.
    for above in layer.path:
        for names, name in ((path[:-1], above), (tuple(map(stem, path[:-1])), stem(above))):
            if name in names:
                path = path[names.index(name) + 1 :]
                break
    return path


def _shared_prefix(paths: Sequence[Path]) -> int:
    """The length of the prefix that all parameters share."""
    if len(paths) < 2:
        return max((len(p) - 2 for p in paths), default=0)
    return len(common_prefix(p[:-1] for p in paths))
