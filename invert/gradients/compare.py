"""Numerical comparison of gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from invert._errors import InvertError
from invert._private.jax import SIZE_ERRORS, eval_closed, open_jaxpr, trace_closed
from invert.gradients.conditions import Conditions, Watched
from invert.gradients.region import MarkedRegion
from invert.gradients.samples import samples, special, with_zeros
from invert.gradients.widened import OneWidthError, wide, widened
from invert.ir import jaxprs
from invert.ir.graph import is_var
from invert.ir.loops import WhileParts
from invert.ir.numbers import largest_gap, on_cpu
from invert.ir.substitution import samples as sizes_of
from invert.ir.substitution import substitute
from invert.ir.types import AnyJaxpr, Aval, JaxFunction, Value, Var

# What JAX raises if it cannot differentiate, lower or run a correct program: `jax.vjp` raises
# `ValueError` for a loop without a reverse derivative, and `TypeError` for a `custom_vjp`
# differentiated in forward mode. A primitive without a derivative or a lowering raises
# `NotImplementedError`. The compiler and the running program raise `JaxRuntimeError`.
FAILURES = (
    NotImplementedError, TypeError, ValueError, InvertError, jax.errors.JaxRuntimeError,
    *SIZE_ERRORS,
)  # fmt: skip

# The same for `jax.linear_transpose`, whose rules for products (`lax.mul`, `dot_general`) only
# assert that the function is linear, and whose rule for `lax.div` raises `RuntimeError`.
NOT_TRANSPOSED = (*FAILURES, AssertionError, RuntimeError)


class OtherShapesError(InvertError):
    """The container's gradient does not have the shapes of the arguments.

    At open sizes it may have them where the sizes meet the constraints of the container.
    """


def once(function: JaxFunction) -> JaxFunction:
    """Compile `function` for a few calls, without expensive optimizations.

    Rounding may differ, but comparisons allow for that anyway.
    """
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def differences(
    region: MarkedRegion,
    raw: AnyJaxpr,
    x64: bool,
    other: AnyJaxpr | None = None,
    conditions: Conditions | None = None,
    closer: bool = False,
) -> Iterator[float]:
    """The differences of two gradients at the values of `samples`, beyond rounding.

    **Arguments:**

    - `other`: automatic differentiation of the region as a program; traced by default.
    - `conditions`: takes the conditions of the two programs and their outcomes. If some are not
        met, the gradients are compared at special values, too.
    - `closer`: compares what seems to differ by rounding again, computed in 64 bits if it can be.
    """
    count = len(region.numbers)
    if other is None:
        other = region.traced_autodiff(x64)
    pair = raw, other

    def run_both(*xs: Value) -> list[Value]:
        return [y for program in pair for y in eval_closed(program, xs)]

    with jax.enable_x64(x64), on_cpu():
        both = trace_closed(run_both, *region.avals)
        chosen = sizes_of(both)
        if conditions is not None:
            conditions.add_sizes(pair, chosen)
        for sizes in chosen:
            one, two, program = (substitute(p, sizes) if sizes else p for p in (*pair, both))
            if conditions is None:
                runs = [functools.partial(_unwatched, p) for p in (one, two)]
            else:
                runs = conditions.add((one, two), bool(sizes))
            run = once(functools.partial(_results, runs))
            run_wide = once(functools.partial(_in_64_bits, (one, two)))
            types = [v.aval for v in open_jaxpr(program).invars]
            usual: list[float] = []
            for values, is_partly_zero in _points(types, count, program, conditions):
                results, seen = [], []
                for found, outcomes in run(*values):
                    results.append(tuple(map(np.asarray, found)))
                    seen.append(outcomes)
                # Where all gradients are zero, as behind a matrix of zeros, nothing is compared.
                if conditions is not None and any(map(np.any, itertools.chain(*results))):
                    for outcomes in seen:
                        conditions.met(outcomes)
                if [x.shape for x in results[0]] != [x.shape for x in results[1]]:
                    raise OtherShapesError(
                        "the gradient has other shapes than the arguments, at some of their sizes"
                    )
                usual = usual or list(map(_largest, results[0]))
                if all(map(np.array_equal, *results)):
                    yield 0.0
                    continue
                moved = run(*values[:-count], *map(_rounded, values[-count:]))[0][0]
                # Where large terms are zero, the roundings of terms that cancel remain.
                least = usual if is_partly_zero else [0.0] * len(usual)
                gap = max(map(beyond_rounding, *results, map(np.asarray, moved), least))
                if gap or not closer:
                    yield gap
                    continue
                try:
                    with jax.enable_x64(True):
                        close = run_wide(*map(wide, values))
                except OneWidthError:
                    closer = False
                    yield gap
                else:
                    yield max(map(_wide_gap, *results, *close))


def _points(
    types: Sequence[Aval], count: int, program: AnyJaxpr, conditions: Conditions | None
) -> Iterator[tuple[list[np.ndarray], bool]]:
    """Values, and whether some of the arguments are zero."""
    yield from ((values, False) for values in samples(types, count, program))
    yield from ((values, True) for values in with_zeros(types, count))
    if conditions is not None and not conditions.are_met:
        yield from ((values, False) for values in special(types, count))


def _unwatched(program: AnyJaxpr, values: Sequence[Value]) -> Watched:
    return eval_closed(program, values), {}


def _in_64_bits(programs: Sequence[AnyJaxpr], *xs: Value) -> list[list[Value]]:
    return [widened(program, xs) for program in programs]


def _results(runs: Sequence[Callable[[Sequence[Value]], Watched]], *xs: Value) -> list[Watched]:
    return [run(xs) for run in runs]


def first_difference(
    region: MarkedRegion,
    raw: AnyJaxpr,
    x64: bool,
    other: AnyJaxpr | None = None,
    conditions: Conditions | None = None,
) -> float:
    """The first difference of two gradients, or 0; see `differences`."""
    gaps = differences(region, raw, x64, other, conditions, closer=True)
    return next(filter(None, gaps), 0.0)


# Tolerance after long sums, in units in the last place.
_ULPS = 1e3
# Tolerance in 64 bits, relative to the largest number: constants and expansions of functions
# remain those of narrower programs.
_WIDE_TOLERANCE = 1e-6


def _rounded(cotangent: np.ndarray) -> np.ndarray:
    """Perturb a cotangent by the rounding difference between two orders of one sum."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], cotangent.shape)
    step = _ULPS * float(jnp.finfo(cotangent.dtype).eps)
    return np.asarray(cotangent * (1 + step * signs), cotangent.dtype)


def may_not_end(closed: AnyJaxpr) -> bool:
    """Return whether a loop's end depends on data: on random arguments it might run forever."""
    return any(
        eqn.primitive.name == "while" and not counts(WhileParts.of(eqn).cond)
        for eqn in jaxprs.equations(open_jaxpr(closed))
    )


def counts(condition: AnyJaxpr) -> bool:
    """Return whether a condition is a single comparison of scalar integers, beside open sizes."""
    eqns, sizes = [], set[Var]()
    for eqn in open_jaxpr(condition).eqns:
        if all(a in sizes for a in eqn.invars if is_var(a)):
            sizes.update(eqn.outvars)
        else:
            eqns.append(eqn)
    avals: list[Aval] = [a.aval for eqn in eqns for a in eqn.invars]
    return len(eqns) == 1 and all(
        jnp.issubdtype(a.dtype, jnp.integer) and not a.shape for a in avals
    )


def _largest(x: np.ndarray) -> float:
    """The largest finite absolute value, 0 if there is none."""
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def beyond_rounding(
    x: np.ndarray, y: np.ndarray, moved: np.ndarray | None = None, least: float = 0.0
) -> float:
    """The gap between `x` and `y` where `x` is finite, beyond what rounding explains.

    `moved` is `x` for perturbed cotangents. It shows the rounding errors of terms that cancel, as
    in the gradient of a softmax, which the results themselves do not show. `least` is the size of
    such terms, if it is known.
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
    scale = max(_largest(y), least) if np.isfinite(y).any() else 1.0
    eps = float(jnp.finfo(x.dtype).eps)
    # Long sums round many times. In 16 bits, a larger tolerance would hide real differences.
    if gap > (_ULPS if eps < 1e-5 else 16) * eps * scale:
        return gap
    # A factor near one hides in the roundings of a number in 16 bits, but not in those of many.
    return gap if eps > 1e-5 and not _have_one_scale(x, y, eps) else 0.0


def _wide_gap(x: np.ndarray, y: np.ndarray, wide_x: Value, wide_y: Value) -> float:
    """The largest gap in 64 bits beyond tolerance, where `x` and `y` are finite as well."""
    a, b = np.asarray(wide_x), np.asarray(wide_y)
    is_finite = np.logical_and.reduce([*map(np.isfinite, (x, y, a, b))])
    gap = largest_gap(a[is_finite], b[is_finite])
    return gap if gap > _WIDE_TOLERANCE * _largest(b[is_finite]) else 0.0


def _have_one_scale(x: np.ndarray, y: np.ndarray, eps: float) -> bool:
    """Return whether the best scale factor between two arrays is one, up to rounding."""
    both = np.isfinite(x) & np.isfinite(y)
    a, b = (np.asarray(v[both], np.float64) for v in (x, y))
    largest = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    if not largest:
        return True
    a, b = a / largest, b / largest
    weight = float(a @ a)
    # The sum of `weight` independent roundings of up to 16 units, and one that all have in common.
    tolerance = (1 + 16 / max(1.0, weight) ** 0.5) * eps
    return abs(float(a @ b) / weight - 1) <= tolerance
