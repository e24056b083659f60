"""`logits, pullback = jax.vjp(model, params)`: derivatives, apart from what they start with."""

from __future__ import annotations

import dataclasses

import numpy as np
from jax.extend.core import Primitive

from invert._private.jax import open_jaxpr, rename_operands, renamed
from invert.ir.graph import is_var
from invert.ir.jaxprs import copied
from invert.ir.types import Atom, Eqn, Jaxpr, Params, ShapedArray, Var
from invert.ir.value_and_grad import reads, value_and_grad_p

_FORWARD, _PULLED_BACK = Primitive("forward"), Primitive("pulled_back")
_FORWARD.multiple_results = _PULLED_BACK.multiple_results = True


@dataclasses.dataclass(eq=False)
class Forward(Eqn):
    """The program that is differentiated. Its last result stands for the function of derivatives.

    **Arguments:**

    - `ends`: the number of results that have cotangents.
    """

    eqn: Eqn
    invars: list[Atom]
    outvars: list[Var]
    ends: int
    primitive: Primitive = _FORWARD
    params: Params = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class PulledBack(Eqn):
    """The derivatives, from the function of them and the cotangents."""

    forward: Forward
    invars: list[Atom]
    outvars: list[Var]
    primitive: Primitive = _PULLED_BACK
    params: Params = dataclasses.field(default_factory=dict)


def unpacked(jaxpr: Jaxpr) -> Jaxpr:
    """The body, with what computes cotangents as equations of it."""
    if not any(map(_has_cotangents, jaxpr.eqns)):
        return jaxpr
    eqns, names = list[Eqn](), dict[Var, Atom]()
    for eqn in jaxpr.eqns:
        own = rename_operands(eqn, names)
        eqns += _unpacked(own, names) if _has_cotangents(own) else [own]
    return jaxpr.replace(eqns=eqns, outvars=renamed(jaxpr.outvars, names))


def _has_cotangents(eqn: Eqn) -> bool:
    return eqn.primitive is value_and_grad_p and eqn.params["cotangents"] is not None


def _unpacked(eqn: Eqn, names: dict[Var, Atom]) -> list[Eqn]:
    """The equations for one; `names` receives results that are other values."""
    closed, ends, count = (eqn.params[k] for k in ("jaxpr", "ends", "count"))
    split = reads(closed, eqn.params["cotangents"])
    given = open_jaxpr(eqn.params["cotangents"])
    results = eqn.outvars[: len(open_jaxpr(closed).outvars)]
    more = eqn.outvars[len(results) : len(eqn.outvars) - count]
    pullback = Var(ShapedArray((), np.dtype(bool)))
    forward = Forward(eqn, eqn.invars[split:], [*results, pullback], ends)
    env: dict[Var, Atom] = dict(zip(given.invars, (*results, *eqn.invars[:split]), strict=True))
    for a, v in zip(given.outvars[ends:], more, strict=True):
        if is_var(a) and a not in env:
            env[a] = v  # which the body reads
    eqns = copied(given.eqns, env)
    made = [env[a] if is_var(a) else a for a in given.outvars]
    names |= {v: a for v, a in zip(more, made[ends:], strict=True) if v is not a}
    derived = eqn.outvars[len(eqn.outvars) - count :]
    return [forward, *eqns, PulledBack(forward, [pullback, *made[:ends]], derived)]
