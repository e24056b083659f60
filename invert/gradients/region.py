"""The equations between the arguments and the results of a marker."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from invert._private.jax import close_like, dce, eval_closed, open_jaxpr, trace_closed
from invert.ir import jaxprs, meshes
from invert.ir.avals import is_differentiable, type_of
from invert.ir.gradient_marker import Gradient, parts
from invert.ir.graph import Graph
from invert.ir.interpret import OnEqn, bind, evaluate, replacing
from invert.ir.lookups import undecided, updates_at, with_promised_bounds
from invert.ir.size_values import sizes_in
from invert.ir.sizes import is_open
from invert.ir.types import (
    AnyJaxpr,
    Atom,
    ClosedJaxpr,
    Eqn,
    JaxFunction,
    Jaxpr,
    Literal,
    Value,
    Var,
)
from invert.rewriting.driver import Replacement, replace


def _bind(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    """Bind an equation; a strided slice at an open size as in JAX's `x[::2]`.

    Both have the same length, but as different expressions of the size; those of the container's
    gradient are JAX's.
    """
    if eqn.primitive.name != "slice" or eqn.params["strides"] is None:
        return bind(eqn, operands)
    bounds = (eqn.params[name] for name in ("start_indices", "limit_indices", "strides"))
    shape = operands[0].shape
    parts = [
        slice(None) if (a, n, step) == (0, m, 1) else slice(a, n, step)
        for a, n, step, m in zip(*bounds, shape, strict=True)
    ]
    cut = [n for part, n in zip(parts, shape, strict=True) if part != slice(None)]
    return [operands[0][tuple(parts)]] if any(map(is_open, cut)) else bind(eqn, operands)


class MarkedRegion:
    """The equations between the arguments and the results of a marker.

    Its functions take closed-over values, then the arguments, then the cotangents of the
    differentiable results. `avals` are the types of all of them. `places` are the positions of
    those results, `moved` those of the operands whose gradient is wanted, and `closed_over` the
    closed-over values whose derivative is zero, as in TensorFlow.
    """

    def __init__(
        self,
        graph: Graph,
        eqn: Eqn,
        resolver: Callable[[ClosedJaxpr], ClosedJaxpr],
        settled: Mapping[Eqn, Replacement],
    ):
        self.gradient: Gradient = eqn.params["gradient"]
        self.results, inputs, self.captures = parts(eqn)
        self.inputs = list(dict.fromkeys(v for v in inputs if not isinstance(v, Literal)))
        self.given = inputs
        atoms = [*self.results, *self.captures]
        self.eqns, outside = graph.needed(atoms, set(self.inputs))
        self.constants = {v: graph.consts[v] for v in outside if v in graph.consts}
        self.outside = [v for v in outside if v not in self.constants]
        self.closed_over = {v for v in self.outside if is_differentiable(v.aval)}
        self.held = [v for v in outside if v in self.constants]
        self.operands = [*self.held, *self.outside, *self.inputs]
        self.places = [i for i, v in enumerate(self.results) if is_differentiable(v.aval)]
        self.numbers = [self.results[i] for i in self.places]
        self.wanted = [i for i, v in enumerate(self.inputs) if is_differentiable(v.aval)]
        first = len(self.operands) - len(self.inputs)
        self.moved = [first + i for i in self.wanted]
        types = [v.aval for v in self.operands]

        def run(*values: Value) -> list[Value]:
            stopped = [
                jax.lax.stop_gradient(x) if v in self.closed_over else x
                for v, x in zip(self.operands, values, strict=True)
            ]
            return self._run_settled(settled, stopped)

        # Inner markers are already settled, since their values come first. A marker that
        # uses values from before the arguments is settled again, on the arguments.
        self.forward = trace_closed(run, *types)
        self.forward = meshes.checked(resolver(self.forward))
        self.avals = [
            *(type_of(v) for v in (*self.outside, *self.inputs)),
            *(type_of(v) for v in self.numbers),
        ]
        # Shared by its variants, which have other programs or sizes.
        self._traced: dict[Hashable, ClosedJaxpr] = {}

    def _run_settled(
        self, settled: Mapping[Eqn, Replacement], values: Sequence[Value]
    ) -> list[Value]:
        eqns, rules = self._needed(settled)
        return self._evaluate(values, self.results, eqns, replacing(rules, _bind))

    def _needed(self, settled: Mapping[Eqn, Replacement]) -> tuple[list[Eqn], dict[Eqn, AnyJaxpr]]:
        """The equations that the results need, and the programs that replace settled markers.

        A settled marker needs only its arguments. The equations between them and its results
        would otherwise run at each level of nesting, in addition to the rule.
        """
        producers: dict[Atom, Eqn] = {v: e for e in self.eqns for v in e.outvars}
        given = set(self.operands)
        replacements: dict[Eqn, Replacement | None] = {}
        pending = list(self.results)
        while pending:
            atom = pending.pop()
            eqn = None if isinstance(atom, Literal) else producers.get(atom)
            if eqn is None or atom in given or eqn in replacements:
                continue
            rule = settled.get(eqn)
            inputs = [] if rule is None else [a for a in rule.inputs if not isinstance(a, Literal)]
            if not all(a in producers or a in given for a in inputs):
                rule = None
            replacements[eqn] = rule
            pending += eqn.invars if rule is None else inputs
        eqns: list[Eqn] = []
        rules: dict[Eqn, AnyJaxpr] = {}
        for eqn in (e for e in self.eqns if e in replacements):
            if (rule := replacements[eqn]) is not None:
                eqn = eqn.replace(invars=list(rule.inputs))
                rules[eqn] = rule.jaxpr
            eqns.append(eqn)
        return eqns, rules

    def _evaluate(
        self,
        values: Sequence[Value],
        atoms: Sequence[Atom],
        eqns: Sequence[Eqn],
        on_eqn: OnEqn = _bind,
    ) -> list[Value]:
        env: dict[Atom, Value] = dict(zip(self.operands, values, strict=True))
        return list(map(evaluate(eqns, env, on_eqn), atoms))

    def with_instead(
        self, chosen: Callable[[Eqn], bool], run: Callable[..., Sequence[Value]]
    ) -> MarkedRegion | None:
        """The region with `run(eqn, *operands)` instead of some equations, if it has any."""

        def visit(jaxpr: Jaxpr) -> Jaxpr:
            found = [
                Replacement(
                    trace_closed(functools.partial(run, eqn), *(a.aval for a in eqn.invars)),
                    eqn.invars,
                    eqn.outvars,
                    frozenset({eqn}),
                    eqn,
                )
                for eqn in jaxpr.eqns
                if chosen(eqn)
            ]
            return replace(Graph(jaxpr), found) if found else jaxpr

        forward = jaxprs.map_jaxprs(self.forward, visit)
        return None if forward is self.forward else self.with_forward(forward)

    def with_forward(self, forward: ClosedJaxpr) -> MarkedRegion:
        """The region with another program over `operands`."""
        other = copy.copy(self)
        other.forward = forward
        return other

    @property
    def undecided(self) -> list[Eqn]:
        """The lookups and updates that may promise that their indices are in bounds."""
        return undecided(self.forward)

    def promising(self, chosen: Iterable[Eqn] | None = None) -> MarkedRegion:
        """The region, with these of `undecided` promised to be in bounds, all by default."""
        found = {*(self.undecided if chosen is None else chosen)}
        found |= {*updates_at(self.forward, found)}
        return self.with_forward(with_promised_bounds(self.forward, found))

    def _split(self, values: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """The operands, constants first, and the cotangents."""
        n = len(self.outside) + len(self.inputs)
        return [*self.constants.values(), *values[:n]], list(values[n:])

    def backward(self, *, nested: bool = False) -> ClosedJaxpr:
        """The gradient function, as a closed jaxpr from `avals` to cotangents of `wanted`."""

        def run(*values: Value) -> list[Value]:
            operands, cotangents = self._split(values)
            captures = self._evaluate(operands, self.captures, self.eqns)
            if self.gradient.convention == "tensorflow":
                captures = list(map(self._sizes_or, self.captures, captures))
            gradients = self.gradient.run(captures, cotangents, nested)
            sums: dict[Var, Value] = {}
            for v, g in zip(self.given, gradients, strict=True):
                if g is not None and not isinstance(v, Literal) and is_differentiable(v.aval):
                    sums[v] = sums[v] + g if v in sums else g
            return [
                sums[v] if v in sums else jnp.zeros(v.aval.shape, v.aval.dtype)
                for v in (self.inputs[i] for i in self.wanted)
            ]

        # The captures need few of the equations, and none of the markers that are not theirs.
        traced = trace_closed(run, *self.avals)
        return close_like(traced, dce(open_jaxpr(traced)))

    def _sizes_or(self, atom: Atom, value: Value) -> Value:
        """The open sizes in a captured shape, which a gradient may reshape to, or its value."""
        makers: dict[Atom, Eqn] = {v: eqn for eqn in self.eqns for v in eqn.outvars}
        sizes = sizes_in(atom, makers)
        if sizes is None or not any(map(is_open, sizes)):
            return value
        held = np.empty(len(sizes), object)
        held[:] = sizes
        return held.reshape(atom.aval.shape)

    def autodiff(self, *values: Value) -> list[Value]:
        """The gradient of the recovered program by automatic differentiation, at `avals`."""
        return self.autodiff_of(lambda *full: eval_closed(self.forward, full), values)

    def traced_autodiff(self, x64: bool, held: Sequence[Var] = ()) -> ClosedJaxpr:
        """`autodiff_over` as a program, traced with or without 64-bit types.

        Differentiating a program with loops takes about as long as lowering its derivative.
        """
        key = self.forward, (*held, *self.avals), x64
        if key not in self._traced:
            run = functools.partial(self.autodiff_over, held)
            with jax.enable_x64(x64):
                self._traced[key] = trace_closed(run, *map(type_of, held), *self.avals)
        return self._traced[key]

    def forget_traces(self) -> None:
        """Forget what `traced_autodiff` keeps: rules hold the region as long as their program."""
        self._traced.clear()

    def autodiff_over(self, held: Sequence[Value], *values: Value) -> list[Value]:
        """As `autodiff`, with leading values for the constants `held`."""
        other = copy.copy(self)
        other.constants = {**self.constants, **dict(zip(held, values, strict=False))}
        return other.autodiff(*values[len(held) :])

    def autodiff_of(self, program: JaxFunction, values: Sequence[Value]) -> list[Value]:
        """As `autodiff`, for another program over `operands`."""
        operands, cotangents = self._split(values)

        def function(*numbers: Value) -> list[Value]:
            results = program(*jaxprs.with_values(operands, self.moved, numbers))
            return [results[i] for i in self.places]

        _, pull = jax.vjp(jax.jit(function), *(operands[i] for i in self.moved))
        return list(pull(cotangents))
