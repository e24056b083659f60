"""Derivatives that the forward program does not hold.

A module inlines an author's `custom_jvp` and `custom_vjp` rules and drops `stop_gradient`, so that
automatic differentiation of what was recovered can differ from what the author meant. Where the
container holds a gradient function, raising left a marker (`invert._gradient`). Here each marker is
settled: its gradient is compared with that of the recovered program, as a program first and on
numbers next. Where they agree, the marker goes and nothing is left of it. Where they differ, the
equations between the arguments and the results become a function with a rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from invert import _compat, _jaxpr
from invert._compat import core
from invert._config import Config
from invert._errors import InvertError
from invert._gradient import custom_gradient_p, is_differentiable, parts
from invert._match import difference
from invert._pattern import Graph
from invert._rewrite import Replacement, replace
from invert._verify import largest_gap
from invert.frontends.stablehlo import Program

# What JAX raises where it cannot differentiate, transpose, lower or run a program.
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, KeyError, NotImplementedError, RuntimeError,
    TypeError, ValueError, InvertError,
)  # fmt: skip


def plain(closed: Any) -> Any:
    """The program without markers, stop_gradient and rules: what a lowered module can hold."""

    def visit(jaxpr: Any) -> Any:
        graph = Graph(jaxpr)
        found = [
            Replacement(
                identity, eqn.invars[: len(eqn.outvars)], eqn.outvars, frozenset({id(eqn)}), eqn
            )
            for eqn in graph.eqns
            if (identity := _forward_only(eqn)) is not None
        ]
        return replace(graph, found) if found else jaxpr

    return _jaxpr.map_jaxprs(closed, visit)


def _forward_only(eqn: Any) -> Any | None:
    """The forward program of an equation that stands for another one under differentiation."""
    name = eqn.primitive.name
    if eqn.primitive is custom_gradient_p or name == "stop_gradient":
        return _compat.trace_closed(lambda *xs: xs, *(v.aval for v in eqn.outvars))
    if name == "custom_jvp_call" and len(_compat.open_jaxpr(eqn.params["call_jaxpr"]).eqns) == 0:
        return eqn.params["call_jaxpr"]
    return None


@dataclasses.dataclass
class Settler:
    """Settles the markers of a program.

    **Arguments:**

    - `recognize`: rewrites a raw program by the patterns.
    - `config`: options.
    - `platform`: the platform the programs were lowered for.
    - `wide`: whether the program holds values of 64 bits.
    - `order`: 1, or 2 for the gradient functions inside a gradient function.

    **Attributes:**

    - `messages`: what became of each marker.
    """

    recognize: Callable[[Any], Any]
    config: Config
    platform: str
    wide: bool
    order: int = 1
    messages: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, closed: Any) -> Any:
        """The closed jaxpr without markers."""
        if not any(
            e.primitive is custom_gradient_p for e in _jaxpr.equations(_compat.open_jaxpr(closed))
        ):
            return closed
        outer = _compat.open_jaxpr(closed)

        def visit(jaxpr: Any) -> Any:
            consts = _compat.consts_of(closed) if jaxpr.constvars == outer.constvars else ()
            return self._body(Graph(jaxpr, consts))

        # The program may be recovered while a caller is traced; what runs here runs now.
        with core.eval_context():
            return _jaxpr.map_jaxprs(closed, visit)

    def _body(self, graph: Graph) -> Any:
        found = []
        for eqn in graph.eqns:
            if eqn.primitive is not custom_gradient_p:
                continue
            rule = self._rule(graph, eqn)
            results = parts(eqn)[0]
            if rule is None:
                same = _compat.trace_closed(lambda *xs: xs, *(v.aval for v in eqn.outvars))
                found.append(Replacement(same, results, eqn.outvars, frozenset({id(eqn)}), eqn))
            else:
                call = _compat.trace_closed(rule.function, *(a.aval for a in rule.operands))
                found.append(
                    Replacement(call, rule.operands, eqn.outvars, frozenset({id(eqn)}), eqn)
                )
        return replace(graph, found) if found else graph.jaxpr

    def _rule(self, graph: Graph, eqn: Any) -> _Rule | None:
        gradient = eqn.params["gradient"]
        if gradient.problem:
            self._say(gradient, f"plain autodiff: {gradient.problem}")
            return None
        region = _Region(graph, eqn, self)
        is_complex = any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in region.numbers)
        if is_complex and gradient.convention != "jax":
            self._say(gradient, "plain autodiff: the gradient is complex and not a JAX one")
            return None
        try:
            raw = _jaxpr.canonicalize(region.backward())
        except InvertError as error:
            self._say(gradient, f"plain autodiff: the gradient cannot be raised: {error}")
            return None
        reason = "asked for"
        if self.config.custom_gradients == "check":
            reason = self._difference(region, raw)
            if not reason:
                self._say(gradient, "agrees with autodiff")
                return None
        backward, ruled = self._second(region, raw)
        rule = _make_rule(region, backward, self.wide, ruled)
        self._say(gradient, f"kept as {rule.kind}: {reason}")
        return rule

    def _second(self, region: _Region, raw: Any) -> tuple[Any, bool]:
        """The rewritten gradient, and whether it has a rule of its own for second derivatives."""
        if self.order > 1:
            return self.recognize(raw), False
        with jax.enable_x64(self.wide):
            region.gradient.read_nested()
        nested = _jaxpr.canonicalize(region.backward(nested=True))
        # What is asked for is this gradient; those inside are kept where they differ.
        config = dataclasses.replace(self.config, custom_gradients="check")
        inner = dataclasses.replace(self, config=config, order=self.order + 1, messages=[])
        backward = inner(self.recognize(nested))
        ruled = any("kept as" in m for m in inner.messages)
        self.messages += [f"second derivative, {m}" for m in inner.messages if "kept as" in m]
        return backward, ruled

    def _say(self, gradient: Any, text: str) -> None:
        self.messages.append(f"{gradient.location}: {text}")

    def _difference(self, region: _Region, raw: Any) -> str:
        """`""` where the gradient is that of the recovered program, else how they differ."""
        for wide in (self.wide, not self.wide):
            try:
                again = self._lowered(region, wide)
            except _FAILURES as error:
                first = (str(error).splitlines() or [""])[0]
                return f"autodiff fails ({type(error).__name__}: {first})"
            if difference(_inlined(raw), _inlined(again)) is None:
                return ""
        try:
            gap = _largest_difference(region, raw, self.wide)
        except _FAILURES as error:
            first = (str(error).splitlines() or [""])[0]
            return f"another program, which could not be run ({type(error).__name__}: {first})"
        return "" if gap == 0 else f"largest difference {gap:.3g}"

    def _lowered(self, region: _Region, wide: bool) -> Any:
        """The gradient by autodiff, lowered and raised."""
        with jax.enable_x64(wide):
            module = _compat.lowered_module(region.autodiff, *region.avals, platform=self.platform)
        program = Program(module, b"", Config())
        return _jaxpr.canonicalize(_compat.trace_closed(lambda *xs: program(*xs), *region.avals))


class _Region:
    """The equations between the arguments and the results of a marker.

    Everything takes the operands: values from outside that are no arguments (their derivative
    is zero, as it is in TensorFlow), then the arguments, then the cotangents of the results
    that are numbers with a tangent. `avals` are the types of all of them.
    """

    def __init__(self, graph: Graph, eqn: Any, settler: Settler):
        self.gradient = eqn.params["gradient"]
        self.results, inputs, self.captures = parts(eqn)
        self.inputs = list(dict.fromkeys(v for v in inputs if not isinstance(v, core.Literal)))
        self.given = inputs
        atoms = [*self.results, *self.captures]
        self.eqns, outside = _slice(graph, atoms, set(self.inputs))
        self.constants = {v: graph.consts[v] for v in outside if v in graph.consts}
        self.outside = [v for v in outside if v not in self.constants]
        self.held = [v for v in outside if v in self.constants]
        self.operands = [*self.held, *self.outside, *self.inputs]
        self.numbers = [v for v in self.results if is_differentiable(v.aval)]
        self.wanted = [i for i, v in enumerate(self.inputs) if is_differentiable(v.aval)]
        self.forward = _compat.trace_closed(
            lambda *values: self._evaluate(values, self.results), *(v.aval for v in self.operands)
        )
        if any(e.primitive is custom_gradient_p for e in self.eqns):
            self.forward = settler(self.forward)
        self.avals = [
            *(_type(v) for v in (*self.outside, *self.inputs)),
            *(_type(v) for v in self.numbers),
        ]

    def _evaluate(self, values: Sequence[Any], atoms: Sequence[Any]) -> list[Any]:
        env = dict(zip(self.operands, values, strict=True))
        read = _compat.evaluate(self.eqns, env)
        return [read(a) for a in atoms]

    def _split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The operands with the constants in front, and the cotangents."""
        n = len(self.outside) + len(self.inputs)
        return [*self.constants.values(), *values[:n]], list(values[n:])

    def backward(self, *, nested: bool = False) -> Any:
        """The gradient function, as a closed jaxpr from `avals` to cotangents of `wanted`."""

        def run(*values: Any) -> list[Any]:
            operands, cotangents = self._split(values)
            captures = self._evaluate(operands, self.captures)
            found = self.gradient(captures, cotangents, nested=nested)
            sums: dict[Any, Any] = {}
            for v, g in zip(self.given, found, strict=True):
                if g is not None and not isinstance(v, core.Literal) and is_differentiable(v.aval):
                    sums[v] = sums[v] + g if v in sums else g
            return [
                sums[v] if v in sums else jnp.zeros(v.aval.shape, v.aval.dtype)
                for v in (self.inputs[i] for i in self.wanted)
            ]

        return _compat.trace_closed(run, *self.avals)

    def autodiff(self, *values: Any) -> list[Any]:
        """What automatic differentiation of the recovered program gives for the same."""
        operands, cotangents = self._split(values)
        first = len(operands) - len(self.inputs)
        places = [i for i, v in enumerate(self.results) if is_differentiable(v.aval)]

        def function(*numbers: Any) -> list[Any]:
            full = list(operands)
            for i, x in zip(self.wanted, numbers, strict=True):
                full[first + i] = x
            results = _compat.eval_closed(self.forward, full)
            return [results[i] for i in places]

        _, pull = jax.vjp(jax.jit(function), *(operands[first + i] for i in self.wanted))
        return list(pull(cotangents))


def _type(v: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)


def _slice(graph: Graph, atoms: Sequence[Any], stop: set[Any]) -> tuple[list[Any], list[Any]]:
    """The equations that `atoms` need, up to `stop`, in order; and the values from outside."""
    eqns: dict[int, Any] = {}
    outside: dict[Any, None] = {}
    pending = list(atoms)
    seen: set[Any] = set()
    while pending:
        atom = pending.pop()
        if isinstance(atom, core.Literal) or atom in stop or atom in seen:
            continue
        seen.add(atom)
        eqn = graph.producers.get(atom)
        if eqn is None:
            outside[atom] = None
        elif id(eqn) not in eqns:
            eqns[id(eqn)] = eqn
            pending.extend(eqn.invars)
    return sorted(eqns.values(), key=lambda e: graph.index[id(e)]), list(outside)


def _inlined(closed: Any) -> Any:
    """The program with all calls inlined: JAX splits them when it differentiates."""
    while any(e.primitive.name == "jit" for e in _compat.open_jaxpr(closed).eqns):
        closed = _compat.inline_calls(closed)
    return _jaxpr.canonicalize(closed)


# -- numbers


def _samples(avals: Sequence[Any], cotangents: int) -> list[list[np.ndarray]]:
    """Values at which rules are known to differ: ties, zeros, steps, bounds, large numbers."""
    rng = np.random.default_rng(0)
    makers: list[Callable[[Any], np.ndarray]] = [
        lambda shape: rng.standard_normal(shape),
        lambda shape: np.zeros(shape),
        lambda shape: np.ones(shape),
        lambda shape: rng.integers(-3, 4, shape),
        lambda shape: rng.integers(-8, 9, shape),
        lambda shape: np.full(shape, 100.0),
        lambda shape: np.full(shape, -100.0),
        lambda shape: 30.0 * rng.standard_normal(shape),
    ]
    found = []
    for make in makers:
        values = []
        for i, aval in enumerate(avals):
            dtype = np.dtype(aval.dtype)
            if i >= len(avals) - cotangents:
                x = 4 * rng.standard_normal(aval.shape)
            elif dtype == np.bool_:
                x = rng.random(aval.shape) < 0.5
            elif not jnp.issubdtype(dtype, jnp.inexact):
                x = rng.integers(0, 4, aval.shape)
            else:
                x = make(aval.shape)
            if jnp.issubdtype(dtype, jnp.complexfloating):
                x = x + 1j * rng.standard_normal(aval.shape)
            values.append(np.asarray(x).astype(dtype))
        found.append(values)
    return found


def _largest_difference(region: _Region, raw: Any, wide: bool) -> float:
    """Largest difference of the two gradients that rounding does not explain; 0 where none."""
    largest = 0.0
    with jax.enable_x64(wide):
        one = jax.jit(lambda *xs: _compat.eval_closed(raw, xs))
        two = jax.jit(region.autodiff)
        for values in _samples(region.avals, len(region.numbers)):
            for x, y in zip(one(*values), two(*values), strict=True):
                largest = max(largest, _beyond_rounding(np.asarray(x), np.asarray(y)))
    return largest


def _beyond_rounding(x: np.ndarray, y: np.ndarray) -> float:
    """The gap where `x` is finite; elsewhere it says nothing, as at a singular matrix."""
    finite_x = np.isfinite(x)
    x, y = x[finite_x], y[finite_x]
    gap = largest_gap(x, y)
    finite = np.abs(y[np.isfinite(y)]) if y.size else y
    scale = float(finite.max()) if finite.size else 1.0
    return gap if gap > 1e3 * float(jnp.finfo(x.dtype).eps) * scale else 0.0


# -- rules


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A function of `operands` with a derivative of its own."""

    function: Callable[..., Any]
    operands: Sequence[Any]
    kind: str


def _make_rule(region: _Region, backward: Any, wide: bool, ruled: bool) -> _Rule:
    """A rule for both modes where the gradient is linear in the cotangents.

    JAX transposes a function without the rules inside it. So where the gradient has a rule of its
    own (`ruled`), the function gets one for reverse mode only: second derivatives stay right.
    """
    backward, shared = _share(backward, region)
    make, kind = _custom_vjp, "custom_vjp"
    if not ruled and _is_linear(region, backward, shared, wide):
        make, kind = _custom_jvp, "custom_jvp"
    return _Rule(make(region, backward, shared, wide), region.operands, kind)


def _share(backward: Any, region: _Region) -> tuple[Any, list[int]]:
    """The gradient over the constants of the region, which hold its own copies; their places."""
    jaxpr, constants = _jaxpr.split_constants(backward)
    index = {
        (c.dtype, c.shape, c.tobytes()): i
        for i, c in enumerate(np.asarray(region.constants[v]) for v in region.held)
    }
    places = [index.get((c.dtype, c.shape, c.tobytes()), -1) for c in constants]
    own = [c for c, i in zip(constants, places, strict=True) if i < 0]

    def run(*values: Any) -> list[Any]:
        shared, rest = values[: len(places) - len(own)], values[len(places) - len(own) :]
        first, second = iter(shared), iter(own)
        held = [next(second) if i < 0 else next(first) for i in places]
        return _compat.eval_jaxpr(jaxpr, [*held, *rest])

    return run, [i for i in places if i >= 0]


def _pull(region: _Region, backward: Any, shared: Sequence[int], wide: bool) -> Callable[..., Any]:
    """The gradient as a function of the operands and the cotangents."""

    def pull(operands: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        rest = operands[len(region.held) :]
        with jax.enable_x64(wide):
            return tuple(backward(*(operands[i] for i in shared), *rest, *cotangents))

    return pull


def _function(region: _Region, wide: bool) -> Callable[..., Any]:
    def recovered(*operands: Any) -> list[Any]:
        with jax.enable_x64(wide):
            return _compat.eval_closed(region.forward, operands)

    return recovered


def _custom_jvp(region: _Region, backward: Any, shared: Sequence[int], wide: bool) -> Any:
    """The derivative in a direction is the transpose of the gradient, which is linear."""
    function = _function(region, wide)
    pull = _pull(region, backward, shared, wide)
    first = len(region.operands) - len(region.inputs)
    cotangents = [_type(v) for v in region.numbers]
    rule = jax.custom_jvp(function)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        results = function(*primals)
        moved = tuple(tangents[first + i] for i in region.wanted)
        push = jax.linear_transpose(lambda *cts: pull(primals, cts), *cotangents)
        with jax.enable_x64(wide):
            found = iter(push(moved))
        out = [
            next(found) if is_differentiable(v.aval) else np.zeros(v.aval.shape, jax.dtypes.float0)
            for v in region.results
        ]
        return results, out

    rule.defjvp(jvp)
    return rule


def _custom_vjp(region: _Region, backward: Any, shared: Sequence[int], wide: bool) -> Any:
    """A gradient that is not linear in the cotangents, as where it is clipped."""
    function = _function(region, wide)
    pull = _pull(region, backward, shared, wide)
    first = len(region.operands) - len(region.inputs)
    places = [i for i, v in enumerate(region.results) if is_differentiable(v.aval)]
    rule = jax.custom_vjp(function)

    def forward(*operands: Any) -> Any:
        return function(*operands), operands

    def back(operands: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        found = pull(operands, [cotangents[i] for i in places])
        out: list[Any] = [None] * len(operands)
        for i, g in zip(region.wanted, found, strict=True):
            out[first + i] = g
        return tuple(out)

    rule.defvjp(forward, back)
    return rule


def _is_linear(region: _Region, backward: Any, shared: Sequence[int], wide: bool) -> bool:
    """Whether the gradient is linear in the cotangents: JAX can transpose it, and numbers agree."""
    pull = _pull(region, backward, shared, wide)
    n = len(region.operands)
    types = [_type(v) for v in (*region.operands, *region.numbers)]
    moved = [_type(region.inputs[i]) for i in region.wanted]

    def push(*values: Any) -> Any:
        transposed = jax.linear_transpose(lambda *cts: pull(values[:n], cts), *types[n:])
        return transposed(tuple(values[n:]))

    def at(*values: Any) -> Any:
        return pull(values[:n], values[n:])

    try:
        _compat.trace_closed(push, *types[:n], *moved)
        with jax.enable_x64(wide):
            run = jax.jit(at)
            for values in _samples(types, len(region.numbers))[::3]:
                operands, a = values[:n], values[n:]
                b = [np.asarray(30 * np.roll(x, 1), x.dtype) for x in a]
                zero = run(*operands, *(np.zeros_like(x) for x in a))
                both = run(
                    *operands, *(np.asarray(x + y, x.dtype) for x, y in zip(a, b, strict=True))
                )
                parts_ = zip(run(*operands, *a), run(*operands, *b), both, zero, strict=True)
                for one, two, sum_, none in parts_:
                    if np.any(np.nan_to_num(np.asarray(none), posinf=0.0, neginf=0.0)):
                        return False
                    if _beyond_rounding(np.asarray(one) + np.asarray(two), np.asarray(sum_)):
                        return False
    except _FAILURES:
        return False
    return True
