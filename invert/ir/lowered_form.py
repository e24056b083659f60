"""Normal form of programs that lower alike, for certificates.

What lowering erases is removed: calls are inlined, and carries of loops have one order. Derivatives
are not compared; `traced_form` does that. A certificate is only as good as this module, so it does
no more than certificates need.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from invert._private.jax import close_like, open_jaxpr, random_unwrap_p, random_wrap_p
from invert.ir import jaxprs, kinds
from invert.ir.carries import equal_carries, sharing, with_unchanged_closed_over
from invert.ir.closed_over import order_of_use, with_each_operand_once
from invert.ir.counted import counted
from invert.ir.graph import is_var
from invert.ir.loops import WhileParts
from invert.ir.merging import atom_key, merge_equations, operation_key, type_key
from invert.ir.narrow_operands import BROADCASTING, is_implied, narrowable
from invert.ir.passes import Made
from invert.ir.sizes import is_open
from invert.ir.types import AnyJaxpr, Atom, Eqn, J, Jaxpr, Literal, ShapedArray, Var

_T = TypeVar("_T")


def lowered_form(closed: J) -> J:
    """Inline calls, merge equal equations and carries, and order the carries of loops.

    A TensorFlow graph does not determine which equations form a function. A `scan` reads an array
    once where the graph may read it twice per step. It has a counter even if its body counts too,
    and it carries states before the arrays that it fills. It closes over what no step changes; a
    graph may carry this, since calls and branches hide that it stays the same. Loops and branches
    take a value once where the calls around them took it as two arguments. An
    `optimization_barrier`, as of `jax.checkpoint`, holds values in order of use. Custom calls stay
    unchanged.
    """
    closed = jaxprs.map_jaxprs(without_calls(closed), _with_ordered_barriers)
    closed = with_each_operand_once(closed)
    merged = jaxprs.map_jaxprs(closed, lambda jaxpr: merge_equations(jaxpr, _Simplest()))
    return jaxprs.canonicalize(merged)


# Functions that call each other twice have a number of equations that is exponential in theirs.
_MOST_INLINED = 1 << 20


def has_too_many_calls(program: AnyJaxpr) -> bool:
    """Return whether a program is too large to be inlined, and to be compiled."""
    jaxpr = open_jaxpr(program)
    # What is large without its calls takes long anyway.
    return jaxprs.inlined_count(jaxpr) > max(
        _MOST_INLINED, 8 * sum(1 for _ in jaxprs.equations(jaxpr))
    )


def without_calls(closed: J) -> J:
    """Inline calls, as the compiler does, unless they are too many."""
    return closed if has_too_many_calls(closed) else jaxprs.map_jaxprs(closed, _opened)


# The rules of other calls, and what `jax.checkpoint` recomputes, are compared too.
_INLINED = kinds.CALLS.keys() - kinds.WITH_RULES - {kinds.CHECKPOINT}


def _opened(jaxpr: Jaxpr) -> Jaxpr:
    if jaxpr.constvars:
        return jaxpr
    return jaxprs.with_inlined(jaxpr, lambda e: kinds.called(e, _INLINED))


def _with_ordered_barriers(jaxpr: Jaxpr) -> Jaxpr:
    """Order what each `optimization_barrier` holds by its use."""
    barriers = [e for e in jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    if not barriers:
        return jaxpr
    held = [v for eqn in barriers for v in eqn.outvars]
    place = {held[i]: k for k, i in enumerate(order_of_use(jaxpr, held, through=True))}

    def visit(eqn: Eqn) -> Eqn:
        if eqn.primitive.name != "optimization_barrier":
            return eqn
        pairs = zip(eqn.invars, eqn.outvars, strict=True)
        kept = sorted((p for p in pairs if p[1] in place), key=lambda p: place[p[1]])
        return eqn.replace(invars=[a for a, _ in kept], outvars=[v for _, v in kept])

    return jaxprs.with_equations(jaxpr, [visit(e) for e in jaxpr.eqns])


class _Simplest:
    """Equations of one jaxpr in their simplest form."""

    def __init__(self) -> None:
        self._of_keys: dict[Atom, Eqn] = {}
        self._broadcasts: dict[Atom, Eqn] = {}

    def __call__(self, eqn: Eqn) -> Made | None:
        """An equation in place of one, or none if its result is an operand."""
        if eqn.primitive.name == "while":
            loop, results = _with_each_carry_once(eqn)
            results = _with_count(eqn, results)
            loop, starts = with_unchanged_closed_over(loop)
            return [_in_one_order(loop)], [starts.get(a, a) if is_var(a) else a for a in results]
        if jaxprs.broadcasts(eqn):
            x = eqn.invars[0]
            before = None if isinstance(x, Literal) else self._broadcasts.get(x)
            if before is not None:
                # Batching a program broadcasts again what it fills, but fills an array of the
                # batch in its derivative.
                dimensions = jaxprs.composed_dimensions(before, eqn)
                eqn = jaxprs.broadcast_in_place_of(
                    eqn, before.invars[0], eqn.outvars[0], dimensions
                )
            self._broadcasts[eqn.outvars[0]] = eqn
            return None if before is None else ([eqn], eqn.outvars)
        if eqn.primitive.name in BROADCASTING:
            return self._narrowed(eqn)
        if eqn.primitive in _INVERSES:
            self._of_keys[eqn.outvars[0]] = eqn
        whole = _whole(eqn) or _undone(eqn, self._of_keys) or _converted(eqn)
        return None if whole is None else ([], [whole])

    def _narrowed(self, eqn: Eqn) -> Made | None:
        """An equation on operands before their broadcasts, which it performs itself when lowered.

        Raising does the same, but not where a call is between the two.
        """
        makers = [None if isinstance(a, Literal) else self._broadcasts.get(a) for a in eqn.invars]
        if not any(makers):
            return None
        narrow = [
            a if m is None or not is_implied(m) else m.invars[0]
            for a, m in zip(eqn.invars, makers, strict=True)
        ]
        shape = eqn.outvars[0].aval.shape
        # A number was narrowed before, as in a function that takes the other operand broadcast.
        wide = [a.aval.shape or shape for a in eqn.invars]
        can = narrowable(shape, wide, [a.aval.shape for a in narrow])
        made: list[Eqn] = []
        operands: list[Atom] = []
        for atom, before, fits in zip(eqn.invars, narrow, can, strict=True):
            if not fits and not atom.aval.shape:
                widened = Var(ShapedArray(shape, atom.aval.dtype))
                made.append(jaxprs.broadcast_in_place_of(eqn, atom, widened, ()))
                atom = widened
            operands.append(before if fits else atom)
        return [*made, eqn.replace(invars=operands)], eqn.outvars


def _whole(eqn: Eqn) -> Atom | None:
    """The array equal to a slice or update that covers a whole array."""
    match eqn.primitive.name:
        case "dynamic_slice":
            result = eqn.invars[0]
        case "dynamic_update_slice":
            result = eqn.invars[1]
        case _:
            return None
    return result if result.aval.shape == eqn.outvars[0].aval.shape else None


# Keys from their words, and words from keys.
_INVERSES = {random_wrap_p: random_unwrap_p, random_unwrap_p: random_wrap_p}


def _undone(eqn: Eqn, of_keys: Mapping[Atom, Eqn]) -> Atom | None:
    """The value that a pair of inverse equations returns."""
    first = of_keys.get(eqn.invars[0]) if eqn.primitive in _INVERSES else None
    if first is None or first.primitive is not _INVERSES[eqn.primitive]:
        return None
    (x,) = first.invars
    return x if x.aval.dtype == eqn.outvars[0].aval.dtype else None


def _with_each_carry_once(eqn: Eqn) -> tuple[Eqn, Sequence[Var]]:
    """A `while` whose equal carries are merged, and the variables of its results.

    The others are then carried but unused, so `canonicalize` removes them.
    """
    parts = WhileParts.of(eqn)
    same, _ = equal_carries(parts, [*map(atom_key, parts.init)])
    if not same:
        return eqn, eqn.outvars
    results = [eqn.outvars[same.get(i, i)] for i in range(len(eqn.outvars))]
    parts = sharing(parts, same)
    # Equations of equal carries are equal.
    body = close_like(parts.body, merge_equations(open_jaxpr(parts.body), _Simplest()))
    return dataclasses.replace(parts, body=body).put_into(eqn), results


def _with_count(eqn: Eqn, results: Sequence[Var]) -> Sequence[Atom]:
    """The results of a `while` with the number of its steps, if it counts them, as a literal.

    A `scan` does not return its counter.
    """
    loop = counted(eqn)
    if loop is None or is_open(loop.length):
        return results
    count = results[loop.counter]
    number = Literal(np.asarray(loop.length, count.aval.dtype)[()], count.aval)
    return [number if v is count else v for v in results]


def _converted(eqn: Eqn) -> Atom | None:
    """The literal that a conversion of an integer makes, if it is exact."""
    if eqn.primitive.name != "convert_element_type" or not isinstance(eqn.invars[0], Literal):
        return None
    before, (out,) = np.asarray(eqn.invars[0].val), eqn.outvars
    if before.dtype.kind not in "iu" or not jnp.issubdtype(out.aval.dtype, jnp.number):
        return None
    with np.errstate(over="ignore"):
        value = before.astype(out.aval.dtype)
    number = float(np.real(value))
    is_exact = math.isfinite(number) and int(number) == int(before)
    return Literal(value[()], out.aval) if is_exact else None


def _in_one_order(eqn: Eqn) -> Eqn:
    """Sort the carries of a `while` by content instead of position.

    Sort keys are the type, a literal initial value, and the computation in the body; carries with
    equal keys keep their order.
    """
    parts = WhileParts.of(eqn)
    body = open_jaxpr(parts.body)
    kinds = [
        hash((type_key(v), atom_key(start) if isinstance(start, Literal) else None))
        for v, start in zip(parts.carried, parts.init, strict=True)
    ]
    operations = [hash(operation_key(e) or e.primitive.name) for e in body.eqns]
    for _ in range(2):  # the second round also uses the keys of the carries that the body reads
        codes: dict[Atom, int] = {v: hash(type_key(v)) for v in body.invars}
        codes |= zip(parts.carried, kinds, strict=True)

        def code(atom: Atom, codes: dict[Atom, int] = codes) -> int:
            return hash(atom_key(atom)) if isinstance(atom, Literal) else codes.get(atom, 0)

        for step, operation in zip(body.eqns, operations, strict=True):
            key = operation, *map(code, step.invars)
            codes |= {v: hash((*key, i, type_key(v))) for i, v in enumerate(step.outvars)}
        kinds = [hash((k, code(out))) for k, out in zip(kinds, body.outvars, strict=True)]
    order = sorted(range(len(kinds)), key=lambda i: (str(type_key(parts.carried[i])), kinds[i]))
    if order == list(range(len(kinds))):
        return eqn

    def ordered(values: Sequence[_T]) -> list[_T]:
        return [values[i] for i in order]

    def rearranged(program: AnyJaxpr, variables: Sequence[Var], *, carries: bool) -> AnyJaxpr:
        jaxpr = open_jaxpr(program)
        first = len(jaxpr.invars) - len(variables)
        invars = [*jaxpr.invars[:first], *ordered(variables)]
        outvars = ordered(jaxpr.outvars) if carries else jaxpr.outvars
        return close_like(program, jaxpr.replace(invars=invars, outvars=outvars))

    ordered_parts = dataclasses.replace(
        parts,
        cond=rearranged(parts.cond, parts.tested, carries=False),
        body=rearranged(parts.body, parts.carried, carries=True),
        init=ordered(parts.init),
    )
    return ordered_parts.put_into(eqn).replace(outvars=ordered(eqn.outvars))
