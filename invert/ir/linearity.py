"""Whether a program is linear in some of its arguments, as its equations alone show."""

from __future__ import annotations

from typing import Any

import numpy as np

from invert._private.jax import core, open_jaxpr
from invert.ir import jaxprs

# Linear in all operands together: zero operands may stand among linear ones.
_ADDITIVE = frozenset(("add", "sub", "add_any", "concatenate", "pad", "dynamic_update_slice"))
# Linear in each operand where the others are fixed.
_PRODUCTS = frozenset(("mul", "dot_general", "conv_general_dilated"))
# Linear in the first operand; the others, which are indices, are fixed.
_FIRST = frozenset(
    (
        *("neg", "reshape", "broadcast_in_dim", "transpose", "slice", "squeeze", "rev", "copy"),
        *("reduce_sum", "cumsum", "expand_dims", "div"),
        *("dynamic_slice", "gather", "reduce_window_sum", "convert_element_type", "split"),
    )
)


def is_linear(closed: Any, arguments: int) -> bool:
    """Whether the results are linear in the last `arguments` arguments.

    `False` says only that these rules do not show it.
    """
    jaxpr, constants = jaxprs.split_constants(closed)
    held = dict(zip(jaxpr.invars, constants, strict=False))
    zeros = {v for v, c in held.items() if not np.any(np.asarray(c))}
    start = len(jaxpr.invars) - arguments
    found = _walk(jaxpr, set(jaxpr.invars[start:]), zeros)
    return found is not None and all(found)


def _walk(jaxpr: Any, linear: set[Any], zeros: set[Any]) -> list[bool] | None:
    """Whether each result is linear or zero; `None` where an equation is neither shown to be linear
    nor independent."""

    def is_zero(atom: Any) -> bool:
        return not np.any(atom.val) if isinstance(atom, core.Literal) else atom in zeros

    def fits(atom: Any) -> bool:
        return is_zero(atom) or (not isinstance(atom, core.Literal) and atom in linear)

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        touched = [not isinstance(a, core.Literal) and a in linear for a in eqn.invars]
        if not any(touched):
            if name in _FIRST and is_zero(eqn.invars[0]):
                zeros.update(eqn.outvars)
            continue
        if name == "jit":
            inner = open_jaxpr(eqn.params["jaxpr"])
            if inner.constvars:
                return None
            pairs = list(zip(inner.invars, eqn.invars, strict=True))
            inside = _walk(
                inner,
                {v for (v, _), t in zip(pairs, touched, strict=True) if t},
                {v for v, a in pairs if is_zero(a)},
            )
            if inside is None or not all(inside):
                return None
        elif name in _ADDITIVE:
            # The last operands of a dynamic_update_slice are places.
            operands = eqn.invars[:2] if name == "dynamic_update_slice" else eqn.invars
            if not all(map(fits, operands)) or any(touched[len(operands) :]):
                return None
        elif name in _PRODUCTS:
            if sum(touched) != 1:
                return None
        elif name == "select_n":
            if touched[0] or not all(map(fits, eqn.invars[1:])):
                return None
        elif name not in _FIRST or any(touched[1:]) or not _is_inexact(eqn):
            return None
        linear.update(eqn.outvars)
    return [fits(a) for a in jaxpr.outvars]


def _is_inexact(eqn: Any) -> bool:
    """Whether numbers stay floats: a conversion to integers rounds."""
    kinds = {np.dtype(v.aval.dtype).kind for v in (eqn.invars[0], *eqn.outvars)}
    return not kinds & set("biu")
