"""The parts of loops and branches: their programs and the roles of their operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
from jax import lax

from invert._private.jax import (
    constants_as_arguments,
    consts_of,
    open_jaxpr,
    scan_layout,
    trace_closed,
)
from invert._private.programs import close, scan_counts
from invert.ir.types import AnyJaxpr, Atom, Eqn, Value, Var

_T = TypeVar("_T")


def _split(
    values: Sequence[_T], first: int, second: int
) -> tuple[Sequence[_T], Sequence[_T], Sequence[_T]]:
    return values[:first], values[first : first + second], values[first + second :]


@dataclasses.dataclass(frozen=True)
class WhileParts:
    """A `while`.

    **Attributes:**

    - `cond`, `body`: the programs; the first arguments of each are its constants.
    - `cond_consts`, `body_consts`, `init`: the operands; `init` is the first carry.
    """

    cond: AnyJaxpr
    body: AnyJaxpr
    cond_consts: Sequence[Atom]
    body_consts: Sequence[Atom]
    init: Sequence[Atom]

    @classmethod
    def of(cls, eqn: Eqn) -> WhileParts:
        """The parts of an equation."""
        p = eqn.params
        operands = _split(eqn.invars, p["cond_nconsts"], p["body_nconsts"])
        return cls(p["cond_jaxpr"], p["body_jaxpr"], *operands)

    def split(self, values: Sequence[_T]) -> tuple[Sequence[_T], Sequence[_T], Sequence[_T]]:
        """Values for the operands, as `cond_consts`, `body_consts` and `init`."""
        return _split(values, len(self.cond_consts), len(self.body_consts))

    @property
    def tested(self) -> Sequence[Var]:
        """The arguments of the condition that are the carry."""
        return open_jaxpr(self.cond).invars[len(self.cond_consts) :]

    @property
    def carried(self) -> Sequence[Var]:
        """The arguments of the body that are the carry."""
        return open_jaxpr(self.body).invars[len(self.body_consts) :]

    def put_into(self, eqn: Eqn) -> Eqn:
        """The equation with its parts replaced by these."""
        params = {
            **eqn.params,
            "cond_jaxpr": self.cond,
            "body_jaxpr": self.body,
            "cond_nconsts": len(self.cond_consts),
            "body_nconsts": len(self.body_consts),
        }
        invars = [*self.cond_consts, *self.body_consts, *self.init]
        return eqn.replace(params=params, invars=invars)


@dataclasses.dataclass(frozen=True)
class ScanParts:
    """A `scan`.

    **Attributes:**

    - `body`: the program of `consts`, the carry and one row of each of `xs`.
    - `consts`, `init`, `xs`: the operands; `init` is the first carry.
    """

    body: AnyJaxpr
    consts: Sequence[Atom]
    init: Sequence[Atom]
    xs: Sequence[Atom]

    @classmethod
    def of(cls, eqn: Eqn) -> ScanParts:
        """The parts of an equation."""
        return cls(eqn.params["jaxpr"], *_split(eqn.invars, *scan_layout(eqn.params)))

    def split(self, values: Sequence[_T]) -> tuple[Sequence[_T], Sequence[_T], Sequence[_T]]:
        """Values for the operands, as `consts`, `init` and `xs`."""
        return _split(values, len(self.consts), len(self.init))

    def closing_over(self, eqn: Eqn, body: AnyJaxpr, kept: Sequence[int]) -> Eqn:
        """The equation with a body that takes only some of its constants."""
        params = {**eqn.params, "jaxpr": body}
        if "num_consts" in params:
            params["num_consts"] = len(kept)
        else:
            carry, xs = len(self.init), len(self.xs)
            params |= scan_counts(len(kept), carry, xs, len(eqn.outvars) - carry)
        consts = [self.consts[i] for i in kept]
        return eqn.replace(params=params, invars=[*consts, *self.init, *self.xs])


@dataclasses.dataclass(frozen=True)
class CondParts:
    """A `cond`: the branch at `index`, applied to `operands`."""

    branches: Sequence[AnyJaxpr]
    index: Atom
    operands: Sequence[Atom]

    @classmethod
    def of(cls, eqn: Eqn) -> CondParts:
        """The parts of an equation."""
        index, *operands = eqn.invars
        return cls(eqn.params["branches"], index, operands)


def while_loop_of(
    test: Callable[[Sequence[Value]], Value],
    step: Callable[[Sequence[Value]], Sequence[Value]],
    init: Sequence[Value],
) -> list[Value]:
    """`lax.while_loop` over a list of values that keep their types.

    JAX's checks and trees would take longer than the traces.
    """
    consts: list[Value] = []
    parts: dict[str, object] = {}
    for name, function in (("cond", test), ("body", step)):
        program = trace_closed(lambda *c, f=function: f(c), *map(jax.typeof, init))
        consts += consts_of(program)
        parts[f"{name}_nconsts"] = len(consts_of(program))
        parts[f"{name}_jaxpr"] = close(constants_as_arguments(open_jaxpr(program)), ())
    return lax.while_p.bind(*consts, *init, **parts)


def bodies(eqn: Eqn) -> list[tuple[AnyJaxpr, Sequence[Atom]]]:
    """The programs of a loop, branches or call, each with its operands.

    For carried values these are the operands of the first step; for the inputs of a `scan`, the
    whole arrays.
    """
    match eqn.primitive.name:
        case "while":
            p = WhileParts.of(eqn)
            return [(p.cond, [*p.cond_consts, *p.init]), (p.body, [*p.body_consts, *p.init])]
        case "cond":
            p = CondParts.of(eqn)
            return [(branch, p.operands) for branch in p.branches]
        case "jit" | "scan":
            return [(eqn.params["jaxpr"], eqn.invars)]
        case _:
            return []
