"""Loops whose number of steps depends on data, in programs without a stored gradient.

JAX's error for their reverse derivative names no function. That of an implicit solver has a
derivative of its author, but lowering leaves the loop alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from invert._private.jax import holds_jaxprs, sub_jaxprs
from invert.gradients.compare import counts
from invert.ir import jaxprs
from invert.ir.avals import is_differentiable
from invert.ir.graph import reads
from invert.ir.loops import WhileParts
from invert.ir.match import place_of
from invert.ir.sizes import is_open
from invert.ir.types import Eqn, Jaxpr


def _forward_only_loops(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """The outermost loops without a reverse derivative that depend on number arguments."""
    moved = {v for v in jaxpr.invars if is_differentiable(v.aval)}
    for eqn in jaxpr.eqns:
        if not reads(eqn, moved):
            continue
        moved.update(v for v in eqn.outvars if is_differentiable(v.aval))
        if _is_forward_only(eqn):
            yield eqn
        elif holds_jaxprs(eqn) and not eqn.primitive.name.startswith("custom_"):
            for inner in sub_jaxprs(eqn):
                yield from _forward_only_loops(inner)


def note_on_loops(jaxpr: Jaxpr, entry: str, remedy: str) -> list[str]:
    """A line for the report, if there are such loops at any sizes."""
    if "while" not in jaxprs.names_in(jaxpr):
        return []
    loops = _forward_only_loops(jaxpr)
    if any(is_open(n) for v in jaxpr.invars for n in v.aval.shape):
        # At given sizes those that count to one have a reverse derivative.
        loops = (eqn for eqn in loops if not counts(WhileParts.of(eqn).cond))
    subjects = dict.fromkeys(_subject(eqn, entry) for eqn in loops)
    if not subjects:
        return []
    first, *others = subjects
    also = f" (and {len(others)} more)" if others else ""
    return [f"{first}{also} has the derivative of its steps, in forward mode only. {remedy}"]


def _is_forward_only(eqn: Eqn) -> bool:
    return eqn.primitive.name == "while" and any(is_differentiable(v.aval) for v in eqn.outvars)


def _subject(eqn: Eqn, entry: str) -> str:
    return f"The loop in {place_of(eqn) or entry}, whose number of steps depends on data,"
