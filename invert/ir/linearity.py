"""Proves that a program is linear in some arguments, from its equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from invert._private.jax import open_jaxpr
from invert.ir import jaxprs, kinds
from invert.ir.interpret import interpret
from invert.ir.types import AnyJaxpr, Eqn, Literal, Value


class _Fact(NamedTuple):
    """Facts about a value."""

    linear: bool = False
    zero: bool = False


class _NotShown(Exception):
    """An equation is not known to be linear."""


def is_linear(closed: AnyJaxpr, arguments: int) -> bool:
    """Return whether the results are linear in the last `arguments` arguments.

    `False` means only that these rules do not prove it.
    """
    jaxpr, constants = jaxprs.split_constants(closed)
    facts = [_of_number(c) for c in constants]
    facts += [_Fact()] * (len(jaxpr.invars) - arguments - len(constants))
    facts += [_Fact(linear=True)] * arguments
    try:
        return _are_shown(interpret(jaxpr, facts, _on_eqn, _of_literal))
    except _NotShown:
        return False


def _of_number(value: Value) -> _Fact:
    return _Fact(zero=not np.any(np.asarray(value)))


def _of_literal(literal: Literal) -> _Fact:
    return _of_number(literal.val)


def _are_shown(facts: Sequence[_Fact]) -> bool:
    return all(fact.linear or fact.zero for fact in facts)


def _on_eqn(eqn: Eqn, operands: list[_Fact]) -> list[_Fact]:
    name = eqn.primitive.name
    touched = [x.linear for x in operands]
    if not any(touched):
        zero = name in kinds.LINEAR and operands[0].zero
        return [_Fact(zero=zero) for _ in eqn.outvars]
    if name == "jit":
        inner = open_jaxpr(eqn.params["jaxpr"])
        shown = not inner.constvars and _are_shown(interpret(inner, operands, _on_eqn, _of_literal))
    elif name in kinds.ADDITIVE:
        # The last operands of a dynamic_update_slice are indices.
        count = 2 if name == "dynamic_update_slice" else len(operands)
        shown = _are_shown(operands[:count]) and not any(touched[count:])
    elif name in kinds.PRODUCTS:
        shown = sum(touched) == 1
    elif name == "select_n":
        shown = not touched[0] and _are_shown(operands[1:])
    else:
        shown = name in kinds.LINEAR and not any(touched[1:]) and _is_inexact(eqn)
    if not shown:
        raise _NotShown
    return [_Fact(linear=True) for _ in eqn.outvars]


def _is_inexact(eqn: Eqn) -> bool:
    """Return whether operand and results are inexact: a conversion to integers rounds."""
    kinds = {np.dtype(v.aval.dtype).kind for v in (eqn.invars[0], *eqn.outvars)}
    return not kinds & set("biu")
