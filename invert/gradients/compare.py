"""Numerical comparison of gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from invert._errors import InvertError
from invert._private.jax import SIZE_ERRORS, eval_closed, open_jaxpr, trace_closed
from invert.gradients.region import MarkedRegion
from invert.gradients.samples import samples, special, tests_special_values
from invert.ir import jaxprs
from invert.ir.graph import is_var
from invert.ir.loops import WhileParts
from invert.ir.numbers import largest_gap, on_cpu
from invert.ir.substitution import at_samples
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


def differences(region: MarkedRegion, raw: AnyJaxpr, x64: bool) -> Iterator[float]:
    """The differences of two gradients at the values of `samples`, beyond rounding."""
    count = len(region.numbers)
    with jax.enable_x64(x64), on_cpu():
        traced = trace_closed(
            lambda *xs: [*eval_closed(raw, xs), *region.autodiff(*xs)], *region.avals
        )
        for program in at_samples(traced):
            run = once(functools.partial(_halves, program))
            types = [v.aval for v in open_jaxpr(program).invars]
            points = samples(types, count, program)
            tests = tests_special_values(raw)
            if tests > tests_special_values(program) - tests:
                points = itertools.chain(points, special(types, count))
            for values in points:
                results = [tuple(map(np.asarray, half)) for half in run(*values)]
                if [x.shape for x in results[0]] != [x.shape for x in results[1]]:
                    raise OtherShapesError(
                        "the gradient has other shapes than the arguments, at some of their sizes"
                    )
                if all(map(np.array_equal, *results)):
                    yield 0.0
                    continue
                moved = run(*values[:-count], *map(_rounded, values[-count:]))[0]
                yield max(map(beyond_rounding, *results, map(np.asarray, moved)))


def first_difference(region: MarkedRegion, raw: AnyJaxpr, x64: bool) -> float:
    """The first difference of two gradients, or 0; see `differences`."""
    return next(filter(None, differences(region, raw, x64)), 0.0)


def _halves(program: AnyJaxpr, *values: Value) -> tuple[list[Value], list[Value]]:
    results = eval_closed(program, values)
    return results[: len(results) // 2], results[len(results) // 2 :]


# Tolerance after long sums, in units in the last place.
_ULPS = 1e3


def _rounded(cotangent: np.ndarray) -> np.ndarray:
    """Perturb a cotangent by the rounding difference between two orders of one sum."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], cotangent.shape)
    step = _ULPS * float(jnp.finfo(cotangent.dtype).eps)
    return np.asarray(cotangent * (1 + step * signs), cotangent.dtype)


def may_not_end(closed: AnyJaxpr) -> bool:
    """Return whether a loop's end depends on data: on random arguments it might run forever."""
    return any(
        eqn.primitive.name == "while" and not _counts(WhileParts.of(eqn).cond)
        for eqn in jaxprs.equations(open_jaxpr(closed))
    )


def _counts(condition: AnyJaxpr) -> bool:
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


def beyond_rounding(x: np.ndarray, y: np.ndarray, moved: np.ndarray | None = None) -> float:
    """The gap between `x` and `y` where `x` is finite, beyond what rounding explains.

    `moved` is `x` for perturbed cotangents. It shows the rounding errors of terms that cancel, as
    in the gradient of a softmax, which the results themselves do not show.
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
    # Long sums round many times. In 16 bits, a larger tolerance would hide real differences.
    return gap if gap > (_ULPS if eps < 1e-5 else 16) * eps * scale else 0.0
