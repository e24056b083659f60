"""Programs that differ from a given one in one literal, operand, primitive or parameter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

from invert._private.jax import Literal, is_jaxpr, open_jaxpr
from invert.ir import jaxprs

# Primitives that take one another's place: the same operands, parameters and results.
_SIBLINGS = {
    a: b
    for pair in (
        (lax.max_p, lax.min_p),
        (lax.lt_p, lax.le_p),
        (lax.ge_p, lax.gt_p),
        (lax.eq_p, lax.ne_p),
        (lax.and_p, lax.or_p),
        (lax.add_p, lax.sub_p),
        (lax.real_p, lax.imag_p),
        (lax.shift_left_p, lax.shift_right_logical_p),
        (lax.floor_p, lax.ceil_p),
        (lax.reduce_and_p, lax.reduce_or_p),
        (lax.reduce_max_p, lax.reduce_min_p),
    )
    for a, b in (pair, pair[::-1])
}
_COMMUTATIVE = frozenset(
    (lax.add_p, lax.mul_p, lax.max_p, lax.min_p, lax.and_p, lax.or_p, lax.xor_p, lax.eq_p, lax.ne_p)
)
# Characters of LAPACK's options, which their attributes hold as numbers.
_OPTIONS = {"76 : ui8": "85 : ui8", "85 : ui8": "76 : ui8", "82 : ui8": "76 : ui8"}
_OPTIONS |= {"78 : ui8": "84 : ui8", "84 : ui8": "78 : ui8", "true": "false", "false": "true"}


def perturbed(closed: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield changes and the changed programs, with unchanged argument and result types.

    Equations come in random order; each is changed once before any is changed again.
    """
    eqns = list({id(e): e for e in jaxprs.equations(open_jaxpr(closed))}.values())
    pending = [(eqn, _changes(eqn)) for eqn in rng.sample(eqns, len(eqns))]
    while pending:
        for eqn, changes in list(pending):
            found = next(changes, None)
            if found is None:
                pending.remove((eqn, changes))
                continue
            what, new = found
            yield f"{what} of {eqn.primitive.name}", _with(closed, eqn, new)


def _with(closed: Any, old: Any, new: Any) -> Any:
    def change(jaxpr: Any) -> Any:
        if not any(e is old for e in jaxpr.eqns):
            return jaxpr
        return jaxpr.replace(eqns=[new if e is old else e for e in jaxpr.eqns])

    return jaxprs.map_jaxprs(closed, change)


def _changes(eqn: Any) -> Iterator[tuple[str, Any]]:
    for i, atom in enumerate(eqn.invars):
        if isinstance(atom, Literal) and np.ndim(atom.val) == 0:
            new = Literal(_other(np.asarray(atom.val)), atom.aval)
            yield f"literal {atom.val}", _operands(eqn, {i: new})
    if eqn.primitive not in _COMMUTATIVE:
        for i in range(1, len(eqn.invars)):
            a, b = eqn.invars[i - 1], eqn.invars[i]
            both = isinstance(a, Literal) and isinstance(b, Literal)
            if a is not b and not both and _type(a) == _type(b):
                yield f"order of operands {i - 1} and {i}", _operands(eqn, {i - 1: b, i: a})
    if eqn.primitive in _SIBLINGS and _types(eqn, _SIBLINGS[eqn.primitive], eqn.params):
        yield "name", eqn.replace(primitive=_SIBLINGS[eqn.primitive])
    if eqn.primitive is lax.slice_p:
        for step in (1, -1):
            params = {**eqn.params, **_shifted(eqn, step)}
            if _types(eqn, eqn.primitive, params):
                yield f"place {eqn.params['start_indices']}", eqn.replace(params=params)
    for name, value in eqn.params.items():
        for new in _other_params(name, value):
            params = {**eqn.params, name: new}
            if _types(eqn, eqn.primitive, params):
                yield f"parameter {name}={value}", eqn.replace(params=params)


def _operands(eqn: Any, new: dict[int, Any]) -> Any:
    return eqn.replace(invars=[new.get(i, a) for i, a in enumerate(eqn.invars)])


def _type(atom: Any) -> tuple[Any, Any]:
    return atom.aval.shape, atom.aval.dtype


def _other(value: np.ndarray) -> Any:
    if value.dtype == bool:
        return np.logical_not(value)[()]
    if value.dtype.kind in "iu":
        up = value != np.iinfo(value.dtype).max
        return (value + value.dtype.type(1) if up else value - value.dtype.type(1))[()]
    one = np.ones((), value.dtype)
    if not np.isfinite(value):
        return -value[()] if not np.isnan(value) else one[()]
    return (value * value.dtype.type(0.75) if value else one)[()]


def _other_params(name: str, value: Any) -> Iterator[Any]:
    """Other values of a parameter, valid or not."""
    if name == "weak_type":  # no part of a module
        return
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif name == "attributes":  # of custom calls
        for i, (key, text) in enumerate(value):
            for old, new in _OPTIONS.items():
                if old in text:
                    pair = (key, text.replace(old, new, 1))
                    yield (*value[:i], pair, *value[i + 1 :])
    elif name == "start_indices":
        yield tuple(max(n - 1, 0) for n in value)
    elif type(value) is tuple and value and all(isinstance(v, (int, tuple)) for v in value):
        for i, v in enumerate(value):
            new = tuple(reversed(v)) if isinstance(v, tuple) else v + 1
            yield (*value[:i], new, *value[i + 1 :])
        yield tuple(reversed(value))


def _shifted(eqn: Any, step: int) -> dict[str, tuple[int, ...]]:
    """A slice moved by `step` along the first axis that it does not cover."""
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    shape = eqn.invars[0].aval.shape
    axes = [i for i, n in enumerate(shape) if (starts[i], limits[i]) != (0, n)]
    move = [step if i in axes[:1] else 0 for i in range(len(shape))]
    return {
        "start_indices": tuple(map(sum, zip(starts, move, strict=True))),
        "limit_indices": tuple(map(sum, zip(limits, move, strict=True))),
    }


def _types(eqn: Any, primitive: Any, params: dict[str, Any]) -> bool:
    """Whether the equation is valid with these parameters, with unchanged result types."""
    if any(is_jaxpr(v) for v in params.values()) or params == eqn.params:
        return primitive is not eqn.primitive and params == eqn.params
    avals = [jax.ShapeDtypeStruct(*_type(a)) for a in eqn.invars]
    try:
        found = jax.eval_shape(lambda *xs: primitive.bind(*xs, **params), *avals)
    except (TypeError, ValueError, NotImplementedError, IndexError, AssertionError):
        return False
    results = found if primitive.multiple_results else [found]
    return [(r.shape, r.dtype) for r in results] == [_type(v) for v in eqn.outvars]
