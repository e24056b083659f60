"""Gradients that are kept: functions with a rule, and the numbers that tell two gradients apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from invert._errors import InvertError
from invert._private.jax import consts_of, core, eval_closed, eval_jaxpr, open_jaxpr, trace_closed
from invert._verify import largest_gap
from invert.ir import jaxprs
from invert.ir.gradient_marker import is_differentiable
from invert.ir.linearity import is_linear
from invert.rewriting.pattern import Graph


class Region(Protocol):
    """The equations between the arguments and the results of a marked gradient.

    **Attributes:**

    - `operands`: all variables from outside: the constants `held`, others, then the `inputs`.
    - `results`: the results; `numbers` are those that have a tangent.
    - `wanted`: positions of the inputs that the gradient gives cotangents for.
    - `constants`: values of the constants; `avals`: types of the others and the cotangents.
    - `forward`: the equations as a closed jaxpr over `operands`.
    """

    held: Any
    operands: Any
    inputs: Any
    results: Any
    numbers: Any
    wanted: Any
    constants: Any
    avals: Any
    forward: Any

    def autodiff(self, *values: Any) -> list[Any]:
        """What automatic differentiation gives for `avals`."""
        ...

    def autodiff_of(self, program: Callable[..., list[Any]], values: Sequence[Any]) -> list[Any]:
        """The same for another program over `operands`."""
        ...


# What JAX raises where it cannot differentiate, transpose, lower or run a program.
FAILURES = (
    ArithmeticError, AssertionError, AttributeError, KeyError, NotImplementedError, RuntimeError,
    TypeError, ValueError, InvertError,
)  # fmt: skip


def type_of(v: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a variable."""
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)


def samples(avals: Sequence[Any], cotangents: int) -> list[list[np.ndarray]]:
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
                # Positions: mostly in bounds, far outside where the numbers are large.
                x = np.asarray(make(aval.shape))
                large = np.abs(x).max(initial=0) == 100 and jnp.issubdtype(dtype, jnp.signedinteger)
                x = x if large else rng.integers(0, 4, aval.shape)
            else:
                x = make(aval.shape)
            if jnp.issubdtype(dtype, jnp.complexfloating):
                x = x + 1j * rng.standard_normal(aval.shape)
            values.append(np.asarray(x).astype(dtype))
        found.append(values)
    return found


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled for a few calls: without the optimizations that take most of the time.

    Sums are then rounded in another order or not fused, which numbers are compared up to anyway.
    """
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def largest_difference(region: Region, raw: Any, wide: bool) -> float:
    """Largest difference of the two gradients that rounding does not explain; 0 where none."""
    largest = 0.0
    with jax.enable_x64(wide):
        both = once(lambda *xs: (eval_closed(raw, xs), region.autodiff(*xs)))
        count = len(region.numbers)
        for values in samples(region.avals, count):
            moved = both(*values[:-count], *map(_rounded, values[-count:]))[0]
            for x, y, z in zip(*both(*values), moved, strict=True):
                gap = beyond_rounding(np.asarray(x), np.asarray(y), np.asarray(z))
                largest = max(largest, gap)
    return largest


# By how many units in the last place results may differ where sums round many times.
_ULPS = 1e3


def _rounded(cotangent: np.ndarray) -> np.ndarray:
    """A cotangent, rounded as coarsely as two orders of the same sums may differ."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], cotangent.shape)
    step = _ULPS * float(jnp.finfo(cotangent.dtype).eps)
    return np.asarray(cotangent * (1 + step * signs), cotangent.dtype)


def may_not_end(closed: Any) -> bool:
    """Whether a loop in a program ends on data: on arguments drawn at random it may never."""
    return any(
        eqn.primitive.name == "while" and not _counts(eqn.params["cond_jaxpr"])
        for eqn in jaxprs.equations(open_jaxpr(closed))
    )


def _counts(condition: Any) -> bool:
    """Whether a condition is one comparison of whole numbers."""
    eqns = open_jaxpr(condition).eqns
    avals: list[Any] = [a.aval for eqn in eqns for a in eqn.invars]
    return len(eqns) == 1 and all(
        jnp.issubdtype(a.dtype, jnp.integer) and not a.shape for a in avals
    )


def beyond_rounding(x: np.ndarray, y: np.ndarray, moved: np.ndarray | None = None) -> float:
    """The gap where `x` is finite; elsewhere it says nothing, as at a singular matrix.

    `moved` is `x` for rounded cotangents: where terms cancel, as in the gradient of a softmax, the
    results say too little about the numbers that were rounded on the way.
    """
    finite_x = np.isfinite(x)
    noise = 0.0
    if moved is not None and x.dtype.itemsize > 2:
        both = finite_x & np.isfinite(moved)
        steps = np.abs(moved[both] - x[both])
        noise = float(steps.max(initial=0.0))
    x, y = x[finite_x], y[finite_x]
    gap = largest_gap(x, y)
    if gap <= noise:
        return 0.0
    finite = np.abs(y[np.isfinite(y)]) if y.size else y
    scale = float(finite.max()) if finite.size else 1.0
    eps = float(jnp.finfo(x.dtype).eps)
    # Long sums round many times; in 16 bits, so many that more would hide a real difference.
    return gap if gap > (_ULPS if eps < 1e-5 else 16) * eps * scale else 0.0


@dataclasses.dataclass(frozen=True)
class Rule:
    """A function of `operands` with a derivative of its own."""

    function: Callable[..., Any]
    operands: Any
    kind: str


def stopped(*values: Any) -> list[Any]:
    """The values, whose derivative is zero."""
    return [jax.lax.stop_gradient(v) for v in values]


def is_zero(closed: Any) -> bool:
    """Whether all results of a program are zero, whatever its arguments."""
    graph = Graph(closed, consts_of(closed))

    def zero(atom: Any) -> bool:
        if isinstance(atom, core.Literal):
            return not np.any(atom.val)
        eqn = graph.producers.get(atom)
        return eqn is not None and eqn.primitive.name == "broadcast_in_dim" and zero(eqn.invars[0])

    return bool(graph.jaxpr.outvars) and all(map(zero, graph.jaxpr.outvars))


def make_rule(region: Region, backward: Any, wide: bool, linear: bool) -> Rule:
    """A rule for both modes where JAX can transpose the gradient (`linear`)."""
    make, kind = (_custom_jvp, "custom_jvp") if linear else (_custom_vjp, "custom_vjp")
    backward, shared = _share(backward, region)
    return Rule(make(region, backward, shared, wide), region.operands, kind)


def _share(backward: Any, region: Region) -> tuple[Any, list[int]]:
    """The gradient over the constants of the region, which hold its own copies; their places."""
    jaxpr, constants = jaxprs.split_constants(backward)
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
        return eval_jaxpr(jaxpr, [*held, *rest])

    return run, [i for i in places if i >= 0]


def _pull(region: Region, backward: Any, shared: Sequence[int], wide: bool) -> Callable[..., Any]:
    """The gradient as a function of the operands and the cotangents."""

    def pull(operands: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        rest = operands[len(region.held) :]
        with jax.enable_x64(wide):
            return tuple(backward(*(operands[i] for i in shared), *rest, *cotangents))

    return pull


def plain_function(region: Region, wide: bool) -> Callable[..., Any]:
    def recovered(*operands: Any) -> list[Any]:
        with jax.enable_x64(wide):
            return eval_closed(region.forward, operands)

    return recovered


def _custom_jvp(region: Region, backward: Any, shared: Sequence[int], wide: bool) -> Any:
    """The derivative in a direction is the transpose of the gradient, which is linear."""
    function = plain_function(region, wide)
    pull = _pull(region, backward, shared, wide)
    first = len(region.operands) - len(region.inputs)
    cotangents = [type_of(v) for v in region.numbers]
    rule = jax.custom_jvp(function)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        # The results keep the rule, for the next derivative.
        results = rule(*primals)
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


def _custom_vjp(region: Region, backward: Any, shared: Sequence[int], wide: bool) -> Any:
    """A gradient that is not linear in the cotangents, as where it is clipped."""
    function = plain_function(region, wide)
    pull = _pull(region, backward, shared, wide)
    first = len(region.operands) - len(region.inputs)
    places = [i for i, v in enumerate(region.results) if is_differentiable(v.aval)]
    rule = jax.custom_vjp(function)

    def forward(*operands: Any) -> Any:
        return rule(*operands), operands

    def back(operands: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        found = pull(operands, [cotangents[i] for i in places])
        out: list[Any] = [None] * len(operands)
        for i, g in zip(region.wanted, found, strict=True):
            out[first + i] = g
        return tuple(out)

    rule.defvjp(forward, back)
    return rule


def is_transposable(region: Region, backward: Any, wide: bool) -> bool:
    """Whether the gradient is linear in the cotangents: JAX can transpose it, and its equations
    show it or numbers agree."""
    shown = is_linear(backward, len(region.numbers))
    pull = _pull(region, *_share(backward, region), wide)
    n = len(region.operands)
    types = [type_of(v) for v in (*region.operands, *region.numbers)]
    moved = [type_of(region.inputs[i]) for i in region.wanted]

    def push(*values: Any) -> Any:
        transposed = jax.linear_transpose(lambda *cts: pull(values[:n], cts), *types[n:])
        return transposed(tuple(values[n:]))

    def at(*values: Any) -> Any:
        return pull(values[:n], values[n:])

    try:
        trace_closed(push, *types[:n], *moved)
        if shown:
            return True
        with jax.enable_x64(wide):
            run = once(at)
            for values in samples(types, len(region.numbers))[::3]:
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
                    if beyond_rounding(np.asarray(one) + np.asarray(two), np.asarray(sum_)):
                        return False
    except FAILURES:
        return False
    return True
