"""Cuts a program into layers along its name scopes.

Frameworks run each layer under a scope of its name. A scope becomes a layer if it owns parameters:
those that nothing outside uses. The equations of a layer form one step of the layer above: no value
may leave the layer and come back. Equations in between are included, and scopes that depend on each
other are dissolved.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeAlias, TypeVar

from jax import lax
from jax.extend.core import Primitive

from invert._private.jax import names_of, open_jaxpr
from invert.emission.layers.links import users_of
from invert.emission.layers.native import Native
from invert.emission.python.naming import item, stem
from invert.emission.python.nouns import LOOP_SCOPES
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.order import by_number
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Params, Var

_T = TypeVar("_T")
Path = tuple[str, ...]
# An inner layer by name, or a single equation by number.
Group: TypeAlias = str | int
# Names of collections of variables, which are not layers.
COLLECTIONS = frozenset({"params", "variables", "batch_stats"})
# Precedes the number of a layer that is named after its computation.
NUMBER = "~"


def plain_name(name: str) -> str:
    """The name of a layer or parameter without such a number."""
    return name.partition(NUMBER)[0]


@dataclasses.dataclass(eq=False)
class Layer:
    """A part of the program that owns parameters.

    **Arguments:**

    - `path`: its name scopes; the last one is its name.
    - `steps`: its equations in order; calls of layers inside are `LayerCall`.
    - `parameters`: variables of the parameters that it owns.
    - `inputs`, `outputs`: variables.
    - `field`: the preferred name of its field, if different from its name.
    - `kind`: the name of its class, if not derived from its name.
    - `alias`: its name in the names of its parameters, if different.
    - `listed`: the name of the tuple that contains it, if any.
    - `mixed`: whether that tuple may hold layers with different computations.
    - `indexed`: whether the layers of that tuple are called one by one, by their indices.
    - `count`: the number of layers that it represents, 0 for one.
    - `block`: the name of the blocks that it belongs to, if any.
    - `same`: the layer of which it is another call, if any.
    - `arguments`: preferred names of its inputs.
    - `native`: the layer of `equinox.nn` that replaces it, if any; `arrays` are its fields.
    """

    path: Path
    steps: list[Eqn] = dataclasses.field(default_factory=list)
    parameters: list[Var] = dataclasses.field(default_factory=list)
    children: dict[str, Layer] = dataclasses.field(default_factory=dict)
    inputs: list[Var] = dataclasses.field(default_factory=list)
    outputs: list[Atom] = dataclasses.field(default_factory=list)
    field: str = ""
    kind: str = ""
    alias: str = ""
    listed: str = ""
    mixed: bool = False
    indexed: bool = False
    count: int = 0
    block: str = ""
    same: Layer | None = None
    arguments: Mapping[Var, str] = dataclasses.field(default_factory=dict)
    native: Native | None = None
    arrays: dict[str, Var] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def results(self) -> list[Var]:
        """The outputs that are variables; the outermost layer may return others too."""
        return [v for v in self.outputs if not isinstance(v, Literal)]


_LAYER, _SET = Primitive("layer"), Primitive("state_set")
_LAYER.multiple_results = True
# A part of the program that is computed several times, see `copies`.
PART = Primitive("part")
PART.multiple_results = True
# The parameter of a loop that calls a block, see `scans`, with what it says in the program.
WHOLE = "whole"
# That of a loop whose body calls layers of the program, see `loop_bodies`, with its body.
BODY = "body"
_REPEATING = frozenset(("scan", kinds.CHECKPOINT))


@dataclasses.dataclass(eq=False)
class LayerCall(Eqn):
    """A call of a layer; replaces an equation."""

    layer: Layer
    invars: list[Atom]
    outvars: list[Var]
    primitive: Primitive = _LAYER
    params: Params = dataclasses.field(default_factory=dict)
    effects: Set[Any] = frozenset()


def calls(steps: Iterable[Eqn]) -> Iterator[LayerCall]:
    """The calls of layers among some steps, and among those that loops repeat."""
    for step in steps:
        if isinstance(step, LayerCall):
            yield step
        elif _repeats(step):
            yield from calls(open_jaxpr(step.params["jaxpr"]).eqns)


def _repeats(eqn: Eqn) -> bool:
    """Return whether an equation may repeat steps of the program around it."""
    if BODY in eqn.params:
        return False  # they are a program of their own
    return eqn.primitive.name in _REPEATING


def holds_part(eqn: Eqn) -> bool:
    """Return whether an equation stands for a part of the program, or repeats one."""
    if BODY in eqn.params or not _repeats(eqn):
        return BODY in eqn.params or eqn.primitive is PART
    return any(map(holds_part, open_jaxpr(eqn.params["jaxpr"]).eqns))


def layers_in(layer: Layer) -> list[Layer]:
    """The layers that a layer calls, each one once."""
    return list(dict.fromkeys(s.layer for s in layer.steps if isinstance(s, LayerCall)))


@dataclasses.dataclass(eq=False)
class Assign(Eqn):
    """`state = state.set(self.variable, value)`; replaces an equation.

    **Arguments:**

    - `variable`: the variable of the parameter.
    - `invars`: the new value; before it the state, once that is threaded through the steps.
    - `place`: the path of the variable's index from `self`.
    """

    variable: Var
    invars: list[Atom]
    place: Path = ()
    outvars: list[Var] = dataclasses.field(default_factory=list)
    primitive: Primitive = _SET
    params: Params = dataclasses.field(default_factory=dict)


def cut(
    jaxpr: Jaxpr,
    parameters: Mapping[Var, Path],
    messages: list[str],
    assigned: Sequence[Var] = (),
    *,
    alone: bool = True,
    around: bool = True,
) -> Layer:
    """The program as a tree of layers.

    **Arguments:**

    - `parameters`: the variables of parameters with their names.
    - `messages`: receives a line for scopes with parameters that are not layers.
    - `assigned`: variables of the parameters whose new values are the last results.
    - `alone`: whether a program that consists of one layer may be that layer; no other program may
        then use the layer.
    - `around`: whether a scope of most equations may be around the others too.
    """
    eqns = list(jaxpr.eqns)
    count = len(jaxpr.outvars) - len(assigned)
    outputs, values = jaxpr.outvars[:count], jaxpr.outvars[count:]
    scopes = [scope_of(eqn) for eqn in eqns]
    users = users_of(eqns)
    producers: dict[Atom, int] = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
    arguments = {v for v in jaxpr.invars if v not in parameters}
    results = {v for v in outputs if is_var(v)}
    _place_floating(eqns, scopes, users, producers, arguments, results, around=around)
    owners = {
        v: _owner(path, [scopes[i] for i in users[v]])
        for v, path in parameters.items()
        if users.get(v)
    }
    owners |= _owners_of_unused(parameters, owners)
    for v in (*results, *values):
        if isinstance(v, Var) and v in owners:
            owners[v] = ()  # a parameter that is a result belongs to the outermost layer
    for v, value in zip(assigned, values, strict=True):
        made = producers.get(value) if is_var(value) else None
        eqns.append(Assign(v, [value]))
        scopes.append(() if made is None else common_prefix([owners[v], scopes[made]]))
        if made is not None:
            users[value].append(len(eqns) - 1)
    layers = {path[:n] for path in owners.values() for n in range(1, len(path) + 1)}
    layers |= _without_parameters(eqns, scopes, layers)
    places = [_within(scope, layers) for scope in scopes]
    root = _Cutter(eqns, places, users, producers, messages).layer((), range(len(eqns)))
    root.inputs = [v for v in jaxpr.invars if v not in parameters]
    root.outputs = list(outputs)
    _connect(root, eqns, set(parameters))
    _own(root, owners, parameters)
    return _collapsed(root, alone)


def names_outside(eqn: Eqn) -> Path:
    """The name scopes of an equation of a loop's body as they were outside of the loop."""
    return tuple(name for name in names_of(eqn) if name not in LOOP_SCOPES)


def scope_of(eqn: Eqn) -> Path:
    """The name scopes of an equation, without immediate repetitions; `layer/0` is `layer_0`."""
    scope: list[str] = []
    for part in names_of(eqn):
        if scope and part.isdigit():
            scope[-1] = item(scope[-1], part)
        elif not scope or part not in _repeated(scope[-1]):
            scope.append(part)
    return tuple(scope)


def _repeated(name: str) -> tuple[str, ...]:
    """Scopes that repeat the enclosing one; some TensorFlow functions open their own."""
    return (name, stem(name)) if stem(name) in _FUNCTION_SCOPES else (name,)


_FUNCTION_SCOPES = frozenset(("separable_conv2d",))


# Scopes created by TensorFlow ops.
_OP_SCOPE = re.compile(r"[A-Z]\w*|moments|batchnorm|einsum")


def named_by_scope(eqns: Sequence[Eqn], parameters: Mapping[Var, Path]) -> dict[Var, Path]:
    """The names of parameters; uninformative ones are replaced by their layers' scopes.

    Keras names the variables of a subclassed model after the model alone: `gpt/kernel` is a
    variable of every layer. Such names occur several times, with numbers, in different scopes; so
    do others of that model.
    """
    users = users_of(eqns)
    scopes: dict[Var, Path] = {}
    alike: dict[Path, list[Var]] = collections.defaultdict(list)
    for v, path in parameters.items():
        around = [without_op(scope_of(eqns[i])) for i in users.get(v, ())]
        scope = scopes[v] = without_op(common_prefix(around))
        # A layer that several others share has its name in each.
        if len(last := {s[len(scope) :][-1:] for s in around}) == 1:
            scopes[v] = *scope, *next(iter(last))
        if len(path) > 1:
            alike[*path[:-1], stem(path[-1])].append(v)
    names = dict(parameters)
    told = {path: len({scopes[v] for v in group}) == 1 for path, group in alike.items()}
    vague = {path[:-1] for path, clear in told.items() if not clear}
    for path, group in alike.items():
        if path[:-1] in vague and (not told[path] or _extends(scopes[group[0]], path[:-1])):
            # TensorFlow numbers all scopes of a function that is traced again.
            again = all(re.search(r"_\d+$", part) for v in group for part in scopes[v])
            for v in filter(scopes.get, group):
                scope = [re.sub(r"_\d+$", "", p) if again else p for p in scopes[v]]
                names[v] = (*scope, path[-1])
    return names


def without_op(scope: Path) -> Path:
    """A scope without those of TensorFlow's ops at its end."""
    while scope and _OP_SCOPE.fullmatch(scope[-1]):
        scope = scope[:-1]
    return scope


def _extends(scope: Path, path: Path) -> bool:
    """Return whether a scope is inside the one of a path, but for numbers."""
    return len(scope) > len(path) and [*map(stem, scope[: len(path)])] == [*map(stem, path)]


def common_prefix(sequences: Iterable[Sequence[_T]]) -> tuple[_T, ...]:
    """The longest common prefix of some sequences."""
    columns = zip(*sequences, strict=False)
    return tuple(c[0] for c in itertools.takewhile(lambda c: len(set(c)) == 1, columns))


def _place_floating(
    eqns: Sequence[Eqn],
    scopes: list[Path],
    users: Mapping[Atom, Sequence[int]],
    producers: Mapping[Atom, int],
    arguments: set[Var],
    results: Collection[Atom],
    *,
    around: bool,
) -> None:
    """Place equations without a scope, and constants.

    An equation without a scope gets the common scope of its producers and users; arguments and
    results are in the outermost scope. A constant that several layers use is computed above them,
    and so are the rows of a constant of which each layer is given one, indices from outside of the
    layer that looks them up, and what the first layer of a list begins with.
    """
    placed = [holds_part(eqn) for eqn in eqns]
    scoped = [scope for scope, known in zip(scopes, placed, strict=True) if scope or known]
    # A scope around everything is the model; some scopes are those of single layers.
    base = common_prefix(scoped) if around and 2 * len(scoped) >= len(scopes) else ()
    floating = [not scope and not known for scope, known in zip(scopes, placed, strict=True)]
    constant = [False] * len(eqns)
    ahead: list[Path | None] = [None] * len(eqns)
    for i, eqn in enumerate(eqns):
        inputs = [a for a in eqn.invars if is_var(a)]
        constant[i] = all(a in producers and constant[producers[a]] for a in inputs)
        paths: list[Path] = []
        for atom in inputs:
            if atom in arguments:
                paths.append(base)
            elif atom in producers and (scope := ahead[producers[atom]]) is not None:
                paths.append(scope)
        ahead[i] = (
            (scopes[i] or (common_prefix(paths) if paths else None)) if not constant[i] else None
        )
    rows, indices = _rows(eqns, users), _indices(eqns, users)
    starts = _starts(eqns, scopes, users)
    for i in reversed(range(len(eqns))):
        if (not floating[i] and not constant[i]) or i in starts:
            continue
        beside: list[Path] = []
        for v in eqns[i].outvars:
            beside += [scopes[j] for j in users.get(v, ())]
            if v in results:
                beside.append(base)
        before = [scope for scope in (ahead[i],) if scope is not None]
        given = i in rows or not beside
        own = [scopes[i]] if constant[i] and scopes[i] and given else []
        place = common_prefix([*beside, *before, *own])
        outside = i in indices and scopes[i] and len(without_op(scopes[i])) < len(place)
        scopes[i] = place[:-1] if outside and constant[i] else place


def _rows(eqns: Sequence[Eqn], users: Mapping[Atom, Sequence[int]]) -> set[int]:
    """The equations that take one of several slices of a value."""
    found = set[int]()
    for places in users.values():
        slices = [i for i in places if eqns[i].primitive is lax.slice_p]
        if len({eqns[i].params["start_indices"] for i in slices}) > 1:
            found.update(slices)
            squeezed = (j for i in slices for j in users.get(eqns[i].outvars[0], ()))
            found.update(j for j in squeezed if eqns[j].primitive is lax.squeeze_p)
    return found


def _indices(eqns: Sequence[Eqn], users: Mapping[Atom, Sequence[int]]) -> set[int]:
    """The equations that only make arrays of indices for lookups, no single sizes."""
    found = set[int]()
    for i in reversed(range(len(eqns))):
        uses = [(v, j) for v in eqns[i].outvars for j in users.get(v, ())]
        lookups = (j in found or (eqns[j].primitive is lax.gather_p and eqns[j].invars[0] is not v)
                   for v, j in uses)  # fmt: skip
        if uses and all(lookups) and any(v.aval.shape for v, _ in uses):
            found.add(i)
    return found


def _starts(
    eqns: Sequence[Eqn], scopes: Sequence[Path], users: Mapping[Atom, Sequence[int]]
) -> set[int]:
    """Arrays of one number from outside of a list of layers that only one of its layers takes.

    The decoder of a DETR begins with zeros, where the other layers take the result of the last.
    """
    found: dict[Path, dict[str, list[int]]] = {}
    for i, eqn in enumerate(eqns):
        scope = scopes[i]
        if eqn.primitive is not lax.broadcast_in_dim_p or is_var(eqn.invars[0]) or not scope:
            continue
        inside = common_prefix([scopes[j] for j in users.get(eqn.outvars[0], ())])
        if len(inside) > len(scope) and inside[: len(scope)] == scope:
            name = inside[len(scope)]
            found.setdefault((*scope, stem(name)), {}).setdefault(name, []).append(i)
    layers = {scope[: n + 1] for scope in scopes for n in range(len(scope))} if found else ()
    alike = collections.Counter[Path]((*layer[:-1], stem(layer[-1])) for layer in layers)
    lists = [places for path, places in found.items() if alike[path] > 1]
    return {i for places in lists if len(places) == 1 for i in next(iter(places.values()))}


def _owner(path: Path, scopes: Sequence[Path]) -> Path:
    """The scope that a parameter belongs to.

    A scope whose name occurs in the parameter's name takes precedence: scopes inside it, such as
    that of an `einsum`, are not layers.
    """
    common = common_prefix(scopes)
    stems = set(map(stem, path[:-1]))
    for names, known in ((common, set(path[:-1])), (tuple(map(stem, common)), stems)):
        for n in range(len(common), 0, -1):
            if names[n - 1] in known:
                return common[:n]
    while common and not re.fullmatch(r"[A-Za-z_][\w.\-]*", common[-1]):
        common = common[:-1]
    return common


# Scopes of control flow, of conversions, and of a softmax, whatever they contain.
_PLAIN_SCOPE = re.compile(
    r"(cond|while|body|branch|map|scan|loop|jit|vmap|gradient)\w*|.*[^\w.\-].*"
    r"|(.*_)?softmax(_\d+)*"
)
# The least number of equations of a layer without parameters. Layout does not count, nor the
# largest number that a softmax subtracts.
_LONG = 5
_SHORT = kinds.LAYOUT | {"max", "reduce_max", "stop_gradient"}


def _without_parameters(eqns: Sequence[Eqn], scopes: list[Path], layers: set[Path]) -> set[Path]:
    """The scopes without parameters that have enough equations for a separate layer.

    Changes those of calls that have nothing in common.
    """
    base = common_prefix(s for s in scopes if s)
    counts: dict[Path, collections.Counter[str]] = {}
    for eqn, scope in zip(eqns, scopes, strict=True):
        n = len(_within(scope, layers)) + 1
        plain = eqn.primitive.name in _SHORT or not any(map(is_var, eqn.invars))
        if n <= len(scope) and n > len(base) and not plain:
            counts.setdefault(scope[:n], collections.Counter())[eqn.primitive.name] += 1
    found = {
        path
        for path, names in counts.items()
        if names.total() >= _LONG
        and len(names) > 1  # not a sum of many values
        and not any(p.fullmatch(path[-1]) for p in (_OP_SCOPE, _PLAIN_SCOPE))
    }
    return found.union(*(_told_apart(eqns, scopes, path) for path in sorted(found))) - {
        path for path in found if not any(s[: len(path)] == path for s in scopes)
    }


def _told_apart(eqns: Sequence[Eqn], scopes: list[Path], path: Path) -> set[Path]:
    """Give calls of a function that have nothing in common scopes of their own; return these.

    A framework computes all calls of a method in one scope. Short ones are left to the layer
    around them.
    """
    groups: list[tuple[set[Atom], list[int]]] = []
    for i, eqn in enumerate(eqns):
        if scopes[i][: len(path)] != path:
            continue
        known = {a for a in (*eqn.invars, *eqn.outvars) if is_var(a)}
        near = [g for g in groups if not known.isdisjoint(g[0])]
        groups = [g for g in groups if g not in near]
        groups.append((known.union(*(g[0] for g in near)), [i, *(n for g in near for n in g[1])]))
    if len(groups) < 2 or len({len(members) for _, members in groups}) > 1:
        return set()
    found = set[Path]()
    for number, (_, members) in enumerate(groups):
        name = path[:-1]
        if len(members) > 2 * _LONG:
            name = (*name, item(path[-1], str(number)))
            found.add(name)
        for i in members:
            scopes[i] = (*name, *scopes[i][len(path) :])
    return found


def _within(scope: Path, layers: set[Path]) -> Path:
    """The innermost layer that contains a scope."""
    while scope and scope not in layers:
        scope = scope[:-1]
    return scope


class _Cutter:
    def __init__(
        self,
        eqns: Sequence[Eqn],
        places: Sequence[Path],
        users: Mapping[Atom, Sequence[int]],
        producers: Mapping[Atom, int],
        messages: list[str],
    ):
        self.eqns, self.places = eqns, places
        self.users, self.producers = users, producers
        self.messages = messages

    def layer(self, path: Path, members: Sequence[int]) -> Layer:
        """The layer of some equations, with inner layers as single steps."""
        depth = len(path)
        group: dict[int, Group] = {}
        for i in members:
            place = self.places[i]
            inside = place[:depth] == path and len(place) > depth
            group[i] = place[depth] if inside else i
        parts = self._strong(members, group)
        layer = Layer(path)
        nodes: list[tuple[int, str | None, list[int]]] = []
        for part in parts:
            names = {name for i in part if isinstance(name := group[i], str)}
            # Calls of a part between the steps of a layer are not inside it.
            between = any(isinstance(group[i], int) and holds_part(self.eqns[i]) for i in part)
            if len(names) == 1 and not between:
                nodes.append((min(part), names.pop(), sorted(part)))
            else:
                if len(names) > 1:
                    self.messages.append(
                        f"the scopes {' and '.join(sorted(names))} need each other's results"
                    )
                elif names:
                    self.messages.append(f"the calls of the scope {names.pop()} differ")
                nodes += [(i, None, [i]) for i in part]
        for name, inner in self._ordered(nodes):
            if name is None:
                layer.steps.append(self.eqns[inner[0]])
                continue
            child = self.layer((*path, name), inner)
            layer.children[name] = child
            layer.steps.append(LayerCall(child, [], []))
        return layer

    def _strong(self, members: Sequence[int], group: Mapping[int, Group]) -> list[list[int]]:
        """The strongly connected components of the graph whose nodes are `group` (Tarjan)."""
        held: dict[Group, list[int]] = collections.defaultdict(list)
        for i in members:
            held[group[i]].append(i)
        following = {
            node: list(
                dict.fromkeys(
                    group[j]
                    for i in inner
                    for v in self.eqns[i].outvars
                    for j in self.users.get(v, ())
                    if j in group and group[j] != node
                )
            )
            for node, inner in held.items()
        }
        number: dict[Group, int] = {}
        low: dict[Group, int] = {}
        stack: list[Group] = []
        on_stack: set[Group] = set()
        components: list[list[int]] = []
        for start in held:
            if start in number:
                continue
            work = [(start, iter(following[start]))]
            number[start] = low[start] = len(number)
            stack.append(start)
            on_stack.add(start)
            while work:
                node, rest = work[-1]
                step = next((n for n in rest if n not in number or n in on_stack), None)
                if step is None:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == number[node]:
                        part: list[int] = []
                        while True:
                            last = stack.pop()
                            on_stack.discard(last)
                            part += held[last]
                            if last == node:
                                break
                        components.append(part)
                elif step not in number:
                    number[step] = low[step] = len(number)
                    stack.append(step)
                    on_stack.add(step)
                    work.append((step, iter(following[step])))
                else:
                    low[node] = min(low[node], number[step])
        return components

    def _ordered(
        self, nodes: Sequence[tuple[int, str | None, list[int]]]
    ) -> list[tuple[str | None, list[int]]]:
        """The nodes in topological order, stable with respect to program order."""
        steps = [[self.eqns[i] for i in inner] for _, _, inner in nodes]
        made = [[v for e in own for v in e.outvars] for own in steps]
        read = [[a for e in own for a in e.invars if is_var(a)] for own in steps]
        return [nodes[k][1:] for k in by_number([first for first, _, _ in nodes], made, read)]


def _connect(root: Layer, eqns: Sequence[Eqn], parameters: set[Var]) -> None:
    """Find the inputs and outputs of each layer, from the innermost outwards."""
    count: collections.Counter[Atom] = collections.Counter()
    for eqn in eqns:
        count.update(a for a in eqn.invars if is_var(a))
    results = set(root.results)

    def visit(layer: Layer) -> collections.Counter[Atom]:
        """Count the uses inside a layer."""
        used: collections.Counter[Atom] = collections.Counter()
        order: dict[Var, None] = {}
        made: list[Var] = []
        for step in layer.steps:
            if isinstance(step, LayerCall):
                used.update(visit(step.layer))
                step.invars, step.outvars = list(step.layer.inputs), step.layer.results
            else:
                used.update(a for a in step.invars if is_var(a))
            order.update(dict.fromkeys(a for a in step.invars if isinstance(a, Var)))
            made += step.outvars
        own = set(made)
        if layer is not root:
            layer.inputs = [a for a in order if a not in own and a not in parameters]
            layer.outputs = [v for v in made if v in results or used[v] < count[v]]
        return used

    visit(root)


def _own(root: Layer, owners: Mapping[Var, Path], parameters: Mapping[Var, Path]) -> None:
    """Assign each parameter to the innermost layer that contains all its uses."""
    for v, owner in owners.items():
        layer = root
        for name in owner:
            child = layer.children.get(name)
            if child is None:
                break
            layer = child
        layer.parameters.append(v)
    # A parameter of a dissolved layer, or a shared one, is passed down as an argument.
    _pass_down(root, set(parameters))


def _owners_of_unused(
    parameters: Mapping[Var, Path], owners: Mapping[Var, Path]
) -> dict[Var, Path]:
    """The layers of unused parameters: those of the used ones that share most of their names.

    The outermost one, if none shares more than all parameters do.
    """
    above = len(common_prefix(path[:-1] for path in parameters.values()))
    inside: dict[Path, Path] = {}
    for v, owner in owners.items():
        for n in range(len(parameters[v]) - 1, 0, -1):
            prefix, below = parameters[v][:n], set(map(stem, parameters[v][n:-1]))
            while owner and stem(owner[-1]) in below:
                owner = owner[:-1]
            inside[prefix] = common_prefix((inside.get(prefix, owner), owner))
    found: dict[Var, Path] = {}
    for v, path in parameters.items():
        if v not in owners:
            lengths = range(len(path) - 1, 0, -1)
            known = (path[:n] for n in lengths if n > above or n == len(path) - 1)
            found[v] = next((inside[prefix] for prefix in known if prefix in inside), ())
    return found


def _pass_down(layer: Layer, parameters: set[Var]) -> list[Var]:
    """Turn parameters that a layer uses but does not own into arguments, in order of use."""
    needed: dict[Var, None] = {}
    for step in layer.steps:
        if isinstance(step, LayerCall):
            needed.update(dict.fromkeys(_pass_down(step.layer, parameters)))
            step.invars = list(step.layer.inputs)
        else:
            variables = (a for a in step.invars if isinstance(a, Var))
            needed.update(dict.fromkeys(v for v in variables if v in parameters))
    foreign = [v for v in needed if v not in set(layer.parameters)]
    if layer.path:
        layer.inputs = [*layer.inputs, *foreign]
    return foreign


def _collapsed(root: Layer, whole: bool = True) -> Layer:
    """Merge layers that only call another layer with that layer, under the outer name.

    `whole`: whether `root` may be merged too.
    """
    for name, child in list(root.children.items()):
        root.children[name] = _collapsed(child)
    for step in root.steps:
        if isinstance(step, LayerCall):
            step.layer = root.children.get(step.layer.name, step.layer)
    if whole and len(root.children) == 1 and len(root.steps) == 1 and not root.parameters:
        (child,) = root.children.values()
        # The program may return the results of its only layer in another order.
        same = not root.path and all(map(is_var, root.outputs))
        if child.outputs == root.outputs or (same and set(child.outputs) == set(root.outputs)):
            child.outputs = root.outputs
            child.alias = child.alias or (child.name if root.path else "")
            child.path = root.path or child.path
            child.inputs = root.inputs or child.inputs
            return child
    return root
