"""Finds steps of loops, and parts of losses, that the author recomputes in the backward pass.

`jax.checkpoint` leaves no trace in a forward program. The container's gradient shows it: instead of
storing what the derivative of a step needs, it runs the step again.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence, Set

import jax

from invert._private.jax import dce, eval_closed, eval_jaxpr, open_jaxpr, trace_closed
from invert.gradients.region import MarkedRegion
from invert.ir.avals import type_of
from invert.ir.graph import Graph, computed_from, from_outside, is_var, read_by
from invert.ir.interpret import bind
from invert.ir.jaxprs import equations, names_in
from invert.ir.types import AnyJaxpr, Aval, Eqn, Jaxpr, Value, Var

_Policy = Callable[..., bool] | None

# Which results of a step are stored: none, or those of some products. The gradient of each is
# another program.
_POLICIES: tuple[_Policy, ...] = (
    None,
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.dots_saveable,
)


# Primitives that lowering neither adds nor removes.
_COUNTED = frozenset(
    "dot_general conv_general_dilated exp log tanh logistic erf sin cos sqrt rsqrt pow".split()
)


def with_checkpoints(region: MarkedRegion, raw: AnyJaxpr, x64: bool) -> Iterator[MarkedRegion]:
    """Variants of `region` whose scans recompute their steps, if the gradient computes more."""
    names = names_in(open_jaxpr(raw))
    if names.isdisjoint(("scan", "while")) or "scan" not in names_in(open_jaxpr(region.forward)):
        return
    if not _counts(raw) - _counts(region.traced_autodiff(x64)):
        return
    tried: list[collections.Counter[str]] = []
    for policy in _POLICIES:
        run = functools.partial(_recomputed, policy, "optimization_barrier" in names)
        other = region.with_instead(_is_scan, run)
        if other is None:
            continue
        traced = other.traced_autodiff(x64)
        # One that computes less cannot be the gradient, and a proof takes long. Where two policies
        # store the same, they recompute as much.
        every = collections.Counter(e.primitive.name for e in equations(open_jaxpr(traced)))
        if every not in tried and not _counts(raw) - _counts(traced):
            tried.append(every)
            yield other


def _counts(program: AnyJaxpr) -> collections.Counter[str]:
    names = (eqn.primitive.name for eqn in equations(open_jaxpr(program)))
    return collections.Counter(name for name in names if name in _COUNTED)


def _is_scan(eqn: Eqn) -> bool:
    return eqn.primitive.name == "scan"


def _recomputed(policy: _Policy, prevent_cse: bool, eqn: Eqn, *operands: Value) -> Sequence[Value]:
    body = eqn.params["jaxpr"]
    types = [type_of(v) for v in open_jaxpr(body).invars]
    step = jax.checkpoint(
        lambda *values: eval_closed(body, values), policy=policy, prevent_cse=prevent_cse
    )
    params = {**eqn.params, "jaxpr": trace_closed(step, *types)}
    return bind(eqn.replace(params=params), list(operands))


# How many ends of a part are tried.
_MOST_ENDS = 4


def with_checkpointed_parts(program: Jaxpr, forward: Jaxpr) -> Iterator[Jaxpr]:
    """Variants of `forward` with parts under `jax.checkpoint`.

    The backward pass in `program` holds what a part reads, and the derivative by its result, in a
    barrier. Where the part ends does not show there, so some ends are tried.
    """
    parts = _Parts.of(program, forward)
    ends = [[*parts.ends(i)] for i in range(len(parts.read))]
    for k in range(min(max(map(len, ends), default=0), _MOST_ENDS)):
        made = forward
        for read, found in zip(parts.read, ends, strict=True):
            if found:
                made = _with_part(Graph(made), read, found[min(k, len(found) - 1)])
        yield dce(made)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Parts of a program whose backward pass recomputes them.

    **Arguments:**

    - `read`: for each part, the values that it reads and that the backward pass needs.
    - `types`: the type of the result of each.
    """

    graph: Graph
    read: Sequence[Set[Var]]
    types: Sequence[Aval]

    @classmethod
    def of(cls, program: Jaxpr, forward: Jaxpr) -> _Parts:
        graph = Graph(forward)
        known = {*forward.invars, *graph.producers}
        found: list[tuple[Set[Var], Aval]] = []
        for eqn in program.eqns:
            if eqn.primitive.name != "optimization_barrier" or eqn in graph.index:
                continue
            held = [a for a in eqn.invars if is_var(a)]
            read = {a for a in held if a in known}
            derivatives = [a for a in held if a not in known]
            # The derivative of the loss by itself is a number that is not held.
            if read and len(derivatives) < 2:
                found.append((read, (derivatives or forward.outvars)[0].aval))
        return cls(graph, [read for read, _ in found], [aval for _, aval in found])

    def ends(self, i: int) -> Iterator[Var]:
        """The values that may be the result of a part, last ones first."""
        read, aval = self.read[i], self.types[i]
        others = {v for values in self.read for v in values} - read
        for eqn in reversed(computed_from(read, self.graph.eqns)):
            (end, *more) = eqn.outvars
            if more or (end.aval.shape, end.aval.dtype) != (aval.shape, aval.dtype):
                continue
            eqns = _part(self.graph, read, end)
            used = {*read_by(eqns)}
            inner = {*computed_from(read, eqns)}
            made = [v for e in inner for v in e.outvars if v is not end]
            if (
                used.issuperset(read)
                and others.isdisjoint(made)
                and self.graph.results.isdisjoint(made)
                and all(inner.issuperset(self.graph.users.get(v, ())) for v in made)
            ):
                yield end


def _part(graph: Graph, read: Set[Var], end: Var) -> list[Eqn]:
    """The equations from some values to another, with the constants that they use."""
    needed, _ = graph.needed([end], read)
    moved = {*computed_from(read, needed)}
    varying = {*computed_from(graph.jaxpr.invars, graph.eqns)}
    return [e for e in needed if e in moved or e not in varying]


def _with_part(graph: Graph, read: Set[Var], end: Var) -> Jaxpr:
    """The program with what computes `end` from some values under `jax.checkpoint`."""
    eqns = _part(graph, read, end)
    operands = from_outside(eqns)
    body = graph.jaxpr.replace(constvars=[], invars=operands, outvars=[end], eqns=eqns)
    run = jax.checkpoint(lambda *values: eval_jaxpr(body, values)[0])
    (eqn,) = open_jaxpr(trace_closed(run, *map(type_of, operands))).eqns
    eqn = eqn.replace(invars=operands, outvars=[end])
    jaxpr, place = graph.jaxpr, graph.index[graph.producers[end]]
    return jaxpr.replace(eqns=[*jaxpr.eqns[:place], eqn, *jaxpr.eqns[place + 1 :]])
