"""Finds where the author used `stop_gradient`, by search.

`stop_gradient` leaves no trace in a module. If the container's gradient differs from automatic
differentiation, each use of a value in the recovered program is a candidate. All are tried
numerically; those that reproduce the gradient are then proved by lowering. Operands of a primitive
without a derivative, such as `nextafter`, need no search: the author must have stopped them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from invert._errors import only_refusals
from invert._private.jax import (
    dim_as_value_p,
    eval_closed,
    holds_jaxprs,
    open_jaxpr,
    trace_closed,
)
from invert.gradients.compare import FAILURES, beyond_rounding, may_not_end, once
from invert.gradients.region import MarkedRegion
from invert.gradients.samples import samples
from invert.ir import kinds
from invert.ir.avals import is_differentiable, type_of
from invert.ir.interpret import bind, evaluate
from invert.ir.jaxprs import equations, with_values
from invert.ir.lookups import clipping
from invert.ir.numbers import on_cpu
from invert.ir.substitution import samples as sizes_of
from invert.ir.substitution import substitute
from invert.ir.types import (
    AnyJaxpr,
    Atom,
    ClosedJaxpr,
    Eqn,
    JaxFunction,
    Jaxpr,
    Literal,
    Value,
    Var,
)

# Each candidate is a run of the gradient. In larger programs, candidates are the values that only
# arguments with a wrong gradient reach or, if there are too many of these, arguments alone.
_MAX_PLACES, _MAX_APART = 192, 384
_MAX_COMPUTED = 1 << 28
# The most stops that are found together, and the alternatives that are followed at each.
_MAX_TOGETHER, _BEAM = 8, 4
# A gradient or a difference is rounding if it is smaller than this part of the wanted gradient.
_ZERO = 1e-5
# Each comes this much closer to the gradient at least; a step takes hundreds of runs.
_CLOSER = 0.95
# Candidates with equal numbers, such as the two factors of a square, are distinguished by proof.
_MAX_VARIANTS = 8
_MAX_ROUNDS = 32
# The most elements of a result that are compared.
_ELEMENTS = 1 << 16
# For each mask over the places: whether each result is right at all sample points.
Fits = Callable[[np.ndarray], np.ndarray]
# For each mask: how far the results are from what they should be, at one sample point.
Distances = Callable[[np.ndarray], np.ndarray]
# A use of a value: index of the equation (-1 for the results), and position among its operands.
Use = tuple[int, int]
# What is used instead of a value.
Gate = Callable[[Use, Value], Value]


@dataclasses.dataclass(frozen=True)
class _Places:
    """Candidates: sets of uses that are stopped together.

    The first sets are all uses of each of the `values`, in order. Equations that read an open size
    do not count, since the program at given sizes lacks them.
    """

    jaxpr: Jaxpr
    values: tuple[Var, ...]
    sets: tuple[frozenset[Use], ...]

    @classmethod
    def of(cls, jaxpr: Jaxpr, inputs: Sequence[Var]) -> _Places:
        """Collect uses of values that depend on `inputs`: all, single, and similar ones.

        Uses are similar if they are the same operand of the same primitive, and come from the same
        primitive. They are probably one function that the author called in many places.
        """
        moving = _reached(jaxpr, inputs)
        uses: dict[Var, list[Use]] = {}
        eqns = _counted(jaxpr)
        for i, atoms in _operands(jaxpr):
            for k, atom in enumerate(atoms):
                if isinstance(atom, Var) and atom in moving:
                    uses.setdefault(atom, []).append((i, k))
        sets = [frozenset(found) for found in uses.values()]
        sets += [frozenset([use]) for found in uses.values() if len(found) > 1 for use in found]
        producers: dict[Var, Eqn] = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        alike: dict[Hashable, set[Use]] = {}
        for value, found in uses.items():
            for i, k in found:
                if i >= 0 and value in producers:
                    key = (_kind(eqns[i]), k, _kind(producers[value]))
                    alike.setdefault(key, set()).add((i, k))
        sets += [frozenset(found) for found in alike.values() if len(found) > 1]
        return cls(jaxpr, tuple(uses), tuple(sets))

    def of_arguments(self) -> _Places:
        """Those of all uses of an argument."""
        arguments = set(self.jaxpr.invars)
        return self._at([i for i, v in enumerate(self.values) if v in arguments])

    def apart_from(self, inputs: Sequence[Var]) -> _Places:
        """Those of values that do not depend on `inputs`."""
        reached, atoms = _reached(self.jaxpr, inputs), dict(_operands(self.jaxpr))
        used = {use for uses in self.sets for use in uses}
        free = {(i, k) for i, k in used if atoms[i][k] not in reached}
        return self._at([n for n, uses in enumerate(self.sets) if uses <= free])

    def _at(self, kept: Sequence[int]) -> _Places:
        values = tuple(self.values[i] for i in kept if i < len(self.values))
        return dataclasses.replace(self, values=values, sets=tuple(self.sets[i] for i in kept))

    def all_of(self, value: Var) -> set[int]:
        """The set of all uses of a value, by index."""
        return {i for i, v in enumerate(self.values) if v is value}

    def latest_first(self, chosen: list[int]) -> list[int]:
        """Sort places, latest first: authors stop values where they use them."""
        end = len(self.jaxpr.eqns)
        return sorted(chosen, key=lambda i: -min(end if e < 0 else e for e, _ in self.sets[i]))

    def program(self, gate: Gate, sized: Jaxpr | None = None) -> JaxFunction:
        """The program, perhaps at given sizes, with `gate(use, value)` for each used value."""
        jaxpr = sized or self.jaxpr

        def run(*values: Value) -> list[Value]:
            places = itertools.count()

            def gated(i: int, atoms: Sequence[Atom], operands: Iterable[Value]) -> list[Value]:
                return [
                    x if isinstance(a, Literal) else gate((i, k), x)
                    for k, (a, x) in enumerate(zip(atoms, operands, strict=True))
                ]

            def on_eqn(eqn: Eqn, operands: list[Value]) -> list[Value]:
                if eqn.primitive is dim_as_value_p:
                    return bind(eqn, operands)
                return bind(eqn, gated(next(places), eqn.invars, operands))

            env: dict[Atom, Value] = dict(zip(jaxpr.invars, values, strict=True))
            read = evaluate(jaxpr.eqns, env, on_eqn)
            return gated(-1, jaxpr.outvars, map(read, jaxpr.outvars))

        return run

    def uses(self, chosen: set[int]) -> frozenset[Use]:
        """The uses in some of the sets."""
        return frozenset[Use]().union(*(self.sets[i] for i in chosen))

    def stopped(self, uses: Set[Use]) -> ClosedJaxpr:
        """Trace the program with `stop_gradient` at some uses."""
        kept: dict[int, Value] = {}  # one `stop_gradient` for all uses of a value

        def gate(use: Use, value: Value) -> Value:
            if use not in uses:
                return value
            if id(value) not in kept:
                kept[id(value)] = jax.lax.stop_gradient(value)
            return kept[id(value)]

        return trace_closed(self.program(gate), *(v.aval for v in self.jaxpr.invars))


def _kind(eqn: Eqn) -> Hashable:
    return eqn.primitive.name, eqn.params.get("name")


def _counted(jaxpr: Jaxpr) -> list[Eqn]:
    return [eqn for eqn in jaxpr.eqns if eqn.primitive is not dim_as_value_p]


def _reached(jaxpr: Jaxpr, inputs: Sequence[Var]) -> set[Atom]:
    """The values that may have a derivative by `inputs`."""
    reached: set[Atom] = {v for v in inputs if is_differentiable(v.aval)}
    for eqn in jaxpr.eqns:
        if any(a in reached for a in eqn.invars if isinstance(a, Var)):
            reached.update(v for v in eqn.outvars if is_differentiable(v.aval))
    return reached


def _operands(jaxpr: Jaxpr) -> Iterator[tuple[int, Sequence[Atom]]]:
    for i, eqn in enumerate(_counted(jaxpr)):
        yield i, eqn.invars
    yield -1, jaxpr.outvars


def with_needed_stops(region: MarkedRegion) -> MarkedRegion | None:
    """The region with `stop_gradient` on operands of primitives without a derivative, if any."""
    return region.with_instead(_lacks_derivative, _stopped)


def _lacks_derivative(eqn: Eqn) -> bool:
    """Return whether an equation takes and returns numbers, but JAX cannot differentiate it."""
    known = eqn.primitive in ad.primitive_jvps or holds_jaxprs(eqn)
    return not known and all(
        any(is_differentiable(a.aval) for a in atoms) for atoms in (eqn.invars, eqn.outvars)
    )


def _stopped(eqn: Eqn, *operands: Value) -> Sequence[Value]:
    return bind(
        eqn,
        [x if isinstance(a, Literal) else jax.lax.stop_gradient(x)
         for a, x in zip(eqn.invars, operands, strict=True)],
    )  # fmt: skip


def with_stopped_maxima(region: MarkedRegion) -> MarkedRegion | None:
    """The region with `stop_gradient` on each maximum that is subtracted from its array, if any.

    `jax.nn.softmax`, `log_softmax` and `logsumexp` have it, but a program that holds their
    derivative contains only parts of them. The stop changes no value of the gradient, so that a
    search would not find it.
    """
    found = frozenset(_subtracted_maxima(equations(open_jaxpr(region.forward))))
    return region.with_instead(found.__contains__, _with_stopped_results) if found else None


def _subtracted_maxima(eqns: Iterable[Eqn]) -> Iterator[Eqn]:
    # The maxima that a value is made of, with the arrays that they are of.
    made: dict[Atom, list[tuple[Eqn, Set[Atom]]]] = {}
    joined: dict[Atom, Set[Atom]] = {}
    for eqn in eqns:
        operands = [made.get(a, []) if isinstance(a, Var) else [] for a in eqn.invars]
        name = eqn.primitive.name
        if name == "reduce_max":
            (x,) = eqn.invars
            made[eqn.outvars[0]] = [(eqn, {x, *joined.get(x, ())})]
        elif name == "concatenate":
            joined[eqn.outvars[0]] = {a for a in eqn.invars if isinstance(a, Var)}
        elif name == "sub" and isinstance(eqn.invars[0], Var):
            yield from (largest for largest, parts in operands[1] if eqn.invars[0] in parts)
        elif name in _KEEPING or kinds.called(eqn) is not None:
            found = list(itertools.chain(*operands))
            made |= dict.fromkeys(eqn.outvars, found)


# What happens to a maximum before it is subtracted: infinite ones become 0.
_KEEPING = kinds.LAYOUT | {"max", "select_n", "convert_element_type"}


def _with_stopped_results(eqn: Eqn, *operands: Value) -> Sequence[Value]:
    return list(map(jax.lax.stop_gradient, bind(eqn, list(operands))))


def with_stopped_cases(region: MarkedRegion) -> list[MarkedRegion]:
    """The region with `stop_gradient` on one case of each selection between a value and itself.

    An author has written `jnp.where(stops, lax.stop_gradient(x), x)`, or its cases the other way
    round. Empty if there is no such selection.
    """
    found = [region.with_instead(_selects_one, functools.partial(_in_case, k)) for k in (1, 0)]
    return [variant for variant in found if variant is not None]


def _selects_one(eqn: Eqn) -> bool:
    cases = [eqn.invars[k] for k in _cases(eqn)]
    return len(cases) == 2 and cases[0] is cases[1] and is_differentiable(cases[0].aval)


def _cases(eqn: Eqn) -> list[int]:
    """The positions of the cases of a selection, or of a call that makes a single one."""
    if eqn.primitive.name == "select_n":
        return [1, 2] if len(eqn.invars) == 3 else []
    if (called := kinds.called(eqn)) is None or len(open_jaxpr(called).eqns) != 1:
        return []
    (inner,), places = open_jaxpr(called).eqns, open_jaxpr(called).invars
    cases = [inner.invars[k] for k in _cases(inner)]
    return [places.index(a) for a in cases if isinstance(a, Var) and a in places]


def _in_case(case: int, eqn: Eqn, *operands: Value) -> Sequence[Value]:
    place = _cases(eqn)[case]
    stopped = jax.lax.stop_gradient(operands[place])
    return bind(eqn, with_values(operands, [place], [stopped]))


def with_stops(region: MarkedRegion, raw: AnyJaxpr, x64: bool) -> Iterator[MarkedRegion]:
    """Variants of `region` with stopped values, whose autodiff agrees numerically with `raw`.

    Each step of the search adds the place that makes most results right. Where no single place
    does, as in a VQ-VAE, where several terms of one loss stop each other's gradients, it adds those
    that come closest. It runs at one choice of the open sizes; the result is proved for all of
    them. In large programs, it stops only values that no argument with the right gradient reaches
    or, if there are too many of them, arguments without a gradient. There are none for programs
    that might run forever.

    The places are tried with promised bounds, too: the gradient that they reproduce is the same
    where indices are in bounds, and a search takes long.
    """
    if may_not_end(raw) or may_not_end(region.forward):
        return
    inner = open_jaxpr(region.forward)
    places = _Places.of(inner, [inner.invars[-len(region.inputs) :][i] for i in region.wanted])
    if not places.sets:
        return
    try:
        with only_refusals(), jax.enable_x64(x64), on_cpu():
            sizes = sizes_of(raw)[0]
            sized, program = (substitute(p, sizes) if sizes else p for p in (raw, region.forward))
            at_sizes = copy.copy(region)
            at_sizes.avals = [type_of(v) for v in open_jaxpr(sized).invars]
            found = _search(places, at_sizes, sized, open_jaxpr(program))
    except FAILURES:
        return
    for start in (region, *([region.promising()] if clipping(region.forward) else ())):
        same = dataclasses.replace(places, jaxpr=open_jaxpr(start.forward))
        for chosen in found[:_MAX_VARIANTS]:
            yield region.with_forward(same.stopped(chosen))


def _search(
    places: _Places, region: MarkedRegion, raw: AnyJaxpr, program: Jaxpr
) -> list[frozenset[Use]]:
    """Uses of values where `stop_gradient` reproduces the gradient numerically.

    **Arguments:**

    - `region`, `raw`, `program`: the region, its gradient and its program, at given sizes.
    """

    # Candidates are proved afterwards, so checking some elements of large results is enough here.
    def some_of(results: Sequence[Value]) -> list[Value]:
        return [x if x.size <= _ELEMENTS else jnp.ravel(x)[_places(x.size)] for x in results]

    def gradients_with(gate: Gate, values: Sequence[Value]) -> list[Value]:
        return some_of(region.autodiff_of(places.program(gate, program), values))

    wanted = once(lambda values: some_of(eval_closed(raw, values)))
    count = len(region.numbers)
    made = list(itertools.islice(samples(region.avals, count), 0, 8, 3))
    # The root of an optimizer's second moments is NaN at others, and NaN agrees with anything.
    positive = [np.abs(x).astype(x.dtype) for x in made[0][:-count]]
    made.append([*positive, *made[0][-count:]])
    points = [list(map(jnp.asarray, values)) for values in made]
    targets = [list(map(np.asarray, wanted(values))) for values in points]
    inputs = [places.jaxpr.invars[i - len(region.inputs)] for i in region.wanted]
    before, only_arguments = None, False
    if len(places.sets) > _MAX_PLACES:
        plain = once(functools.partial(gradients_with, lambda use, value: value))
        agree = [_agree(t, plain(values)) for values, t in zip(points, targets, strict=True)]
        seen = [[np.isfinite(x).all() for x in target] for target in targets]
        before = np.all(agree, axis=0)
        # A stop changes the gradient of each argument that reaches it.
        right = itertools.compress(inputs, before & np.any(seen, axis=0))
        apart = places.apart_from(list(right))
        count = len(apart.sets)
        elements = sum(v.aval.size for e in equations(open_jaxpr(raw)) for v in e.outvars)
        only_arguments = count > _MAX_APART or count * elements > _MAX_COMPUTED
        places = places.of_arguments() if only_arguments else apart
    count = len(places.sets)
    members: dict[Use, list[int]] = {}
    for i, uses in enumerate(places.sets):
        for use in uses:
            members.setdefault(use, []).append(i)

    def gradients(mask: Value, values: Sequence[Value]) -> list[Value]:
        def gate(use: Use, value: Value) -> Value:
            if use not in members:
                return value
            stop = mask[np.asarray(members[use])].any()
            return jnp.where(stop, jax.lax.stop_gradient(value), value)

        return gradients_with(gate, values)

    tried = once(gradients)

    def fits(masks: np.ndarray) -> np.ndarray:
        right = np.ones((len(masks), len(targets[0])), bool)
        for row, mask in zip(right, masks, strict=True):
            for values, target in zip(points, targets, strict=True):
                row &= _agree(target, tried(mask, values))
                if not row.any():
                    break
        return right

    def distances(masks: np.ndarray) -> np.ndarray:
        found = np.zeros(len(masks))
        start = list(map(np.any, tried(np.zeros(count, bool), points[0])))
        for k, mask in enumerate(masks):
            results = map(np.asarray, tried(mask, points[0]))
            for x, y, moved in zip(targets[0], results, start, strict=True):
                size, rest = float(np.linalg.norm(x)), float(np.linalg.norm(y))
                found[k] += float(np.linalg.norm(np.ravel(x - y))) / (size or 1.0)
                # No gradient is not far from the wanted one, but rarely leads there.
                if moved and rest < _ZERO * size:
                    found[k] = np.inf
        return np.where(np.isnan(found), np.inf, found)

    if before is None:
        before = fits(np.zeros((1, count), bool))[0]
    # Places where arguments without any gradient enter. Otherwise the search would need a step for
    # each parameter that is not trained.
    entered: set[int] = set()
    for k in range(len(inputs)):
        if not before[k] and not any(np.any(target[k]) for target in targets):
            entered |= places.all_of(inputs[k])
    if only_arguments:
        mask = np.isin(np.arange(count), [*entered])
        return [places.uses(entered)] if entered and fits(mask[None]).all() else []
    for chosen in (set[int](), entered) if entered else (set[int](),):
        if found := _grow(chosen, count, fits, places.latest_first):
            break
    else:
        found = _approach(distances, fits, places) if count <= _MAX_PLACES else []
    return list(map(places.uses, found))


def _agree(wanted: Sequence[np.ndarray], results: Sequence[Value]) -> np.ndarray:
    pairs = zip(wanted, map(np.asarray, results), strict=True)
    return np.array([beyond_rounding(x, y) == 0 for x, y in pairs])


def _places(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, size, _ELEMENTS)


def _grow(
    chosen: set[int], count: int, fits: Fits, order: Callable[[list[int]], list[int]]
) -> list[set[int]]:
    """Add places to `chosen` until all results are right; return variants, or nothing."""
    before = -1
    for _ in range(_MAX_ROUNDS):
        masks = np.eye(count, dtype=bool)
        masks[:, sorted(chosen)] = True
        right = fits(masks)
        scores = right.sum(axis=1)
        best = int(scores.argmax())
        if right[best].all():
            ends = [int(i) for i in np.flatnonzero(right.all(axis=1))]
            return [_needed(chosen | {i}, count, fits) for i in order(ends)[:_MAX_VARIANTS]]
        if scores[best] <= before:
            return []
        chosen = chosen | {best}
        before = int(scores[best])
    return []


def _approach(distances: Distances, fits: Fits, places: _Places) -> list[set[int]]:
    """Sets of places found by how close they come to the gradient; several are followed."""
    count = len(places.sets)

    def near(masks: np.ndarray) -> np.ndarray:  # but for rounding, of sums in another order
        return fits(masks) | (distances(masks)[:, None] < _ZERO)

    beam = [set[int]()]
    (before,) = distances(np.zeros((1, count), bool))
    candidates = sorted(range(count), key=lambda i: len(places.sets[i]))
    for step in range(_MAX_TOGETHER):
        grown = list(itertools.product(beam, candidates))
        masks = np.stack([np.isin(np.arange(count), [*chosen, i]) for chosen, i in grown])
        found = distances(masks)
        ranked: dict[str, tuple[set[int], int]] = {}  # places of equal effect count once
        for k in np.argsort(found, kind="stable"):
            ranked.setdefault(f"{found[k]:.7e}", grown[k])
        if step == 0:
            # Places that leave no gradient are not alike: where terms cancel, other stops undo it.
            empty = [i for i, d in zip(candidates, found, strict=True) if np.isinf(d)]
            candidates = [i for _, i in ranked.values() if i not in empty] + empty
        (chosen, i), *_ = ranked.values()
        if near(np.isin(np.arange(count), [*chosen, i])[None]).all():
            return _grow(chosen, count, near, places.latest_first)
        if found.min() > _CLOSER * before:
            break
        before = found.min()
        beam = [chosen | {i} for chosen, i in itertools.islice(ranked.values(), _BEAM)]
    return []


def _needed(chosen: set[int], count: int, fits: Fits) -> set[int]:
    """Remove places that are not needed from `chosen`."""
    for i in sorted(chosen):
        mask = np.zeros((1, count), bool)
        mask[0, sorted(chosen - {i})] = True
        if fits(mask).all():
            chosen = chosen - {i}
    return chosen
