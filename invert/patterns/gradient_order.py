"""Barriers that keep XLA from computing the gradients of later blocks anew in earlier ones.

Reverse mode adds up the gradient of a value from its last use to its first. The gradient of a sum,
such as the mean of a layer normalization, is broadcast, and the sum is often the first use. XLA
repeats an addition whose operand is broadcast in every fusion that reads its result. In a stack of
residual blocks these additions chain, so that each gradient is computed anew from those of all
later blocks. Behind a barrier, which changes nothing, all uses but the last have a gradient of
their own, so that the last addition has no broadcast operand.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

from jax import lax

from invert._private.jax import open_jaxpr, rename_operands, trace_closed
from invert.ir.graph import is_var, read_by
from invert.ir.jaxprs import map_jaxprs
from invert.ir.types import ClosedJaxpr, Eqn, Jaxpr, Var


def regrouped(closed: ClosedJaxpr, pays: Callable[[str], bool]) -> ClosedJaxpr | None:
    """The program with barriers where they pay for a kind of value; `None` if there are none."""
    found = map_jaxprs(closed, lambda jaxpr: _with_barriers(jaxpr, pays))
    return None if found is closed else found


def _with_barriers(jaxpr: Jaxpr, pays: Callable[[str], bool]) -> Jaxpr:
    reads: dict[Var, list[int]] = collections.defaultdict(list)
    for i, eqn in enumerate(jaxpr.eqns):
        for v in read_by([eqn]):
            reads[v].append(i)
    results = set(filter(is_var, jaxpr.outvars))
    behind = {v for e in jaxpr.eqns if e.primitive is lax.optimization_barrier_p for v in e.outvars}
    barriers: dict[int, list[Eqn]] = collections.defaultdict(list)
    names: dict[int, dict[Var, Var]] = collections.defaultdict(dict)
    for v, places in reads.items():
        others = places if v in results else places[:-1]
        if (
            v in behind
            or len(others) < 2
            or jaxpr.eqns[others[0]].primitive.name != "reduce_sum"
            or not pays(_kind(v))
        ):
            continue
        barrier = _barrier(v, jaxpr.eqns[others[0]])
        barriers[others[0]].append(barrier)
        for i in others:
            names[i][v] = barrier.outvars[0]
    if not barriers:
        return jaxpr
    eqns: list[Eqn] = []
    for i, eqn in enumerate(jaxpr.eqns):
        eqns += [*barriers[i], rename_operands(eqn, names[i])]
    return jaxpr.replace(eqns=eqns)


def _kind(v: Var) -> str:
    return f"{v.aval.dtype.name}, {len(v.aval.shape)} axes"


def _barrier(v: Var, near: Eqn) -> Eqn:
    """A barrier for a value, with the scope of an equation."""
    program = open_jaxpr(trace_closed(lax.optimization_barrier, v.aval))
    (eqn,) = program.eqns
    return eqn.replace(invars=[v], source_info=near.source_info)
