"""What programs lower to, worked out for each equation by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import jax

from invert._opaque import custom_call_p
from invert._private.jax import bind_equation, consts_of, eval_closed, open_jaxpr
from invert.ir import jaxprs
from invert.ir.graph import is_var
from invert.ir.interpret import bind as bound
from invert.ir.interpret import retrace
from invert.ir.match import difference
from invert.ir.normal_form import atom_key, normal_form, operation_key
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Value
from invert.rewriting.pattern import Call, bind
from invert.rewriting.templates import raise_call


def lower_alike(
    a: AnyJaxpr, b: AnyJaxpr, constants: Sequence[Value], *, platform: str, x64: bool
) -> bool:
    """Whether two programs are equal once their equations are replaced by what these lower to.

    First only the equations of kinds that the other program does not have are replaced, then all.
    What an equation lowers to is kept by its primitive, parameters and types, so a later program
    is compared without lowering anything.

    **Arguments:**

    - `a`, `b`: programs of the same arguments.
    - `constants`: the values of the leading ones, where known.
    - `platform`, `x64`: for what and with which types they are lowered.

    **Returns:** also `False` if an equation does not lower by itself, or has effects.
    """
    programs = [normal_form(jaxprs.as_lowered(p)) for p in (a, b)]
    kinds = [{_kind(e) for e in jaxprs.equations(open_jaxpr(p))} for p in programs]
    for kept in (kinds[0] & kinds[1], set[Hashable]()):
        try:
            one, two = (_Expansion(kept, platform, x64)(p) for p in programs)
        except _DoesNotLower:
            return False
        if difference(one, two, constants) is None:
            return True
    return False


class _DoesNotLower(Exception):
    """An equation that cannot be replaced by what it lowers to."""


class _Expansion:
    """Replaces the equations of a program by what they lower to, unless `kept` has their kind."""

    def __init__(self, kept: set[Hashable], platform: str, x64: bool):
        self._kept, self._platform, self._x64 = kept, platform, x64

    def __call__(self, program: AnyJaxpr) -> AnyJaxpr:
        return normal_form(jaxprs.as_lowered(jaxprs.map_jaxprs(program, self._expanded)))

    def _expanded(self, jaxpr: Jaxpr) -> Jaxpr:
        if jaxpr.constvars or jaxpr.effects:
            raise _DoesNotLower
        templates = {e: t for e in jaxpr.eqns if (t := self._template(e)) is not None}
        if not templates:
            return jaxpr

        def on_eqn(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
            template = templates.get(eqn)
            if template is None:
                return bound(eqn, operands)
            pairs = zip(eqn.invars, operands, strict=True)
            return eval_closed(template, [value for a, value in pairs if is_var(a)])

        closed = retrace(jaxpr, on_eqn)
        if consts_of(closed):  # which an inner jaxpr cannot have
            raise _DoesNotLower
        return open_jaxpr(closed)

    def _template(self, eqn: Eqn) -> AnyJaxpr | None:
        # The jaxprs of loops and branches are expanded themselves.
        if eqn.primitive is custom_call_p or eqn.primitive.name in ("while", "cond"):
            return None
        kind = _kind(eqn)
        if kind is not None and kind in self._kept:
            return None
        template = raise_call(_call(eqn, kind, self._x64), self._platform)
        if template is None:
            raise _DoesNotLower
        return template


def _call(eqn: Eqn, kind: Hashable | None, x64: bool) -> Call:
    """An equation as a call of the operands that are not literals.

    Without literals it is the call that a pattern proposes, which was lowered already.
    """
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars if is_var(a)]
    if kind is not None and len(avals) == len(eqn.invars):
        return dataclasses.replace(bind(eqn.primitive, *avals, **eqn.params), x64=x64)

    def run(*values: Value) -> list[Value]:
        rest = iter(values)
        return bind_equation(eqn, [next(rest) if is_var(a) else a.val for a in eqn.invars])

    return Call(kind, run, tuple(avals), x64=x64, of_site=kind is None)


def _kind(eqn: Eqn) -> Hashable | None:
    """What an equation does, and with operands of which types."""
    operation = operation_key(eqn)
    return None if operation is None else (operation, tuple(map(_operand, eqn.invars)))


def _operand(atom: Atom) -> Hashable:
    return (atom.aval.shape, atom.aval.dtype) if is_var(atom) else atom_key(atom)
