"""Finds backward passes: derivatives of a number that the program itself computes.

A step of training that was exported holds its loss, and the equations of its gradients. For each
number that may be a loss, JAX differentiates the equations that compute it. Where the derivatives
are values of the program, both become one equation (`invert.ir.value_and_grad`). Values alone are
compared, after lowering: what it hides, such as where derivatives stop, comes from the functions of
the library that the loss calls.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from invert._errors import InvertError, only_refusals
from invert._private.jax import (
    REFUSALS,
    close_like,
    constants_as_arguments,
    consts_of,
    dce,
    eval_closed,
    eval_jaxpr,
    open_jaxpr,
    plain_params,
    rename,
    trace_closed,
)
from invert.gradients.cache import without_rules
from invert.gradients.checkpoints import with_checkpointed_parts
from invert.gradients.pullbacks import is_product, is_scan, starts
from invert.gradients.settle import plain
from invert.gradients.undifferentiated import undifferentiated, with_invariants_inside
from invert.ir import kinds, traced_form
from invert.ir.avals import is_differentiable, type_of
from invert.ir.gradient_marker import custom_gradient_p, parts
from invert.ir.graph import Graph, computed_from, from_outside, in_order, is_var, read_by, reads
from invert.ir.jaxprs import (
    has_wide_types,
    map_equations,
    map_jaxprs,
    names_in,
    sub_jaxprs,
    variables_read,
    with_equations,
    with_inlined,
    without_empty,
)
from invert.ir.lookups import clipping, with_promised_bounds
from invert.ir.loops import ScanParts
from invert.ir.lowered_form import lowered_form
from invert.ir.merging import merge_equations, program_key
from invert.ir.order import postorder
from invert.ir.passes import Made, rewritten
from invert.ir.sorted_scans import with_sorted_scans
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
from invert.ir.value_and_grad import (
    differentiated,
    pulled_back,
    value_and_grad,
    value_and_grad_p,
)

Recognize = Callable[[Jaxpr], Jaxpr]

# How many numbers of a program are looked at, and how many are differentiated and compared.
_MOST_NUMBERS, _MOST_TRIED = 32, 4
# At most this many backward passes that differentiate no number are looked for.
_MOST_PULLBACKS = 8
# A loss of fewer equations is as short as its derivative.
_FEWEST = 3
# At most this many values are returned beside a loss, such as its parts, or as many as there are
# derivatives: each normalization has two statistics beside its two parameters.
_MOST_OTHERS = 8


def with_own_derivatives(closed: ClosedJaxpr, recognize: Recognize) -> ClosedJaxpr:
    """The program with each backward pass as JAX traces it for the loss.

    Values are the same. What lowering hides in a derivative comes back: where it stops, and that
    updates out of bounds are dropped.
    """
    constants, program = consts_of(closed), constants_as_arguments(open_jaxpr(closed))
    # Rules such as that of `cholesky` count rows with JAX's default integers.
    with jax.enable_x64(has_wide_types(program)):
        if (found := with_gradients(program, recognize)) is None:
            return closed
        traced = lowered(found)
    if value_and_grad_p.name in names_in(traced):
        return closed  # it holds an array
    if not constants:
        return close_like(closed, traced)
    types = [v.aval for v in traced.invars[len(constants) :]]
    return trace_closed(lambda *values: eval_jaxpr(traced, [*constants, *values]), *types)


def has_no_derivative(program: Jaxpr) -> bool:
    """Return whether each result forbids its derivative, as those of an export without gradients.

    The derivative of what computes them does not count then.
    """
    graph = Graph(program)
    outvars = dict.fromkeys(filter(is_var, program.outvars))
    results = [v for v in outvars if is_differentiable(v.aval)]
    makers = [graph.producer(v, "custom_jvp_call") for v in results]
    return bool(makers) and all(e is not None and _forbids(e) for e in makers)


def _forbids(eqn: Eqn) -> bool:
    """Return whether a function only forbids the derivative of its operand."""
    is_identity = not open_jaxpr(eqn.params["call_jaxpr"]).eqns
    return is_identity and isinstance(traced_form.rule_of(eqn), str)


def expanded(program: Jaxpr) -> Jaxpr:
    """A program with the equations of its backward passes, as JAX traces them."""
    if value_and_grad_p.name not in names_in(program):
        return program
    return map_jaxprs(program, lambda jaxpr: with_inlined(jaxpr, _traced))


def lowered(program: Jaxpr) -> Jaxpr:
    """As `expanded`, with barriers for what `jax.checkpoint` binds in backward passes."""
    return map_jaxprs(expanded(program), lambda jaxpr: with_inlined(jaxpr, _recomputed))


def _traced(eqn: Eqn) -> ClosedJaxpr | None:
    if eqn.primitive is not value_and_grad_p:
        return None
    run = differentiated(**eqn.params)
    # Branches fill arrays that only others save for the derivative.
    return without_empty(trace_closed(run, *map(type_of, eqn.invars)))


def with_gradients(
    program: Jaxpr, recognize: Recognize, fits: Callable[[Jaxpr], bool] = lambda derived: True
) -> Jaxpr | None:
    """The program with its backward passes as equations of `value_and_grad`; `None` without any.

    **Arguments:**

    - `recognize`: recovers library functions, of which the derivative left parts.
    - `fits`: whether a result may be used.
    """
    ends = program.invars, program.outvars
    # A stored derivative is compared with that of the equations as they are.
    pulls = custom_gradient_p.name not in names_in(program)

    def inner(jaxpr: Jaxpr) -> Jaxpr:
        if (jaxpr.invars, jaxpr.outvars) == ends or jaxpr.constvars:
            return jaxpr
        return _with_own(jaxpr, recognize, lambda derived: True, pulls)

    inside = map_jaxprs(program, inner)
    if inside is not program and not fits(inside):
        inside = program
    found = _with_own(inside, recognize, fits, pulls)
    return None if found is program else found


def _with_own(
    program: Jaxpr, recognize: Recognize, fits: Callable[[Jaxpr], bool], pulls: bool
) -> Jaxpr:
    """As `with_gradients`, for the outermost equations.

    **Arguments:**

    - `pulls`: whether to look for derivatives of arrays, not only of scalars.
    """
    found = _with_losses(program, recognize, fits)
    for _ in range(_MOST_PULLBACKS if pulls else 0):
        if (pulled := _with_pullback(found, recognize, fits)) is None:
            break
        # Losses of updated parameters show only now.
        found = _with_losses(pulled, recognize, fits)
    return found


def _with_losses(program: Jaxpr, recognize: Recognize, fits: Callable[[Jaxpr], bool]) -> Jaxpr:
    """With derivatives of numbers that the program computes."""
    if not any(is_var(v) and _is_number(v) for v in program.outvars):
        return program
    found = program
    for number in _numbers(program)[:_MOST_TRIED]:
        graph = Graph(found)
        if number in graph.producers:
            found = _Apart.of(graph, [number]).searched([number], recognize, fits) or found
    for scaled, number in _with_scaled_numbers(found):
        graph = Graph(scaled)
        apart = _Apart.of(graph, [number])
        # The number belongs to a loss that was found; only the scaling would be differentiated.
        if not {*apart.given}.isdisjoint(graph.producers[number].invars):
            continue
        if (derived := apart.searched([number], recognize, fits)) is not None:
            return derived
    return found


def _with_pullback(
    program: Jaxpr, recognize: Recognize, fits: Callable[[Jaxpr], bool]
) -> Jaxpr | None:
    """The program with the derivative of arrays as one equation; `None` if there is none."""
    graph, found = Graph(program), list[Jaxpr]()
    for group in itertools.islice(starts(graph), _MOST_TRIED):
        results, cotangents = zip(*group, strict=True)
        apart = _Apart.of(graph, results)
        derived = apart.searched(results, recognize, fits, cotangents)
        if derived is not None:
            found.append(derived)
            if next(starts(Graph(derived)), None) is None:
                break  # no backward pass is left
    return max(found, key=_count_of_derivatives, default=None)


def _count_of_derivatives(program: Jaxpr) -> int:
    return sum(e.params["count"] for e in program.eqns if e.primitive is value_and_grad_p)


def _with_scaled_numbers(program: Jaxpr) -> Iterator[tuple[Jaxpr, Var]]:
    """Variants of a program that also compute a scaled loss.

    The program itself holds only its derivative, which starts with one times the scale.
    """
    scales = [e for e in program.eqns if _scales_one(e)]
    for number in _numbers(program)[:_MOST_TRIED] if scales else ():
        for eqn in (e for e in scales if _type(e.outvars[0]) == _type(number)):
            operands = [a if is_var(a) else number for a in eqn.invars]
            scaled = eqn.replace(invars=operands, outvars=[Var(number.aval)])
            yield program.replace(eqns=[*program.eqns, scaled]), scaled.outvars[0]


def _scales_one(eqn: Eqn) -> bool:
    """Return whether an equation is `1.0 * scale`, `scale * 1.0` or `1.0 / scale`."""
    if eqn.primitive.name not in ("mul", "div") or not _is_number(eqn.outvars[0]):
        return False
    first, second = eqn.invars
    if eqn.primitive.name == "mul" and is_var(first):
        first, second = second, first
    return isinstance(first, Literal) and np.asarray(first.val) == 1 and is_var(second)


@dataclasses.dataclass(frozen=True)
class _Apart:
    """A program in two parts.

    **Arguments:**

    - `given`: values that the second part takes as arguments.
    """

    graph: Graph
    given: Sequence[Var]

    @classmethod
    def of(cls, graph: Graph, ends: Sequence[Var]) -> _Apart:
        """Cut a program before the last part of the way to `ends`.

        The cut is at the values that other derivatives have updated: the discriminator that the
        loss of a generator closes over, or the parameters at which SAM takes its second gradient.
        """
        needed, _ = graph.needed(ends)
        ending = {*graph.makers(ends)}
        losses = [e for e in needed if e.primitive is value_and_grad_p]
        made = {v for e in losses for v in e.outvars}
        made |= {v for e in computed_from(made, needed) for v in e.outvars}
        moved = {v for e in losses for v in e.outvars[len(e.outvars) - e.params["count"] :]}
        last = dict.fromkeys(moved)
        for eqn in needed:
            (v, *more), own = eqn.outvars, [a for a in eqn.invars if is_var(a) and a in moved]
            is_alone = not more and eqn.primitive.name in kinds.ELEMENTWISE
            if is_alone and _type(v) in map(_type, own):
                moved.add(v)
                last = dict.fromkeys(a for a in last if a not in own) | {v: None}
        returned = [v for v in graph.jaxpr.outvars if is_var(v)]
        results = [v for v in returned if v in made]
        # Derivatives stop at averaged parameters: the network that has them only gives targets.
        own = {v for e in needed for v in e.outvars}
        results += [v for v in returned if v in own and _is_elementwise(v, graph)]
        makers = dict.fromkeys(graph.makers([*results, *last]))
        return cls(graph, [v for e in makers if e not in ending for v in e.outvars])

    def searched(
        self,
        ends: Sequence[Var],
        recognize: Recognize,
        fits: Callable[[Jaxpr], bool],
        cotangents: Sequence[Var] = (),
    ) -> Jaxpr | None:
        """The program with values of the second part and their derivatives as one equation."""
        if not self.given:
            return _Search(self.graph, ends, recognize, fits, cotangents).run()
        jaxpr, given = self.graph.jaxpr, {*self.given}
        rest = [e for e in jaxpr.eqns if given.isdisjoint(e.outvars)]
        second = Graph(jaxpr.replace(invars=[*jaxpr.invars, *self.given], eqns=rest))

        def whole_fits(derived: Jaxpr) -> bool:
            whole = self._joined(derived)
            return whole is not None and fits(whole)

        found = _Search(second, ends, recognize, whole_fits, cotangents).run()
        return None if found is None else self._joined(found)

    def _joined(self, second: Jaxpr) -> Jaxpr | None:
        """The whole program; `None` if the parts need each other's values."""
        made = {v for e in second.eqns for v in e.outvars}
        needed, _ = self.graph.needed(self.given)
        eqns = [*(e for e in needed if made.isdisjoint(e.outvars)), *second.eqns]
        ordered = in_order(eqns)
        if len(ordered) < len(eqns):
            return None
        return second.replace(invars=self.graph.jaxpr.invars, eqns=ordered)


def _is_elementwise(v: Var, graph: Graph) -> bool:
    eqns, _ = graph.needed([v])
    return all(e.primitive.name in _SINGLE for e in eqns)


_SINGLE = kinds.ELEMENTWISE | kinds.LAYOUT


def _numbers(program: Jaxpr) -> list[Var]:
    """The numbers that may be a loss: results first, and the cheapest of them first.

    Whatever uses the derivatives takes more equations than the loss. Numbers that results are
    computed from, such as a loss before it is scaled, come after them.
    """
    graph = Graph(program)
    markers = graph.by_primitive.get(custom_gradient_p.name, ())
    ends = [*program.outvars, *(v for e in markers for v in parts(e)[0])]
    results = [v for v in dict.fromkeys(filter(is_var, ends)) if _may_be_loss(v, graph)]
    before = dict.fromkeys(a for v in results for a in graph.producers[v].invars if is_var(a))
    others = [a for a in before if a not in results and _may_be_loss(a, graph)]
    size = {v: len(graph.needed([v])[0]) for v in (results + others)[:_MOST_NUMBERS]}
    numbers = [v for v, n in size.items() if n >= _FEWEST]
    return sorted(numbers, key=lambda v: (v not in results, size[v]))


def _may_be_loss(v: Var, graph: Graph) -> bool:
    made = graph.producers.get(v)
    return _is_number(v) and made is not None and made.primitive is not custom_gradient_p


def _is_number(v: Atom) -> bool:
    return v.aval.shape == () and jnp.issubdtype(v.aval.dtype, jnp.floating)


@dataclasses.dataclass(frozen=True)
class _Search:
    """Looks for the derivatives of one number, or of some values.

    **Arguments:**

    - `ends`: the number, or the values.
    - `cotangents`: values of the program that are the cotangents of `ends`; none for a number.
    """

    graph: Graph
    ends: Sequence[Var]
    recognize: Recognize
    fits: Callable[[Jaxpr], bool]
    cotangents: Sequence[Var] = ()

    @functools.cached_property
    def needed(self) -> Sequence[Eqn]:
        """The equations that compute them."""
        return self.graph.needed(self.ends)[0]

    def run(self) -> Jaxpr | None:
        """The program with the number, or the values, and its derivatives as one equation."""
        if any(e.primitive is value_and_grad_p for e in self.needed):
            return None
        if not self.cotangents and not self._may_have_derivatives():
            return None
        others: list[Var] = []
        most = _MOST_OTHERS
        for found in self._with_results(self.ends):
            used = self._still_used(found)
            if not used and self.fits(found.program):
                return found.program
            # Equations that compute what is still used would be in the program twice.
            others = min(filter(None, (others, used)), key=len, default=[])
            most = max(most, len(found.moving))
            if others and "optimization_barrier" not in self.graph.by_primitive:
                break  # no form of the loss would find more derivatives
        if not 0 < len(others) <= most:
            return None
        whole = (found.program for found in self._with_results([*self.ends, *others]))
        return next(filter(self.fits, whole), None)

    def _with_results(self, results: Sequence[Var]) -> Iterator[_Found]:
        """Programs with the ends, and perhaps more results, and derivatives as one equation."""
        for forward in _forwards(self.graph, results, self.recognize):
            found = _Loss(self.graph, results, forward, self.cotangents).replaced()
            if found is None or (self.cotangents and not self._is_clear(found)):
                continue
            # The backward pass takes at least as many equations as what it differentiates.
            fewest = len(self.needed) - self._count_of_fixed(found)
            if len(self.graph.eqns) - found.size >= fewest:
                yield found

    def _is_clear(self, found: _Found) -> bool:
        """Return whether some products are more likely a backward pass than a model's own.

        A model that multiplies with a matrix and with its transpose has both passes of a product.
        """
        products = [*filter(is_product, self.needed)]
        return len(found.moving) > 1 or len(products) > 1

    def _count_of_fixed(self, found: _Found) -> int:
        """How many equations only the loss uses, and none of `found.moving` changes.

        An example is a network with which another one is compared.
        """
        moved = {*computed_from(found.moving, self.needed)}
        own = {v for e in self.needed for v in e.outvars}
        rest = [e for e in found.program.eqns if own.isdisjoint(e.outvars)]
        read = {*read_by(rest), *filter(is_var, found.program.outvars)}
        fixed = {v for e in self.needed if e not in moved for v in e.outvars}
        shared, _ = self.graph.needed(read & fixed)
        return len(self.needed) - len(moved) - len(shared)

    def _may_have_derivatives(self) -> bool:
        """Return whether the program may make the derivative by anything that the loss reads.

        A product, a loop or a branch has a derivative of the same kind.
        """
        loss = set(self.needed)
        made = {v for e in self.needed for v in e.outvars}
        later: dict[Hashable, list[Var]] = {}
        for v in (v for e in self.graph.eqns if e not in loss for v in e.outvars):
            later.setdefault(_type(v), []).append(v)
        known = dict[Hashable, set[frozenset[str]]]()
        for argument in reversed(from_outside(self.needed)):
            kind = _type(argument)
            if kind not in later or not is_differentiable(argument.aval):
                continue
            if kind not in known:
                backward, _ = self.graph.needed(later[kind], given=made)
                known[kind] = _kinds(backward)
            if _kinds([*self._moved_by(argument)]) <= known[kind]:
                return True
        return False

    def _moved_by(self, argument: Var) -> Iterator[Eqn]:
        """The equations of the loss whose values an argument moves."""
        moved = {argument}
        for eqn in self.needed:
            if _moves(eqn) and reads(eqn, moved):
                moved.update(eqn.outvars)
                yield eqn

    def _still_used(self, found: _Found) -> list[Var]:
        """What the rest of the program reads of the equations that compute the loss."""
        moving = {v for e in computed_from(found.moving, self.needed) for v in e.outvars}
        rest = [e for e in found.program.eqns if moving.isdisjoint(e.outvars)]
        read = [*(a for e in rest for a in e.invars), *found.program.outvars]
        return list(dict.fromkeys(a for a in read if is_var(a) and a in moving))


@dataclasses.dataclass(frozen=True)
class _Found:
    """A program with an equation of `value_and_grad`, which differentiates by `moving`.

    **Arguments:**

    - `size`: how many equations it has, with those of the cotangents.
    """

    program: Jaxpr
    moving: Sequence[Var]
    size: int


@dataclasses.dataclass(frozen=True)
class _Loss:
    """A number of a program, perhaps with others, and a program that computes them.

    **Arguments:**

    - `cotangents`: those of the first results, if the program has no number to differentiate.
    """

    graph: Graph
    results: Sequence[Var]
    forward: ClosedJaxpr
    cotangents: Sequence[Var] = ()

    def replaced(self) -> _Found | None:
        """The program with the number and its derivatives as one equation."""
        inner = open_jaxpr(self.forward)
        read = variables_read(inner)
        inside = set(self.graph.needed(self.results)[0])
        later = [v for e in self.graph.eqns if e not in inside for v in e.outvars]
        types = {_type(v) for v in later}
        places = [
            i
            for i, v in enumerate(inner.invars)
            if v in read and is_differentiable(v.aval) and _type(v) in types
        ]
        types = {_type(inner.invars[i]) for i in places}
        found = self._derivatives(places, [v for v in later if _type(v) in types])
        return self._with(found) if found else None

    def _split(self, places: Sequence[int]) -> tuple[list[int], ClosedJaxpr]:
        """The order of the arguments that are read, those in `places` last; the program in it."""
        inner = open_jaxpr(self.forward)
        read = variables_read(inner)
        order = [i for i, v in enumerate(inner.invars) if v in read and i not in places]
        order += places
        body = inner.replace(invars=[inner.invars[i] for i in order])
        return order, close_like(self.forward, body)

    def _derivatives(
        self, places: Sequence[int], candidates: Sequence[Var]
    ) -> dict[int, list[Var]]:
        """For arguments, the values of the program that are the derivative by each.

        Empty if the forward program computes something else.
        """
        if not places:
            return {}
        results = [*self.results, *candidates, *self.cotangents]
        own = dce(self.graph.jaxpr.replace(outvars=results))
        order, closed = self._split(places)

        def both(*values: Value) -> list[Value]:
            found = eval_closed(own, values)
            cotangents = found[len(found) - len(self.cotangents) :]
            run = self._function(closed, len(places), lambda *results: cotangents)
            return [*found, *run(*(values[i] for i in order))]

        try:
            with only_refusals():
                traced = trace_closed(both, *(v.aval for v in own.invars))
        except (*REFUSALS, LookupError, InvertError):
            return {}  # a loop without a reverse derivative, or a value that has none
        numbered = list(open_jaxpr(_numbered(traced)).outvars)
        count, rest = len(self.results), numbered[len(results) :]
        if any(a is not b for a, b in zip(numbered[:count], rest[:count], strict=True)):
            return {}
        found = {
            i: [v for v, a in zip(candidates, numbered[count:], strict=False) if a is derivative]
            for i, derivative in zip(places, rest[count:], strict=True)
            if is_var(derivative)
        }
        return {i: values for i, values in found.items() if values}

    def _function(
        self, closed: ClosedJaxpr, count: int, cotangents: Callable[..., Sequence[Value]]
    ) -> JaxFunction:
        if not self.cotangents:
            return value_and_grad(closed, count)
        return pulled_back(closed, count, len(self.cotangents), cotangents)

    def _with(self, found: dict[int, list[Var]]) -> _Found | None:
        jaxpr, places = self.graph.jaxpr, list(found)
        order, closed = self._split(places)
        moving = [jaxpr.invars[i] for i in places]
        derivatives = [Var(v.aval) for v in moving]
        made = [Var(v.aval) for v in self.results]
        names: dict[Var, Atom] = dict(zip(self.results, made, strict=True))
        for values, derivative in zip(found.values(), derivatives, strict=True):
            names |= dict.fromkeys(values, derivative)
        inside, read = self._of_cotangents()
        own = {v for e in inside for v in e.outvars}
        renamed = rename(jaxpr, names)
        rest = [e for e in renamed.eqns if own.isdisjoint(e.outvars)]
        # Other values that the program reads from the equations of the cotangents are returned too.
        _, outside = Graph(renamed.replace(eqns=rest)).needed(renamed.outvars)
        more = [v for v in outside if v in own]
        operands = [*(names.get(v, v) for v in read), *(jaxpr.invars[i] for i in order)]
        bind = functools.partial(
            value_and_grad_p.bind,
            jaxpr=closed,
            count=len(places),
            cotangents=self._cotangents_program(inside, read, more) if self.cotangents else None,
            ends=len(self.cotangents),
        )
        (eqn,) = open_jaxpr(trace_closed(bind, *map(type_of, operands))).eqns
        eqn = eqn.replace(invars=operands, outvars=[*made, *more, *derivatives])
        # The program may use derivatives before it computes the number.
        place = min(self.graph.index[self.graph.producers[v]] for v in (*self.results, *names))
        first = [e for e in renamed.eqns[:place] if own.isdisjoint(e.outvars)]
        eqns = [*first, eqn, *rest[len(first) :]]
        ordered = in_order(eqns)
        if len(ordered) < len(eqns):
            return None
        program = dce(renamed.replace(eqns=ordered))
        if {*derivatives}.isdisjoint((*read_by(program.eqns), *filter(is_var, program.outvars))):
            return None  # the program reads the cotangents alone
        return _Found(program, moving, len(program.eqns) + len(inside))

    def _of_cotangents(self) -> tuple[list[Eqn], list[Var]]:
        """What computes the cotangents from the results, and what else that reads."""
        needed, _ = self.graph.needed(self.cotangents, given=self.results)
        eqns = computed_from(self.results, needed)
        made = {*self.results, *(v for e in eqns for v in e.outvars)}
        atoms = (*(a for e in eqns for a in e.invars), *self.cotangents)
        return eqns, [*dict.fromkeys(a for a in atoms if is_var(a) and a not in made)]

    def _cotangents_program(
        self, eqns: Sequence[Eqn], read: Sequence[Var], more: Sequence[Var]
    ) -> ClosedJaxpr:
        body = self.graph.jaxpr.replace(
            constvars=[],
            invars=[*self.results, *read],
            outvars=[*self.cotangents, *more],
            eqns=list(eqns),
        )
        return trace_closed(functools.partial(_evaluated, body), *map(type_of, body.invars))


def _moves(eqn: Eqn) -> bool:
    return any(is_differentiable(v.aval) for v in eqn.outvars)


# The derivative of a primitive has primitives of the same kind.
_KINDS = kinds.CONTRACTIONS, frozenset(("scan",)), frozenset(("cond",))


def _kinds(eqns: Sequence[Eqn]) -> set[frozenset[str]]:
    names = {name for e in eqns for name in _names_differentiated(e)}
    return {kind for kind in _KINDS if not kind.isdisjoint(names)}


def _names_differentiated(eqn: Eqn) -> Iterator[str]:
    """The names of the primitives that JAX differentiates, and not a rule."""
    yield eqn.primitive.name
    if eqn.primitive.name in kinds.WITH_RULES:
        return
    for jaxpr in sub_jaxprs(eqn):
        if kinds.WITH_RULES.isdisjoint(names_in(jaxpr)):
            yield from names_in(jaxpr)
        else:
            yield from itertools.chain.from_iterable(map(_names_differentiated, jaxpr.eqns))


def _type(v: Var) -> Hashable:
    return v.aval.shape, v.aval.dtype


def _forwards(graph: Graph, results: Sequence[Var], recognize: Recognize) -> Iterator[ClosedJaxpr]:
    """Programs of a loss alone, likeliest first: of library functions, and as it is."""
    computed = dce(graph.jaxpr.replace(outvars=results))
    alone = map_jaxprs(computed, undifferentiated)
    known: set[Hashable] = set()
    likely = *with_checkpointed_parts(graph.jaxpr, alone), alone, with_invariants_inside(alone)
    for whole in dict.fromkeys((*likely, computed)):
        for form in _recognized(_forms(whole), whole, recognize):
            types = [v.aval for v in form.invars]
            forward = trace_closed(functools.partial(_evaluated, form), *types)
            key = program_key(forward)
            if key is None or key not in known:
                known.add(key)
                yield forward


def _forms(alone: Jaxpr) -> list[Jaxpr]:
    """A program with other derivatives of stops and of lookups, likeliest first."""
    forms = [plain(alone)]
    if "stop_gradient" in names_in(alone):
        # Library functions have stops of their own.
        forms += [_stopping(alone, {*alone.invars}), alone]
    if clipped := clipping(forms[0]):
        # Derivatives of lookups clip indices, too, unless they promise that these are in bounds.
        forms.insert(0, with_promised_bounds(forms[0], clipped))
    return forms


def _recognized(forms: Iterable[Jaxpr], alone: Jaxpr, recognize: Recognize) -> Iterator[Jaxpr]:
    for form in forms:
        recognized = recognize(form)
        inside = _with_broadcasts_inside(recognized)
        yield inside
        if inside is not recognized:
            yield recognized
    yield alone


def _stopping(jaxpr: Jaxpr, arguments: Container[Atom]) -> Jaxpr:
    """The program with no stops but those of arguments."""

    def idle(eqn: Eqn) -> Made | None:
        if eqn.primitive.name != "stop_gradient" or eqn.invars[0] in arguments:
            return None
        return [], eqn.invars

    return rewritten(jaxpr, idle)


def _evaluated(program: AnyJaxpr, *values: Value) -> list[Value]:
    return eval_closed(program, values)


def _with_broadcasts_inside(jaxpr: Jaxpr) -> Jaxpr:
    """With the broadcasts that a loop closes over inside of it.

    When JAX differentiates a loop, it takes out of it what no step changes.
    """
    graph = Graph(jaxpr)
    eqns = [_closing_over_operands(e, graph) if is_scan(e) else e for e in jaxpr.eqns]
    if all(new is e for new, e in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return dce(with_equations(jaxpr, eqns))


def _closing_over_operands(scan: Eqn, graph: Graph) -> Eqn:
    """A loop that moves the elements of what it closes over itself."""
    loop = ScanParts.of(scan)
    body = open_jaxpr(loop.body)
    invars, consts, eqns = list(body.invars), list(loop.consts), list[Eqn]()
    for i, atom in enumerate(consts):
        made = graph.alone(atom, *kinds.LAYOUT)
        if made is None or len(made.invars) != 1 or not is_var(made.invars[0]):
            continue
        inner = Var(made.invars[0].aval)
        eqns.append(made.replace(invars=[inner], outvars=[invars[i]]))
        invars[i], consts[i] = inner, made.invars[0]
    if not eqns:
        return scan
    closed = close_like(loop.body, body.replace(invars=invars, eqns=[*eqns, *body.eqns]))
    params = {**scan.params, "jaxpr": closed}
    return scan.replace(invars=[*consts, *loop.init, *loop.xs], params=params)


def _numbered(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The form in which equal values are one variable; derivatives of the program do not matter.

    Equal values are merged first, since the form of a value depends on what uses it.
    """
    values = traced_form.strong(traced_form.merged(closed))
    values = map_jaxprs(without_rules(plain(values)), _with_barriers)
    values = map_jaxprs(values, lambda jaxpr: with_inlined(jaxpr, _expanded))
    values = map_equations(values, _as_lowered)
    ordered = map_jaxprs(lowered_form(values), _in_order_of_results)
    merged = _merged(map_equations(ordered, _with_plain_params))
    alike = with_sorted_scans(merged)
    return merged if alike is merged else _merged(map_jaxprs(alike, _in_order_of_results))


def _merged(closed: ClosedJaxpr) -> ClosedJaxpr:
    return map_jaxprs(
        closed, lambda jaxpr: merge_equations(jaxpr, with_jaxprs=True, commuting=True)
    )


def _with_barriers(jaxpr: Jaxpr) -> Jaxpr:
    """With what `jax.checkpoint` binds as it is lowered, and each value in a barrier of its own."""
    plainer = with_inlined(
        with_inlined(jaxpr, _recomputed), lambda e: kinds.called(e, _CHECKPOINTS)
    )
    return with_inlined(plainer, _single_barriers)


_CHECKPOINTS = frozenset((kinds.CHECKPOINT,))


def _recomputed(eqn: Eqn) -> ClosedJaxpr | None:
    """The backward pass of a part under `jax.checkpoint` as it is lowered."""
    if eqn.primitive.name != kinds.CHECKPOINT or not eqn.params["differentiated"]:
        return None

    def run(*values: Value) -> list[Value]:
        held = jax.lax.optimization_barrier(values) if eqn.params["prevent_cse"] else values
        return eval_jaxpr(eqn.params["jaxpr"], held)

    return trace_closed(run, *map(type_of, eqn.invars))


# JAX lowers longer ones as loops.
_MOST_COEFFICIENTS = 8


def _expanded(eqn: Eqn) -> ClosedJaxpr | None:
    """What an equation is lowered to, for primitives that are lowered to several others."""
    name, count = eqn.primitive.name, len(eqn.invars)
    if name == "custom_linear_solve":
        run = _solving(**eqn.params)
    elif name == "square":
        run = _squared  # a square that raising finds in a product is spelled in either way
    elif name == "split":
        run = functools.partial(_parted, **eqn.params)
    elif name == "polynomial" and count - 1 <= _MOST_COEFFICIENTS:
        run = _horner
    else:
        return None
    return trace_closed(run, *map(type_of, eqn.invars))


def _squared(x: Value) -> list[Value]:
    return [x * x]


def _parted(x: Value, *, sizes: Sequence[int], axis: int) -> list[Value]:
    """The parts of an array; a derivative may read only one of them."""
    parts, start = list[Value](), 0
    for size in sizes:
        starts = [start if i == axis else 0 for i in range(x.ndim)]
        start += size
        ends = [start if i == axis else n for i, n in enumerate(x.shape)]
        parts.append(jax.lax.slice(x, starts, ends))
    return parts


def _horner(x: Value, *coefficients: Value) -> list[Value]:
    """A polynomial, which jax 0.12 has in derivatives such as that of `erf`."""
    y = coefficients[-1]
    for a in reversed(coefficients[:-1]):
        y = y * x + a
    return [y]


def _solving(const_lengths: Value, jaxprs: Value) -> JaxFunction:
    """A linear solve without the functions that its derivative calls."""
    start, held = const_lengths.matvec + const_lengths.vecmat, sum(const_lengths)

    def run(*operands: Value) -> list[Value]:
        own = operands[start : start + const_lengths.solve]
        return eval_closed(jaxprs.solve, [*own, *operands[held:]])

    return run


def _single_barriers(eqn: Eqn) -> ClosedJaxpr | None:
    if eqn.primitive.name != "optimization_barrier" or len(eqn.invars) < 2:
        return None
    types = map(type_of, eqn.invars)
    return trace_closed(lambda *values: [*map(jax.lax.optimization_barrier, values)], *types)


def _with_plain_params(eqn: Eqn) -> Eqn:
    eqn = traced_form.without_silent_params(eqn)
    return eqn.replace(params=plain_params(eqn.params))


def _in_order_of_results(jaxpr: Jaxpr) -> Jaxpr:
    if jaxpr.effects:
        return jaxpr
    graph = Graph(jaxpr)
    roots = graph.makers(jaxpr.outvars)
    return with_equations(jaxpr, postorder(roots, lambda e: [*graph.makers(e.invars)]))


# What lowers as if bounds were promised: indices are clipped, and updates dropped, in either case.
_AS_PROMISED = {"gather": GatherScatterMode.CLIP, "scatter": GatherScatterMode.FILL_OR_DROP}


def _as_lowered(eqn: Eqn) -> Eqn:
    kind = eqn.primitive.name.partition("-")[0]
    if kind not in _AS_PROMISED:
        return eqn
    params = dict(eqn.params)
    if params["mode"] == _AS_PROMISED[kind]:
        params["mode"] = GatherScatterMode.PROMISE_IN_BOUNDS
    if (fill := params.get("fill_value")) is not None:
        # As text, since NaN does not equal itself.
        params["fill_value"] = str(np.asarray(fill, eqn.outvars[0].aval.dtype))
    return eqn.replace(params=params)
