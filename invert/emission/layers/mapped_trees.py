"""Finds operations on all arrays of a tree, as of an optimizer, to be written once.

A column is one value for each leaf of a tree. Columns are followed backwards from the results,
while all leaves are computed in the same way, to the trees among the arguments and to gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from jax.tree_util import PyTreeDef

from invert._private.jax import Primitive
from invert.emission.layers.cut import LayerCall
from invert.emission.python.pytrees import Column, column_of, parts_of
from invert.ir import kinds
from invert.ir.graph import Graph, in_order, is_var
from invert.ir.order import postorder, reached
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Params, Tree, Var
from invert.ir.value_and_grad import value_and_grad_p

# A map must save at least this many equations.
_LEAST = 4
# How often the search starts anew because a function differs between leaves.
_MOST_TRIED = 8
_TREE_MAP = Primitive("tree_map")


@dataclasses.dataclass(eq=False)
class TreeMap(Eqn):
    """A function of each leaf of some trees; replaces equations.

    **Arguments:**

    - `structure`: that of the trees.
    - `trees`: the leaves of each tree.
    - `shared`: other values that the function reads.
    - `functions`: for each leaf, the program of one result, over its leaves and `shared`; none if
        the equation only makes a tree of arrays.
    - `path`: where the tree is in the results, if it is one.
    - `is_sum`: whether its result is the sum of the results of all leaves.
    """

    structure: PyTreeDef
    trees: Sequence[tuple[Atom, ...]]
    shared: Sequence[Var]
    functions: Sequence[Jaxpr]
    path: Sequence[Any]
    is_sum: bool
    invars: list[Atom]
    outvars: list[Var]
    primitive: Primitive = _TREE_MAP
    params: Params = dataclasses.field(default_factory=dict)
    effects: Set[Any] = frozenset()

    @property
    def column(self) -> Column:
        """The results of all leaves, which may be summed up."""
        leaves = [f.outvars[0] for f in self.functions]
        return self.structure, tuple(leaves or self.outvars)


def with_maps(
    jaxpr: Jaxpr,
    arguments: Sequence[Column],
    results: Tree,
    is_one: Callable[[TreeMap], bool],
) -> Jaxpr:
    """The program with operations on trees as equations; itself if there are none.

    **Arguments:**

    - `arguments`: the trees among the arguments.
    - `results`: the results as a tree of atoms.
    - `is_one`: whether one text is the function of all leaves.
    """
    other: set[Column] = set()
    for _ in range(_MOST_TRIED):
        search = _Search(jaxpr, arguments, other)
        made = search.run(results)
        differing = [e for e in made if e.functions and not is_one(e)]
        if not differing:
            return search.replaced(made) if made else jaxpr
        other.update(e.column for e in differing)
    return jaxpr


@dataclasses.dataclass(eq=False)
class _Values:
    """The values of a column.

    **Arguments:**

    - `eqns`: those that compute them, if they are alike.
    - `operands`: the columns that they read, or that a gradient is taken by.
    - `same`: the number or value that all of them are, perhaps broadcast.
    - `is_tree`: whether the text has them as a tree already.
    """

    column: Column
    eqns: Sequence[Eqn] = ()
    operands: Sequence[_Values] = ()
    same: Atom | None = None
    is_tree: bool = False

    @property
    def is_other(self) -> bool:
        """Whether they are arrays without a common form."""
        return not self.eqns and self.same is None and not self.is_tree


def _before(values: _Values) -> Iterable[_Values]:
    """A column and all that it is computed from."""
    return reached([values], lambda c: c.operands)


def _reads_others(values: _Values) -> bool:
    """Return whether a column depends on other arrays."""
    return any(c.is_other for c in _before(values))


class _Search:
    """Follows columns backwards."""

    def __init__(self, jaxpr: Jaxpr, arguments: Sequence[Column], other: Set[Column]):
        self.graph = Graph(jaxpr)
        self.arguments, self.other = {*arguments}, other
        self._known: dict[Column, _Values] = {}
        self._outputs: dict[_Values, Sequence[Any]] = {}
        self._sums: dict[_Values, Var] = {}

    def run(self, results: Tree) -> list[TreeMap]:
        """The new equations; those that build trees come first."""
        self._find(results, ())
        self._find_sums()
        order = postorder([*self._outputs, *self._sums], lambda c: c.operands)
        mapped = [c for c in order if c.eqns]
        users: dict[_Values, list[_Values]] = {c: [] for c in order}
        for c in mapped:
            for operand in dict.fromkeys(c.operands):
                users[operand].append(c)
        group: dict[_Values, _Values] = {}
        for c in reversed(mapped):
            around = {group[u] for u in users[c]}
            alone = (
                c in self._outputs
                or c in self._sums
                or len(around) != 1
                or self._is_read_elsewhere(c, users[c])
            )
            group[c] = c if alone else around.pop()
        saved: dict[PyTreeDef, int] = {}
        for c in mapped:
            structure, leaves = c.column
            fewer = (len(leaves) - 1) * (1 + (c in self._sums))
            saved[structure] = saved.get(structure, 0) + fewer
        trees: dict[Column, TreeMap] = {}
        made: list[TreeMap] = []
        for c in mapped:
            if group[c] is c and saved[c.column[0]] >= _LEAST:
                if (eqn := self._map(c, group, trees)) is None:
                    return []
                made.append(eqn)
        return [*trees.values(), *made] if len(trees) <= len(made) else []

    def _find(self, tree: Tree, path: tuple[Any, ...]) -> None:
        """Find the largest trees among the results whose leaves are computed alike."""
        column = column_of(tree)
        if column is not None and (values := self._values(column)) is not None:
            if values.is_tree:
                return
            if values.eqns and any(c.is_tree for c in _before(values)):
                self._outputs[values] = path
                return
        for key, part in parts_of(tree):
            self._find(part, (*path, key))

    def _find_sums(self) -> None:
        """Find the sums of a number for each leaf of a tree, as in the norm of all gradients."""
        structures: dict[int, set[PyTreeDef]] = {}
        for structure, leaves in self.arguments:
            structures.setdefault(len(leaves), set()).add(structure)
        for eqn in self.graph.by_primitive.get("add", ()):
            terms: list[Atom] = []
            last: Eqn | None = eqn
            while last is not None and not eqn.outvars[0].aval.shape:
                first, term = last.invars
                terms.append(term)
                found = structures.get(len(terms) + 1, ())
                last = self.graph.alone(first, "add")
                if not found or any(self.graph.alone(t) is None for t in (*terms, first)):
                    continue
                for structure in sorted(found, key=str):
                    values = self._values((structure, (first, *reversed(terms))))
                    if values is not None and values.eqns and not _reads_others(values):
                        self._sums[values] = eqn.outvars[0]

    def _values(self, column: Column) -> _Values | None:
        """The values of a column; `None` for different numbers."""
        structure, leaves = column
        first, *others = map(self._bare, leaves)
        if all(_is_same(first, a) for a in others):
            return _Values(column, same=first)
        if not all(map(is_var, leaves)):
            return None
        if column not in self._known:
            self._known[column] = self._made(structure, leaves)
        return self._known[column]

    def _made(self, structure: PyTreeDef, leaves: tuple[Atom, ...]) -> _Values:
        column = structure, leaves
        unknown = _Values(column)
        if column in self.arguments:
            return _Values(column, is_tree=True)
        eqns = list(self.graph.makers(leaves))
        calls = any(isinstance(e, LayerCall) for e in eqns)
        if column in self.other or len(eqns) < len(leaves) or calls:
            return unknown
        if eqns[0].primitive is value_and_grad_p:
            return self._gradient(column, eqns)
        kinds_of = {(e.primitive, len(e.invars), len(e.outvars)) for e in eqns}
        if len(kinds_of) > 1 or len(eqns[0].outvars) > 1 or not eqns[0].invars:
            return unknown
        rows = zip(*(e.invars for e in eqns), strict=True)
        found = [self._values((structure, row)) for row in rows]
        operands = [c for c in found if c is not None]
        if len(operands) < len(found):
            return unknown
        unexplained = sum(c.is_other for c in operands)
        most = 1 if eqns[0].primitive.name in kinds.ELEMENTWISE else 0
        if unexplained > most or all(c.same is not None for c in operands):
            return unknown
        return _Values(column, eqns, operands)

    def _gradient(self, column: Column, eqns: Sequence[Eqn]) -> _Values:
        """The derivatives of one loss by all leaves of a tree."""
        structure, leaves = column
        eqn, count = eqns[0], eqns[0].params["count"]
        given = dict(zip(eqn.outvars[-count:], eqn.invars[-count:], strict=True))
        if any(e is not eqn for e in eqns) or not given.keys() >= {*leaves}:
            return _Values(column)
        by = self._values((structure, tuple(given[v] for v in leaves if is_var(v))))
        if by is None or not (by.eqns or by.is_tree):
            return _Values(column)
        return _Values(column, operands=[by], is_tree=True)

    def _bare(self, atom: Atom) -> Atom:
        """The number that an array repeats."""
        made = self.graph.producer(atom, "broadcast_in_dim")
        return made.invars[0] if made is not None and not made.invars[0].aval.shape else atom

    def _is_read_elsewhere(self, values: _Values, users: Sequence[_Values]) -> bool:
        inside = {e for u in users for e in u.eqns}
        return any(
            v in self.graph.results or not inside.issuperset(self.graph.users.get(v, ()))
            for v in values.column[1]
        )

    def _map(
        self, root: _Values, group: Mapping[_Values, _Values], trees: dict[Column, TreeMap]
    ) -> TreeMap | None:
        """The equation of a group of columns; adds to `trees` those that it reads."""
        ends = dict.fromkeys(_ends(root, group))
        inputs = [c for c in ends if c.same is None]
        shared = [*dict.fromkeys(c.same for c in ends if c.same is not None and is_var(c.same))]
        structure, leaves = root.column
        functions: list[Jaxpr] = []
        for i, leaf in enumerate(leaves):
            own = [v for c in inputs if is_var(v := c.column[1][i])]
            eqns, outside = self.graph.needed([leaf], {*own, *shared})
            if outside or len({*own, *shared}) < len(inputs) + len(shared):
                return None
            jaxpr = self.graph.jaxpr.replace(
                constvars=[], invars=[*own, *shared], outvars=[leaf], eqns=eqns
            )
            functions.append(jaxpr)
        given: list[tuple[Atom, ...]] = []
        for c in inputs:
            if c.is_other and c.column not in trees:
                trees[c.column] = _tree_of(c.column)
            given.append(tuple(trees[c.column].outvars) if c.is_other else c.column[1])
        total = self._sums.get(root)
        made = [v for v in leaves if is_var(v)] if total is None else [total]
        read = [v for row in given for v in row]
        path = self._outputs.get(root, ())
        is_sum = total is not None
        return TreeMap(structure, given, shared, functions, path, is_sum, [*read, *shared], made)

    def replaced(self, made: Sequence[TreeMap]) -> Jaxpr:
        """The program with these equations; itself if they need each other's results."""
        jaxpr, graph = self.graph.jaxpr, self.graph
        instead = {v for e in made for v in e.outvars}
        rest = [e for e in graph.eqns if instead.isdisjoint(e.outvars)]
        after = jaxpr.replace(eqns=[*rest, *made])
        needed, _ = Graph(after).needed(jaxpr.outvars)
        before = {*graph.needed(jaxpr.outvars)[0]}
        live = {*needed, *(e for e in rest if e not in before or e.effects)}
        eqns = [e for e in after.eqns if e in live]
        # A tree is made after its last leaf.
        place = [max(self._places(e)) for e in eqns]
        ordered = in_order(eqns, place)
        return jaxpr.replace(eqns=ordered) if len(ordered) == len(eqns) else jaxpr

    def _places(self, eqn: Eqn) -> Iterator[int]:
        if not isinstance(eqn, TreeMap):
            yield self.graph.index[eqn]
            return
        yield -1
        for v in eqn.outvars if eqn.functions else eqn.invars:
            if is_var(v) and v in self.graph.producers:
                yield self.graph.index[self.graph.producers[v]]


def _ends(root: _Values, group: Mapping[_Values, _Values]) -> Iterator[_Values]:
    """The operands of a group of columns, in the order of its function."""
    pending, seen = [root], set[_Values]()
    while pending:
        values = pending.pop()
        if values is not root and group.get(values) is not root:
            yield values
        elif values not in seen:
            seen.add(values)
            pending += reversed(values.operands)


def _tree_of(column: Column) -> TreeMap:
    """The equation that makes a tree of arrays."""
    structure, leaves = column
    return TreeMap(structure, [leaves], [], [], (), False, [*leaves], [Var(a.aval) for a in leaves])


def _is_same(one: Atom, other: Atom) -> bool:
    if isinstance(one, Literal) and isinstance(other, Literal):
        a, b = np.asarray(one.val), np.asarray(other.val)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return one is other
