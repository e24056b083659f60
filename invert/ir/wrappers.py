"""Inlines the wrappers of `jax.numpy`, and computes what is then known of their numbers."""

from __future__ import annotations

import collections
from typing import cast

import numpy as np
from jax import lax

from invert._private.jax import close_like, names_of, open_jaxpr, with_names
from invert.ir.avals import is_weak, type_of
from invert.ir.jaxprs import with_inlined
from invert.ir.passes import Made, rewritten
from invert.ir.types import AnyJaxpr, Atom, Eqn, JaxFunction, Jaxpr, Literal, ShapedArray, Var

# Functions of `jax.numpy` that JAX wraps in `jit`. Source may contain their few equations
# directly.
_WRAPPERS = frozenset(
    """_where _take _flip _pad dynamic_index_in_dim dynamic_update_index_in_dim silu hard_silu
    hard_sigmoid identity clip""".split()
)
# A function without a name, which source need not have either.
_ANONYMOUS = "<lambda>"


def unwrapped(jaxpr: Jaxpr) -> Jaxpr:
    """Inline calls of such wrappers and of functions without a name, and compute numbers."""

    def number(eqn: Eqn) -> Made | None:
        if _is_number(eqn):
            return [], [_converted(eqn)]
        return None if (case := _case(eqn)) is None else ([], [case])

    anonymous = [e for e in jaxpr.eqns if _is_call(e) and e.params["name"] == _ANONYMOUS]
    calls = collections.Counter(id(e.params["jaxpr"]) for e in anonymous)

    def called(eqn: Eqn) -> AnyJaxpr | None:
        # A function that is called again is worth a name.
        return _wrapped(eqn) if calls[id(eqn.params.get("jaxpr"))] < 2 else None

    return rewritten(with_inlined(jaxpr, called), number)


# `jnp.diagonal` has a branch for kernels of TPUs, in which no whole program runs.
_OUTSIDE_KERNELS = (("mosaic",), None)


def _wrapped(eqn: Eqn) -> AnyJaxpr | None:
    """The equations of a wrapper, in the name scopes of its call."""
    if eqn.params.get("branches_platforms") == _OUTSIDE_KERNELS:
        branch = eqn.params["branches"][-1]
        inner = unwrapped(open_jaxpr(branch))
        return close_like(branch, inner.replace(invars=[Var(eqn.invars[0].aval), *inner.invars]))
    if not _is_call(eqn) or eqn.params["name"] not in (*_WRAPPERS, _ANONYMOUS):
        return None
    inner = unwrapped(open_jaxpr(eqn.params["jaxpr"]))
    own = eqn.params["name"] == _ANONYMOUS
    scopes = [(*names_of(eqn), *(names_of(e) if own else ())) for e in inner.eqns]
    inner = inner.replace(eqns=[with_names(e, s) for e, s in zip(inner.eqns, scopes, strict=True)])
    return close_like(eqn.params["jaxpr"], inner)


def _is_call(eqn: Eqn) -> bool:
    return eqn.primitive.name == "jit"


_INDEX_OPS: dict[str, JaxFunction] = {
    "lt": np.less, "add": np.add, "max": np.maximum, "min": np.minimum,
    "select_n": lambda case, *cases: cases[int(case)],
}  # fmt: skip


def _is_number(eqn: Eqn) -> bool:
    """Return whether an equation converts a number, or adjusts a constant index or a bound."""
    if eqn.primitive.name in _INDEX_OPS:
        return all(
            isinstance(a, Literal) and not a.aval.shape and a.aval.dtype.kind in "bi"
            for a in eqn.invars
        )
    if eqn.primitive is not lax.convert_element_type_p or not isinstance(eqn.invars[0], Literal):
        return False
    return not eqn.invars[0].aval.shape and eqn.params.get("sharding") is None


def _case(eqn: Eqn) -> Atom | None:
    """The case that a constant chooses, such as `n - 1` where an index is -1 and a size is open."""
    if eqn.primitive.name != "select_n" or not isinstance(which := eqn.invars[0], Literal):
        return None
    case, (out,) = eqn.invars[1 + int(which.val)] if not which.aval.shape else which, eqn.outvars
    same = type_of(case) == type_of(out) and is_weak(case) == is_weak(out)
    return case if same else None


def _converted(eqn: Eqn) -> Literal:
    dtype = eqn.outvars[0].aval.dtype
    values = [np.asarray(cast(Literal, a).val, a.aval.dtype) for a in eqn.invars]
    compute = _INDEX_OPS.get(eqn.primitive.name)
    number = (values[0] if compute is None else np.asarray(compute(*values))).astype(dtype)
    return Literal(number, ShapedArray((), dtype))
