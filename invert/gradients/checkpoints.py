"""Finds loops whose steps the author recomputes in the backward pass.

`jax.checkpoint` leaves no trace in a forward program. The container's gradient shows it: instead of
storing what the derivative of a step needs, it runs the step again.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Sequence

import jax

from invert._private.jax import eval_closed, open_jaxpr, trace_closed
from invert.gradients.region import MarkedRegion
from invert.ir.avals import type_of
from invert.ir.interpret import bind
from invert.ir.jaxprs import equations, names_in
from invert.ir.types import AnyJaxpr, Eqn, Value

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


def with_checkpoints(region: MarkedRegion, raw: AnyJaxpr) -> Iterator[MarkedRegion]:
    """Variants of `region` whose scans recompute their steps, if the gradient computes more."""
    names = names_in(open_jaxpr(raw))
    if names.isdisjoint(("scan", "while")) or "scan" not in names_in(open_jaxpr(region.forward)):
        return
    if not _counts(raw) - _counts(_traced(region)):
        return
    tried: list[collections.Counter[str]] = []
    for policy in _POLICIES:
        run = functools.partial(_recomputed, policy, "optimization_barrier" in names)
        other = region.with_instead(_is_scan, run)
        if other is None:
            continue
        traced = _traced(other)
        # One that computes less cannot be the gradient, and a proof takes long. Where two policies
        # store the same, they recompute as much.
        every = collections.Counter(e.primitive.name for e in equations(open_jaxpr(traced)))
        if every not in tried and not _counts(raw) - _counts(traced):
            tried.append(every)
            yield other


def _traced(region: MarkedRegion) -> AnyJaxpr:
    return trace_closed(region.autodiff, *region.avals)


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
