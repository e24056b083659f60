"""Traces a program again with values of other types, through calls, loops and branches."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Generic, TypeVar

import jax
import numpy as np

from invert._private.jax import bind_equation, context_of, trace_closed
from invert._private.meshes import type_on_mesh
from invert.ir.interpret import interpret
from invert.ir.loops import CondParts, ScanParts, WhileParts
from invert.ir.types import AnyJaxpr, ClosedJaxpr, Eqn, JaxFunction, Literal, Value

_M = TypeVar("_M")


@dataclasses.dataclass
class Retracer(abc.ABC, Generic[_M]):
    """Evaluates programs whose values may have other types than their variables.

    A mark is the difference between such a type and that of the variable. Carries of a loop, and
    results of branches, get the mark that they have in common.
    """

    _calls: dict[AnyJaxpr, JaxFunction] = dataclasses.field(default_factory=dict, kw_only=True)

    @abc.abstractmethod
    def equation(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        """The results of an equation, in its own context."""

    @abc.abstractmethod
    def mark(self, value: object) -> _M:
        """The mark of a value, or of values of a type."""

    @abc.abstractmethod
    def common(self, marks: Sequence[_M]) -> _M:
        """The mark that values with any of these marks can get."""

    @abc.abstractmethod
    def marked(self, value: Value, mark: _M) -> Value:
        """Give a value this mark, unless it has it or cannot have it."""

    def __call__(self, program: AnyJaxpr, args: Sequence[Value]) -> list[Value]:
        def on_eqn(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
            with context_of(eqn):
                return self.equation(eqn, operands)

        return interpret(program, args, on_eqn, _on_this_mesh)

    def traced(
        self, body: AnyJaxpr, operands: Sequence[object], marks: Sequence[_M] = ()
    ) -> ClosedJaxpr:
        """Trace a body at its operands' types; its first results get these marks."""

        def run(*values: Value) -> list[Value]:
            results = self(body, values)
            return [*self._all_marked(results[: len(marks)], marks), *results[len(marks) :]]

        return trace_closed(run, *map(type_on_mesh, operands))

    def _all_marked(self, values: Sequence[Value], marks: Sequence[_M]) -> list[Value]:
        return [self.marked(x, m) for x, m in zip(values, marks, strict=True)]

    def _settled(
        self,
        body: AnyJaxpr,
        consts: Sequence[Value],
        init: Sequence[Value],
        rows: Sequence[object] = (),
    ) -> tuple[list[Value], ClosedJaxpr]:
        """The initial carry with the marks of all later ones, and the body."""
        carry = list(init)
        while True:
            marks = list(map(self.mark, carry))
            traced = self.traced(body, [*consts, *carry, *rows], marks)
            later = map(self.mark, traced.out_avals[: len(carry)])
            wanted = map(self.common, zip(marks, later, strict=True))
            new = self._all_marked(carry, list(wanted))
            if all(a is b for a, b in zip(carry, new, strict=True)):
                return carry, traced
            carry = new

    def call(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        """A `jit`; equal calls share a trace."""
        inner = eqn.params["jaxpr"]
        if inner not in self._calls:

            def call(*values: Value) -> list[Value]:
                return self(inner, values)

            call.__name__ = call.__qualname__ = eqn.params["name"]
            self._calls[inner] = jax.jit(call, inline=eqn.params["inline"])
        return self._calls[inner](*operands)

    def scan(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        parts = ScanParts.of(eqn)
        consts, init, xs = parts.split(operands)
        rows = [type_on_mesh(x, row=True) for x in xs]
        carry, body = self._settled(parts.body, consts, init, rows)
        return bind_equation(_with(eqn, jaxpr=body), [*consts, *carry, *xs])

    def while_loop(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        parts = WhileParts.of(eqn)
        tested, held, init = parts.split(operands)
        carry, body = self._settled(parts.body, held, init)
        cond = self.traced(parts.cond, [*tested, *carry])
        made = _with(eqn, cond_jaxpr=cond, body_jaxpr=body)
        return bind_equation(made, [*tested, *held, *carry])

    def cond(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        branches, rest = CondParts.of(eqn).branches, operands[1:]
        results = [map(self.mark, self.traced(b, rest).out_avals) for b in branches]
        marks = list(map(self.common, zip(*results, strict=True)))
        made = tuple(self.traced(b, rest, marks) for b in branches)
        return bind_equation(_with(eqn, branches=made), operands)


def _on_this_mesh(literal: Literal) -> Value:
    """The value of a literal: a view, since the array keeps the mesh it was first used on."""
    value = literal.val
    return value.view() if isinstance(value, np.ndarray) else value


def _with(eqn: Eqn, **params: object) -> Eqn:
    return eqn.replace(params={**eqn.params, **params})
