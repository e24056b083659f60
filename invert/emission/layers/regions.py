"""Finds layers of programs without name scopes, by data flow between uses of parameters.

The names of parameters form a tree, such as `blocks/0/attention/query/kernel`. The equations on a
path between two uses of `blocks/0/*` belong to that layer. So do those that only prepare its input
or finish its result: the mean and variance of a normalization, the sum of a residual block.
"""

from __future__ import annotations

import collections
import heapq
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import jax.numpy as jnp

from invert._private.jax import holds_jaxprs, names_of, with_names
from invert.emission.layers.cut import (
    PART,
    Path,
    common_prefix,
    holds_part,
    scope_of,
    without_op,
)
from invert.emission.layers.links import users_of
from invert.emission.python.naming import stem
from invert.ir import kinds
from invert.ir.graph import is_var, reads
from invert.ir.types import Atom, Eqn, Jaxpr, Var


def scoped(
    jaxpr: Jaxpr, parameters: Mapping[Var, Path], units: Callable[[], Iterable[Iterable[Eqn]]]
) -> Jaxpr:
    """The program with layer names as scopes, where it has none.

    **Arguments:**

    - `parameters`: the variables of parameters with their names.
    - `units`: returns groups of equations that are written as one, such as those of a softmax.
    """
    using = [e for e in jaxpr.eqns if reads(e, parameters)]
    if all(len(p) < 2 for p in parameters.values()):
        return jaxpr
    if any(map(names_of, using)):
        return _with_inner(jaxpr, parameters, units)
    regions = _Regions(jaxpr, parameters, units())
    regions.find()
    pairs = zip(jaxpr.eqns, regions.places, strict=True)
    return jaxpr.replace(eqns=[with_names(e, place) for e, place in pairs])


def _with_inner(
    jaxpr: Jaxpr, parameters: Mapping[Var, Path], units: Callable[[], Iterable[Iterable[Eqn]]]
) -> Jaxpr:
    """The program with scopes for layers that compute in the scope of the layer around them.

    Hugging Face's BERT looks up `embeddings/word_embeddings/weight` in the scope `embeddings`.
    """
    scopes = [without_op(scope_of(e)) for e in jaxpr.eqns]
    users = users_of(jaxpr.eqns)
    taken = {s[:n] for s in scopes for n in range(1, len(s) + 1)}
    homes: dict[Path, list[Var]] = collections.defaultdict(list)
    for v, path in parameters.items():
        homes[path[:-1]].append(v)
    around: dict[Path, Path] = {}
    paths = dict(parameters)
    for home, held in homes.items():
        uses = {i for v in held for i in users.get(v, ())}
        known = {scopes[i] for i in uses}
        above = known.pop() if len(known) == 1 else ()
        inner = (*above, *home[-1:])
        # The steps of a loop become a layer by themselves, as the cell of an LSTM does.
        if (
            above
            and home[-2:-1]
            and not any(holds_jaxprs(jaxpr.eqns[i]) for i in uses)
            and stem(above[-1]) == stem(home[-2])
            and inner not in taken
        ):
            around[inner] = above
            paths |= {v: (*inner, parameters[v][-1]) for v in held}
    if not around:
        return jaxpr
    regions = _Regions(jaxpr, paths, units())
    regions.places = [() if s in around.values() else s for s in scopes]
    regions.find(around)
    places = {i: p for i, p in enumerate(regions.places) if p in around}
    for i, inner in [*places.items()]:
        places |= dict.fromkeys(regions.constants_of(i), around[inner])
    eqns = [with_names(e, places[i]) if i in places else e for i, e in enumerate(jaxpr.eqns)]
    return jaxpr.replace(eqns=eqns)


def _under(path: Path, above: Path) -> bool:
    return path[: len(above)] == above


def _numbered(path: Path) -> bool:
    """Return whether a layer is an item of a list."""
    return re.search(r"_\d+$", path[-1]) is not None


# Products of arrays, as in an attention, and calls of other layers do not belong to a layer's input
# or result.
_MIXING = kinds.CONTRACTIONS | {PART.name}
# What adds rows of a table.
_SUMS = frozenset(("add", "add_any"))
_READING = _SUMS | kinds.LAYOUT | {"slice", "convert_element_type"}
# The most equations of an activation and a sum.
_MOST_AHEAD = 4
# The most equations of a gate.
_MOST_LEADING = 32


class _Regions:
    """Gives each equation the innermost layer that it belongs to.

    **Attributes:**

    - `places`: the path of that layer for each equation.
    """

    def __init__(
        self, jaxpr: Jaxpr, parameters: Mapping[Var, Path], units: Iterable[Iterable[Eqn]]
    ):
        self.eqns: Sequence[Eqn] = jaxpr.eqns
        number = {id(e): i for i, e in enumerate(self.eqns)}
        self.units = {i: [i] for i in range(len(self.eqns))}
        for unit in units:
            members = sorted(number[id(e)] for e in unit)
            self.units |= dict.fromkeys(members, members)
        self.results = {v for v in jaxpr.outvars if is_var(v)}
        self.places: list[Path] = [()] * len(self.eqns)
        self.users = users_of(self.eqns)
        self.producers: dict[Atom, int] = {}
        # Whether an equation depends on no argument and no parameter.
        self.constant: list[bool] = []
        # What blocks of a list compute first, by the name of the list.
        self.first: dict[Path, set[tuple[str, ...]]] = collections.defaultdict(set)
        for i, eqn in enumerate(self.eqns):
            self.constant.append(all(self._is_constant(a) for a in eqn.invars if is_var(a)))
            self.producers |= dict.fromkeys(eqn.outvars, i)
        # For each equation that uses parameters, the layers that own these.
        self.owners: list[list[Path]] = []
        # Values that depend only on the parameters of one layer. What is made of those of the whole
        # program, and a table beside the layers that these only add, are inputs of the layers.
        self.derived: dict[Atom, Path] = {}
        own = {v: p[:-1] for v, p in parameters.items()}
        self._derive(own)
        self.added = {p for p in {*own.values()} if p and self._only_adds(p)}
        if beside := {p for p in self.added if len(p) == 1}:
            self._derive({v: p for v, p in own.items() if p not in beside})

    def _derive(self, parameters: Mapping[Var, Path]) -> None:
        """Find what depends only on parameters of layers, and the owners that equations use."""
        self.owners.clear()
        self.derived = {**parameters}
        for eqn in self.eqns:
            inputs = [a for a in eqn.invars if is_var(a)]
            owners = [self.derived[a] for a in inputs if a in self.derived]
            self.owners.append(owners)
            if all(a in self.derived for a in inputs) and (owner := common_prefix(owners)):
                self.derived |= dict.fromkeys(eqn.outvars, owner)

    def find(self, only: Mapping[Path, Path] | None = None) -> None:
        """Find the equations of all layers, or of some, from the innermost outwards."""
        owners = {o for some in self.owners for o in some}
        paths = {o[:n] for o in owners for n in range(1, len(o) + 1)}
        uses: dict[Path, list[int]] = collections.defaultdict(list)
        for i, some in enumerate(self.owners):
            for path in {o[:n] for o in some for n in range(1, len(o) + 1)}:
                uses[path].append(i)
        regions: dict[Path, set[int]] = {}
        for path in sorted(paths, key=lambda p: (-len(p), uses[p][0])):
            if (only is not None and path not in only) or path in self.added:
                continue
            seeds = set(uses[path])
            for other, members in regions.items():
                if other[:-1] == path:
                    seeds |= members
            region = self._between(seeds)
            if any(not _under(o, path) for i in region for o in self.owners[i]):
                continue
            if any(not _under(self.places[i], path) for i in region if self.places[i]):
                continue
            blocks = _numbered(path) and any(_under(o[:-1], path) for o in regions)
            whole = self._scaled(self._before(region, path, block=blocks), path)
            inner = any(_under(o[:-1], path) for o in regions)
            if inner or len(self._taken(whole)) <= len(self._taken(region)):
                region = whole
            region = self._with_features_last(region, path)
            if _numbered(path):
                region = self._after(region, path)
            elif self._repeats(path):
                region = self._to_fewest(region, path)
            regions[path] = region
            for i in region:
                self.places[i] = self.places[i] or path

    def constants_of(self, i: int) -> set[int]:
        """The equations of constants that an equation takes."""
        found: set[int] = set()
        pending = [i]
        while pending:
            atoms = self.eqns[pending.pop()].invars
            made = {self.producers[a] for a in atoms if is_var(a) and self._is_constant(a)}
            pending += made - found
            found |= made
        return found

    def _only_adds(self, path: Path) -> bool:
        """Return whether a layer is one table whose rows the layer above adds."""
        own = [v for v, p in self.derived.items() if p == path and v not in self.producers]
        tables = len(own) == 1 and len(own[0].aval.shape) > 1
        uses = [e for e, owners in zip(self.eqns, self.owners, strict=True) if path in owners]
        names = {e.primitive.name for e in uses}
        return tables and names <= _READING and not names.isdisjoint(_SUMS)

    def _taken(self, region: Collection[int]) -> set[Atom]:
        """The values that a region takes."""
        made = {v for i in region for v in self.eqns[i].outvars}
        return {a for i in region for a in self._inputs(i)} - made

    def _is_constant(self, atom: Atom) -> bool:
        return atom in self.producers and self.constant[self.producers[atom]]

    def _free(self, i: int, region: Collection[int], path: Path) -> bool:
        """Return whether an equation may join a region: it does not belong to another layer."""
        mine = all(_under(o, path) for o in self.owners[i])
        mixes = self.eqns[i].primitive.name in _MIXING or holds_part(self.eqns[i])
        if not self.owners[i] and mixes:
            return False
        return i not in region and mine and not self.constant[i] and not self.places[i]

    def _between(self, seeds: set[int]) -> set[int]:
        """The equations on the paths between seeds."""
        first, last = min(seeds), max(seeds)
        ahead, back = set(seeds), set(seeds)
        for i in range(first, last + 1):
            if any(self.producers.get(a) in ahead for a in self._inputs(i)):
                ahead.add(i)
        for i in range(last, first - 1, -1):
            if any(j in back for v in self.eqns[i].outvars for j in self.users.get(v, ())):
                back.add(i)
        return ahead & back

    def _inputs(self, i: int) -> list[Atom]:
        """The operands of an equation that depend on arguments."""
        atoms = (a for a in self.eqns[i].invars if is_var(a))
        return [a for a in atoms if a not in self.derived and not self._is_constant(a)]

    def _before(self, region: set[int], path: Path, *, block: bool) -> set[int]:
        """Add equations used only by the region, except chains that lead to it.

        **Arguments:**

        - `block`: whether the region is a layer of a list, with layers inside. What it makes of
            values that others use too, such as the sum of its input and positions, is its own.
        """
        added: set[int] = set()
        pending = [
            -self.producers[a] for i in region for a in self._inputs(i) if a in self.producers
        ]
        heapq.heapify(pending)
        while pending:
            i = -heapq.heappop(pending)
            whole = region | added
            if i in whole or not self._free(i, whole, path) or self._leaves(i, whole):
                continue
            added.add(i)
            for a in self._inputs(i):
                if a in self.producers:
                    heapq.heappush(pending, -self.producers[a])
        whole = region | added
        row = self.first[*path[:-1], stem(path[-1])] if block else None
        whole -= self._leading(added, whole, row)
        for i in sorted(added):
            # Values that a layer computes without inputs, such as a mask, do not belong to its
            # input.
            unit = [j for j in self.units[i] if not self.constant[j]]
            if i not in whole or not region.isdisjoint(unit):
                continue
            rest = whole.difference(unit)
            inputs = {a for j in unit for a in self._inputs(j)}
            made = {v for j in unit for v in self.eqns[j].outvars}
            inputs -= made
            if any(self.producers.get(a) in whole for a in inputs):
                continue
            ended = [a for a in inputs if not self._inside(a, rest)]
            parted = not whole.issuperset(unit)  # it is one expression, outside
            count = sum(bool(self._inside(v, rest)) for v in made)
            if not parted and row is not None:
                if count > sum(not self._used_outside(a, whole) for a in ended):
                    row.add(self._names(unit))
                if self._names(unit) in row:
                    continue
            if parted or count <= len(ended):
                whole = rest
        return whole

    def _leading(
        self, added: set[int], whole: set[int], row: set[tuple[str, ...]] | None
    ) -> set[int]:
        """The first equations of a region that make as few values as they take, such as a gate.

        A normalization is not among them, which leads to the scale of its layer.

        **Arguments:**

        - `row`: what blocks of the region's list compute first, if it is such a block.
        """
        first, best, least = set[int](), set[int](), 0
        for i in sorted(added):
            unit = [j for j in self.units[i] if not self.constant[j]]
            names = self._names(unit)
            if not kinds.REDUCTIONS.isdisjoint(names) or (row is not None and names in row):
                break
            first.update(unit)
            if len(first) > _MOST_LEADING or not added.issuperset(unit):
                break
            made = {v for j in first for v in self.eqns[j].outvars}
            later = {a: self._inside(a, whole) - first for j in first for a in self._inputs(j)}
            ended = {a for a, users in later.items() if not users} - made
            if row is not None:
                ended = {a for a in ended if not self._used_outside(a, whole)}
            given = [v for v in made if self._inside(v, whole) - first]
            floats = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in given)
            if floats and (more := len(given) - len(ended)) <= least:
                best, least = set(first), more
        return best

    def _names(self, unit: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.eqns[i].primitive.name for i in unit)

    def _scaled(self, region: set[int], path: Path) -> set[int]:
        """Add the ends of a normalization without mean: `x * f(mean(x * x))`."""
        if (end := self._end(region)) is None:
            return region
        out, last = end
        start = [a for a in self._inputs(last) if a is not out]
        product = self.eqns[last].primitive.name == "mul"
        if not product or len(start) != 1 or not self._free(last, region, path):
            return region
        whole = region | {last}
        while True:
            inputs = {a for i in whole for a in self._inputs(i)} - {start[0]}
            before = {self.producers.get(a, -1) for a in inputs} - whole
            if not before:
                break
            i = max(before)
            if i < 0 or not self._free(i, whole, path) or self._leaves(i, whole):
                return region
            whole.add(i)
        reduced = any(self.eqns[i].primitive.name in kinds.REDUCTIONS for i in whole)
        return whole if reduced else region

    def _with_features_last(self, region: set[int], path: Path) -> set[int]:
        """Add the transpose that ends a product whose first operand is a parameter.

        The features come first in such a product; a mapped `weight @ x` moves them to the end.
        """
        if (end := self._end(region)) is None:
            return region
        out, last = end
        product = self.eqns[self.producers[out]]
        ends = self.eqns[last].primitive.name == "transpose" and self._free(last, region, path)
        leads = product.primitive.name == "dot_general" and product.invars[0] in self.derived
        return region | {last} if ends and leads else region

    def _end(self, region: set[int]) -> tuple[Var, int] | None:
        """The only value of a region that is used outside, and the equation that alone uses it."""
        outs = [v for i in region for v in self.eqns[i].outvars if self._used_outside(v, region)]
        if len(outs) != 1 or outs[0] in self.results or len(self.users[outs[0]]) != 1:
            return None
        return outs[0], self.users[outs[0]][0]

    def _inside(self, atom: Atom, region: Collection[int]) -> set[int]:
        return {j for j in self.users.get(atom, ()) if j in region}

    def _leaves(self, i: int, region: Collection[int]) -> bool:
        """Return whether a result of an equation is used outside a region."""
        return any(self._used_outside(v, region) for v in self.eqns[i].outvars)

    def _used_outside(self, v: Atom, region: Collection[int]) -> bool:
        return v in self.results or any(j not in region for j in self.users.get(v, ()))

    def _after(self, region: set[int], path: Path) -> set[int]:
        """Add the equations that finish a layer: fewer values are live after them."""
        while (shorter := self._with_fewer(region, path)) is not None:
            region = shorter
        while (i := self._next(region, path)) is not None:
            region = region | {i}
        return region

    def _with_fewer(self, region: set[int], path: Path) -> set[int] | None:
        """The region, extended to where fewer values are live, if possible.

        These are a sum, or an activation and a sum.
        """
        live, extended = self._live(region), region
        for _ in range(_MOST_AHEAD):
            longer = self._extended(extended, path)
            if len(longer) == len(extended):
                return None
            extended = longer
            if self._live(extended) < live:
                return extended
        return None

    def _repeats(self, path: Path) -> bool:
        """Return whether products share a layer's parameter, like steps of an unrolled loop."""
        counts = collections.Counter(
            a
            for e in self.eqns
            if e.primitive.name in _MIXING
            for a in e.invars
            if is_var(a) and _under(self.derived.get(a, ()), path)
        )
        return any(n > 1 for n in counts.values())

    def _to_fewest(self, region: set[int], path: Path) -> set[int]:
        """Add the equations up to where the fewest values are live."""
        best = region
        while len(extended := self._extended(region, path)) > len(region):
            region = extended
            if self._live(region) < self._live(best):
                best = region
        return best

    def _extended(self, region: set[int], path: Path) -> set[int]:
        """The region with the first equation that uses only its values."""
        known = {v for i in region for v in self.eqns[i].outvars}
        known |= {a for i in region for a in self._inputs(i)}
        following = {
            j
            for i in region
            for v in self.eqns[i].outvars
            for j in self.users.get(v, ())
            if self._free(j, region, path) and all(a in known for a in self._inputs(j))
        }
        return region | {min(following)} if following else region

    def _live(self, region: set[int]) -> int:
        """The number of the region's values and inputs that are used after it."""
        made = {v for i in region for v in self.eqns[i].outvars}
        inputs = {a for i in region for a in self._inputs(i)} - made
        last = max(region)
        after = {j for v in made for j in self.users.get(v, ())}
        later = [
            a
            for a in inputs
            if any(j > last or j in after for j in self.users[a] if j not in region)
        ]
        return len(later) + sum(self._used_outside(v, region) for v in made)

    def _next(self, region: set[int], path: Path) -> int | None:
        """The only user of the only result, if elementwise."""
        if (end := self._end(region)) is None:
            return None
        value, i = end
        (out, *others), inputs = self.eqns[i].outvars, self._inputs(i)
        same = not others and inputs == [value] and out.aval == value.aval
        return i if same and self._free(i, region, path) else None
