"""Rewrites gradients without arrays of no elements.

`lax.associative_scan` computes with the empty halves of short arrays. Where the steps invert
matrices, as in a Kalman filter, the inverse of none is not recognized and has another derivative,
on which nothing depends. What is left agrees up to the sign of zeros.
"""

from __future__ import annotations

import numpy as np

from invert._private.jax import dce, open_jaxpr
from invert.ir.jaxprs import broadcast_in_place_of, equations, map_jaxprs
from invert.ir.passes import Made, rewritten
from invert.ir.types import Atom, ClosedJaxpr, Eqn, Literal, ShapedArray, Var

# The operand that an update writes. Where that is empty, its first operand is the result.
_WRITTEN = {"scatter": 2, "scatter-add": 2, "dynamic_update_slice": 1}
# Zero where an operand is empty.
_SUMS = frozenset(("reduce_sum", "dot_general"))


def without_empty_arrays(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Remove what depends on arrays of no elements; the program itself if there are none."""
    if not any(_is_empty(v) for e in equations(open_jaxpr(closed)) for v in e.outvars):
        return closed
    return map_jaxprs(closed, lambda jaxpr: dce(rewritten(jaxpr, _WithoutEmpty())))


def _is_empty(atom: Atom) -> bool:
    return 0 in atom.aval.shape


class _WithoutEmpty:
    """Equations of one jaxpr, with zeros in place of sums of empty arrays."""

    def __init__(self) -> None:
        self._zeros = set[Atom]()

    def __call__(self, eqn: Eqn) -> Made | None:
        name, operands = eqn.primitive.name, eqn.invars
        if any(map(_is_empty, eqn.outvars)):
            return self._with_empty_results(eqn)
        if name in ("add", "add_any") and (other := self._other(operands)) is not None:
            return [], [other]
        if name in _WRITTEN and _is_empty(operands[_WRITTEN[name]]):
            return [], operands[:1]
        if name == "concatenate" and any(map(_is_empty, operands)):
            (*full,) = (a for a in operands if not _is_empty(a))
            return ([], full) if len(full) == 1 else ([eqn.replace(invars=full)], eqn.outvars)
        if name == "pad" and _is_empty(operands[0]):
            return self._filled(eqn, operands[1], eqn.outvars[0])
        if name in _SUMS and any(map(_is_empty, operands)):
            (out,) = eqn.outvars
            return self._filled(eqn, _zero(out), out)
        if name == "broadcast_in_dim" and _is_zero(operands[0]):
            self._zeros.add(eqn.outvars[0])
        return None

    def _other(self, operands: list[Atom]) -> Atom | None:
        """The term that is not zero, if one is."""
        x, y = operands
        if isinstance(x, Literal) or isinstance(y, Literal) or x.aval.shape != y.aval.shape:
            return None
        return y if x in self._zeros else x if y in self._zeros else None

    def _with_empty_results(self, eqn: Eqn) -> Made:
        eqns: list[Eqn] = [] if all(map(_is_empty, eqn.outvars)) else [eqn]
        results: list[Atom] = []
        for v in eqn.outvars:
            if _is_empty(v):
                v = Var(v.aval)
                eqns.append(broadcast_in_place_of(eqn, _zero(v), v, ()))
            results.append(v)
        return eqns, results

    def _filled(self, eqn: Eqn, number: Atom, out: Var) -> Made:
        if _is_zero(number):
            self._zeros.add(out)
        return [broadcast_in_place_of(eqn, number, out, ())], [out]


def _zero(v: Var) -> Literal:
    return Literal(np.zeros((), v.aval.dtype)[()], ShapedArray((), v.aval.dtype))


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not atom.aval.shape and not atom.val
