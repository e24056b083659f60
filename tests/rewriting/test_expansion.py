"""Programs compared by the lowering of their equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert._cache import Cache
from invert._private.jax import eval_closed, trace_closed
from invert.ir import jaxprs
from invert.ir.match import difference
from invert.ir.types import ClosedJaxpr
from invert.rewriting import expansion, traced_scans
from invert.rewriting.expansion import lower_alike
from invert.rewriting.pattern import bind
from invert.rewriting.templates import raise_call
from invert.stablehlo.lowered import raised_again

X = jax.ShapeDtypeStruct((3, 5), np.float32)


def _lowered(program: ClosedJaxpr) -> Any:
    """The program as a module would contain it."""
    types = [v.aval for v in program.jaxpr.invars]
    outs: Any = [v.aval for v in program.jaxpr.outvars]
    run = lambda *xs: eval_closed(program, xs)  # noqa: E731
    return raised_again(run, types, outs, platform="cpu", x64=False)


def _twice(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(jax.nn.gelu(x)) @ x.T


def _rows(x: jax.Array) -> jax.Array:
    def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h + row * x.sum())
        return h, jnp.cumsum(h)

    return lax.scan(step, jnp.zeros(5), x)[1]


def _branches(x: jax.Array) -> jax.Array:
    return lax.cond(x.sum() > 0, jnp.cumsum, lambda v: jnp.arccosh(v.ravel()), x)


def _draws(x: jax.Array) -> jax.Array:
    one, two = jax.random.split(jax.random.key(x[0, 0].astype(np.int32)))
    return x + jax.random.normal(one, x.shape) * jax.random.bits(two, (5,))


@pytest.mark.parametrize(
    "function", [_twice, _rows, _branches, _draws, jnp.argmax, jnp.sinc, jnp.sort]
)
def test_a_program_equals_its_lowering(function: Callable[..., Any]) -> None:
    program = trace_closed(function, X)
    with jax.enable_x64(True):
        assert lower_alike(_lowered(program), program, (), platform="cpu", x64=False)


@pytest.mark.parametrize(
    "one, two",
    [
        (_twice, lambda x: jax.nn.softmax(jax.nn.gelu(x, approximate=False)) @ x.T),
        (_twice, lambda x: jax.nn.softmax(jax.nn.gelu(x), axis=0) @ x.T),
        (_rows, lambda x: _rows(x[::-1])),
        (jnp.cumsum, lambda x: lax.cumsum(x.ravel(), reverse=True)),
        (lambda x: x - x.mean(), lambda x: x.mean() - x),
        (lambda x: x**2, lambda x: x**3),
        (lambda x: _parts(x), lambda x: _parts(x, sizes=(2, 3))),
        (lambda x: _parts(x), lambda x: _parts(x, sizes=(2, 1), axis=0)),
        (lambda x: lax.scan(_step, x[0], x)[1], lambda x: lax.scan(_step, x[1], x)[1]),
        (lambda x: x * 2.0, lambda x: x * np.float32(2.0000002)),
    ],
)
def test_other_programs_are_not(one: Callable[..., Any], two: Callable[..., Any]) -> None:
    a, b = trace_closed(one, X), trace_closed(two, X)
    with jax.enable_x64(True):
        assert not lower_alike(_lowered(a), b, (), platform="cpu", x64=False)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The primitives lowered together, each time."""
    lowered: list[list[str]] = []
    lower = expansion._lowered

    def counted(calls: Any, *args: Any) -> Any:
        if calls:
            lowered.append([call.eqn.primitive.name for call in calls])
        return lower(calls, *args)

    monkeypatch.setattr(expansion, "_TEMPLATES", {})
    monkeypatch.setattr(expansion, "_lowered", counted)
    return lowered


def test_equations_of_both_programs_are_not_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    a = trace_closed(lambda x: jnp.tanh(jnp.cumsum(jnp.sin(x) @ x.T)), X)
    again = _lowered(a)
    lowered = _counted(monkeypatch)
    assert lower_alike(again, a, (), platform="cpu", x64=False)
    (together,) = lowered
    assert "cumsum" in together and not {"tanh", "sin", "dot_general"} & {*together}


def test_only_equations_that_lowering_changes_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of a lowering is not lowered again."""
    a = trace_closed(lambda x: lax.lgamma(x) + jnp.sin(x), X)
    again = _lowered(a)
    lowered = _counted(monkeypatch)
    assert lower_alike(again, a, (), platform="cpu", x64=False)
    assert lowered == [["lgamma"]]


def _parts(x: jax.Array, *, sizes: tuple[int, ...] = (3, 2), axis: int = 1) -> jax.Array:
    one, two = lax.split(x, sizes, axis)
    return one.sum() - two.prod()


@pytest.mark.parametrize("function", [_parts, lambda x: lax.scan(_step, x[0], x)])
def test_splits_and_loops_that_fill_arrays_are_not_lowered(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    a = trace_closed(function, X)
    again = _lowered(a)
    lowered = _counted(monkeypatch)
    assert lower_alike(again, a, (), platform="cpu", x64=False)
    assert not lowered


def _step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(h + row), h * row


def test_what_a_pattern_lowered_is_not_lowered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    a = trace_closed(lambda x: lax.lgamma(x * 2.0), X)
    again = _lowered(a)
    lowered = _counted(monkeypatch)
    assert raise_call(bind(lax.lgamma_p, X), "cpu") is not None
    assert lower_alike(again, a, (), platform="cpu", x64=False)
    assert not lowered


def test_lowered_equations_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    first = trace_closed(lambda x: jnp.cumsum(x, 1) * 2.0, X)
    second = trace_closed(lambda x: jnp.sin(jnp.cumsum(jnp.cumsum(x, 1), 1)), X)
    programs = [(_lowered(p), p) for p in (first, second)]
    lowered = _counted(monkeypatch)
    for program in programs:
        assert lower_alike(*program, (), platform="cpu", x64=False)
    assert len([names for names in lowered if "cumsum" in names]) == 1


def _loop(step: Callable[..., Any], reverse: bool = False) -> ClosedJaxpr:
    def run(x: jax.Array) -> Any:
        return lax.scan(step, (x[0], x[0] * 2), x, reverse=reverse)

    return trace_closed(run, X)


# Loops that differ in one place each: a number, an operand, a result, a parameter, an order.
_LOOPS = (
    _loop(lambda h, x: ((jnp.cumsum(h[0]) + x, h[1] * 2), h[0])),
    _loop(lambda h, x: ((jnp.cumsum(h[0]) + x, h[1] * 3), h[0])),
    _loop(lambda h, x: ((jnp.cumsum(h[1]) + x, h[1] * 2), h[0])),
    _loop(lambda h, x: ((jnp.cumsum(h[0]) + x, h[1] * 2), h[1])),
    _loop(lambda h, x: ((lax.cumsum(h[0], reverse=True) + x, h[1] * 2), h[0])),
    _loop(lambda h, x: ((jnp.cumsum(h[0]) + x, h[1] * 2), h[0]), reverse=True),
)


def test_traced_loops_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = _counted(monkeypatch)
    with jax.enable_x64(True):
        texts = [_lowered(loop) for loop in _LOOPS]
        for _ in range(2):
            for i, text in enumerate(texts):
                alike = [lower_alike(text, p, (), platform="cpu", x64=False) for p in _LOOPS]
                assert [k for k, found in enumerate(alike) if found] == [i]
    assert not any("scan" in names for names in lowered)
    # Traced again, they are other objects and equal.
    again = _loop(lambda h, x: ((jnp.cumsum(h[0]) + x, h[1] * 2), h[0]))
    with jax.enable_x64(True):
        assert lower_alike(texts[0], again, (), platform="cpu", x64=False)
    assert not any("scan" in str(kind) for kind in expansion._TEMPLATES)


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}, {"unroll": True}])
def test_the_loop_of_a_scan_serves_another_body(options: dict[str, Any]) -> None:
    def nested(number: float) -> ClosedJaxpr:
        def step(h: jax.Array, row: jax.Array) -> Any:
            def inner(h: jax.Array, row: jax.Array) -> Any:
                return jnp.tanh(h * number + row), h.sum()

            return lax.scan(inner, h, x, **options)

        x = jnp.ones((3, 5))
        return trace_closed(lambda h, x: lax.scan(step, h, x, **options), x[0], x)

    def traced(program: ClosedJaxpr) -> ClosedJaxpr:
        loops = traced_scans.with_traced_scans(program, platform="cpu", x64=False)
        return jaxprs.canonicalize(loops)

    one, two = nested(2.0), nested(3.0)
    traced_scans._LOOPS.clear()
    alone = traced(two)
    assert "scan" not in jaxprs.names_in(alone.jaxpr)
    traced_scans._LOOPS.clear()
    assert difference(traced(one), alone) is not None
    known = len(traced_scans._LOOPS)
    assert difference(traced(two), alone) is None
    assert 0 < known == len(traced_scans._LOOPS)


def _rolled(length: int, **options: Any) -> Callable[..., Any]:
    """A loop over rows in a loop over columns, with integers of two widths."""

    def run(x: jax.Array) -> Any:
        def inner(h: Any, row: jax.Array) -> Any:
            total, count = h
            total = total + jax.nn.sigmoid(row) * jnp.cumsum(row * x[0])[-1]
            return (total, count + 1), total.sum()

        def outer(count: Any, column: jax.Array) -> Any:
            (total, count), sums = lax.scan(inner, (jnp.zeros(()), count), column, **options)
            return count, (total, sums)

        return lax.scan(outer, np.int64(0), x[:length].T)[1]

    return run


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}, {"unroll": 3}])
def test_loops_in_loops_are_traced(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without remaining steps after the unrolled ones."""
    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct((n, 2), np.float32) for n in (3, 4)]
        program, other = (trace_closed(_rolled(a.shape[0], **options), a) for a in avals)
        types = [v.aval for v in program.jaxpr.invars]
        outs: Any = [v.aval for v in program.jaxpr.outvars]
        run = lambda *xs: eval_closed(program, xs)  # noqa: E731
        again = raised_again(run, types, outs, platform="cpu", x64=True)
        lowered = _counted(monkeypatch)
        assert lower_alike(again, program, (), platform="cpu", x64=True)
        assert not any("scan" in names or "while" in names for names in lowered)
        assert not lower_alike(again, other, (), platform="cpu", x64=True)


def test_a_loop_that_carries_keys_is_lowered() -> None:
    """In a module, its carries are words."""

    def run(x: jax.Array) -> Any:
        def step(key: jax.Array, row: jax.Array) -> Any:
            key, other = jax.random.split(key)
            return key, row * jax.random.uniform(other)

        return lax.scan(step, jax.random.key(0), x)[1]

    program = trace_closed(run, X)
    with jax.enable_x64(True):
        assert lower_alike(_lowered(program), program, (), platform="cpu", x64=False)


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [trace_closed(lambda x, n=n: jnp.cumsum(x[:n], 1), X) for n in (1, 2, 3)]
    pairs = [(_lowered(p), p) for p in programs]
    _counted(monkeypatch)
    monkeypatch.setattr(expansion, "_TEMPLATES", Cache(2))
    for pair in pairs:
        assert lower_alike(*pair, (), platform="cpu", x64=False)
    assert len(expansion._TEMPLATES) <= 2
