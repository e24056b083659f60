"""Proves by tracing that an expression equals some equations."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import EmissionError, only_refusals, optional_step
from invert._private.jax import (
    REFUSALS,
    consts_of,
    dce,
    eval_closed,
    open_jaxpr,
    trace_closed,
)
from invert._private.meshes import mesh_of_now
from invert.emission.expressions import copies, helpers
from invert.emission.python import load, syntax
from invert.emission.sizes.expressions import dimension_token
from invert.ir import traced_form
from invert.ir.avals import is_differentiable, is_weak
from invert.ir.graph import Graph, is_var
from invert.ir.jaxprs import equations, is_wide, map_jaxprs, with_values
from invert.ir.merging import program_key
from invert.ir.sizes import DimSize
from invert.ir.types import (
    AnyJaxpr,
    Aval,
    ClosedJaxpr,
    Eqn,
    JaxFunction,
    Jaxpr,
    Literal,
    Value,
    Var,
)
from invert.ir.written_form import without_neutral

# The modules that emitted text may use, and the functions that it may hold copies of.
NAMESPACE: Mapping[str, Any] = {
    "jax": jax, "jnp": jnp, "lax": lax, "np": np, "eqx": eqx,
    **copies.FUNCTIONS, **helpers.FUNCTIONS,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Traced:
    """An expression as a closed jaxpr, and whether its trace has types of 64 bits."""

    closed: ClosedJaxpr
    wide: bool


@dataclasses.dataclass
class Prover:
    """Traces expressions, each once.

    **Arguments:**

    - `settings`: the values of `jax_enable_x64` under which the text will run, `True` first.
    - `dimensions`: the open dimensions of the program.
    - `chosen`: the number of the form that was chosen for an equation, by its signature.
    - `defects`: receives a line for each expression that was left out because of a defect.

    **Attributes:**

    - `differentiates`: whether the text differentiates what is proved, so that derivatives have to
        be equal in the order of their operations, too.
    """

    settings: tuple[bool, ...] = (True, False)
    dimensions: Mapping[str, DimSize] = dataclasses.field(default_factory=dict)
    chosen: dict[Hashable, int] = dataclasses.field(default_factory=dict)
    defects: list[str] = dataclasses.field(default_factory=list)
    differentiates: bool = False
    _traced: dict[Hashable, _Traced | None] = dataclasses.field(default_factory=dict)
    _proved: dict[Hashable, tuple[bool, ClosedJaxpr]] = dataclasses.field(default_factory=dict)
    _graphs: dict[int, tuple[ClosedJaxpr, Graph]] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def of_derivatives(self) -> Iterator[None]:
        """Proves expressions of functions that the text differentiates."""
        outer, self.differentiates = self.differentiates, True
        try:
            yield
        finally:
            self.differentiates = outer

    def graph(self, traced: ClosedJaxpr) -> Graph:
        """The use-def maps of a traced expression without its dead code, made once."""
        if id(traced) not in self._graphs:
            self._graphs[id(traced)] = traced, Graph(dce(open_jaxpr(traced)), consts_of(traced))
        return self._graphs[id(traced)][1]

    def traces(
        self, expression: ast.expr, tokens: Sequence[str], avals: Sequence[Aval]
    ) -> Iterator[ClosedJaxpr | None]:
        """The expression under each setting, as `trace`.

        Without x64, JAX only narrows types of 64 bits, so an expression that has none even with x64
        is traced once. The whole text is compared under all settings.
        """
        for x64 in self.settings:
            traced = self._trace(expression, tokens, avals, x64)
            yield None if traced is None else traced.closed
            if traced is None or not traced.wide:
                return

    def trace(
        self, expression: ast.expr, tokens: Sequence[str], avals: Sequence[Aval], x64: bool
    ) -> ClosedJaxpr | None:
        """The expression as a closed jaxpr; `None` if JAX refuses it."""
        traced = self._trace(expression, tokens, avals, x64)
        return None if traced is None else traced.closed

    def _trace(
        self, expression: ast.expr, tokens: Sequence[str], avals: Sequence[Aval], x64: bool
    ) -> _Traced | None:
        names = [f"a{i}" for i in range(len(tokens))]
        values: dict[str, ast.expr] = {
            t: ast.Name(n, ast.Load()) for t, n in zip(tokens, names, strict=True)
        }
        for i, dimension in enumerate(self.dimensions):
            values[dimension_token(dimension)] = ast.Name(f"n{i}", ast.Load())
        closed = syntax.substitute(expression, values)
        key = (syntax.text_of(closed), tuple(map(_type_key, avals)), x64, mesh_of_now())
        if key not in self._traced:
            sizes = {f"n{i}": n for i, n in enumerate(self.dimensions.values())}
            function = load.function_of(names, closed, {**NAMESPACE, **sizes})
            step = f"the expression {key[0]}"
            self._traced[key] = optional_step(step, self.defects, _trace, function, avals, x64)
        return self._traced[key]

    def holds(
        self,
        expression: ast.expr,
        operands: Mapping[str, Var],
        eqns: Sequence[Eqn],
        outs: Sequence[Var],
    ) -> bool:
        """Return whether the expression of `operands` (variables by token) traces to `eqns`."""
        tokens = [t for t in syntax.tokens_in(expression) if t in operands]
        variables = [operands[t] for t in tokens]
        target = None
        for traced in self.traces(expression, tokens, [v.aval for v in variables]):
            if traced is None or not _same_types(traced, outs):
                return False
            if target is None:
                needed = set(variables)
                missing = [v for e in eqns for v in e.invars if is_var(v) and v not in needed]
                made = {v for e in eqns for v in e.outvars}
                if any(v not in made for v in missing):
                    return False
                base = open_jaxpr(traced)
                target = base.replace(
                    constvars=[], invars=variables, outvars=list(outs), eqns=list(eqns)
                )
            if not self._proves(traced, target):
                return False
        return True

    def derives_alike(self, traced: ClosedJaxpr, target: Jaxpr) -> bool:
        """Return whether equal programs have equal derivatives, where the text takes these."""
        if not self.differentiates:
            return True
        return _are_one(_derivative(traced), _derivative(target))

    def _proves(self, traced: ClosedJaxpr, target: Jaxpr) -> bool:
        """As `_are_one`; equal programs are compared with an expression once."""
        key = (id(traced), self.differentiates), program_key(target)
        if key in self._proved:
            return self._proved[key][0]
        try:
            same = _are_one(traced, target) and self.derives_alike(traced, target)
        except EmissionError:  # a rule that cannot be compared
            same = False
        if key[1] is not None:
            self._proved[key] = same, traced  # which is kept, so that no other has its number
        return same


def _are_one(traced: AnyJaxpr, target: AnyJaxpr) -> bool:
    """Return whether an expression is a program without neutral numbers; see `as_written`."""
    if traced_form.difference(traced, target) is None:
        return True
    simple = map_jaxprs(traced, without_neutral)
    return simple is not traced and traced_form.difference(simple, target) is None


def _derivative(program: AnyJaxpr) -> AnyJaxpr:
    """The reverse derivative of a program; itself if it has none."""
    jaxpr = open_jaxpr(program)
    moving = [i for i, v in enumerate(jaxpr.invars) if is_differentiable(v.aval)]
    ends = [i for i, v in enumerate(jaxpr.outvars) if is_differentiable(v.aval)]
    if not moving or not ends:
        return program
    types = [v.aval for v in jaxpr.invars]

    def run(*values: Value) -> Sequence[Value]:
        operands, cotangents = values[: len(types)], values[len(types) :]

        def of(*changed: Value) -> list[Value]:
            results = eval_closed(program, with_values(operands, moving, changed))
            return [results[i] for i in ends]

        _, pull = jax.vjp(of, *(operands[i] for i in moving))
        return pull(list(cotangents))

    try:
        with only_refusals():
            return trace_closed(run, *types, *(jaxpr.outvars[i].aval for i in ends))
    except REFUSALS:
        return program


def _same_types(traced: ClosedJaxpr, outs: Sequence[Var]) -> bool:
    """Return whether the results have the same types; a weak type would change later results."""
    results = open_jaxpr(traced).outvars
    return len(results) == len(outs) and all(
        a.aval.dtype == b.aval.dtype
        and tuple(a.aval.shape) == tuple(b.aval.shape)
        and (isinstance(a, Literal) or is_weak(a) == is_weak(b))
        for a, b in zip(results, outs, strict=True)
    )


def _type_key(aval: Aval) -> Hashable:
    return (
        getattr(aval, "shape", None),
        getattr(aval, "dtype", None),
        getattr(aval, "weak_type", False),
    )


def _trace(function: JaxFunction, avals: Sequence[Aval], x64: bool) -> _Traced | None:
    def values(*args: object) -> Any:
        result = function(*args)
        if isinstance(result, (list, tuple)) and len(result) == 1:
            raise TypeError("a sequence of one result instead of the result")
        return result

    with jax.enable_x64(x64), warnings.catch_warnings():
        # A 64-bit type was requested without x64: both settings are tried.
        warnings.simplefilter("ignore")
        try:
            with only_refusals():
                traced = trace_closed(values, *avals)
                return _Traced(traced_form.plain(traced), _is_wide(traced))
        except REFUSALS:
            return None


def _is_wide(traced: ClosedJaxpr) -> bool:
    """Return whether a value of 64 bits occurs, such as an index that the normal form narrows."""
    jaxpr = open_jaxpr(traced)
    atoms = (a for e in equations(jaxpr) for a in (*e.invars, *e.outvars))
    return any(map(is_wide, (*jaxpr.invars, *jaxpr.outvars))) or any(map(is_wide, atoms))
