"""The short form of patterns: two functions, at any shapes and dtypes; refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from tests.rewriting.rewrites import calls, rewritten

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
V = np.linspace(0.5, 1, 4, dtype=np.float32)


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a call of this name."""

    def outlined(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    outlined.__name__ = outlined.__qualname__ = name
    return jax.jit(outlined, static_argnames=("axis",))


def _rms(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _unit(x: Any, *, axis: int) -> Any:
    return x / jnp.sqrt(jnp.sum(x * x, axis, keepdims=True))


def _rotated(a: Any, b: Any, c: Any, s: Any) -> Any:
    return a * c - b * s, a * s + b * c


def _hard_swish(x: Any) -> Any:
    return x * jnp.minimum(jnp.maximum(x + 3, 0), 6) / 6


def _relu2(x: Any) -> Any:
    return jnp.maximum(x, 0) * jnp.maximum(x, 0)


def _softplus(x: Any) -> Any:
    return jnp.log1p(jnp.exp(x))


def _scaled(x: Any, y: Any, a: Any) -> Any:
    return jnp.sin(x) * a + jnp.cos(y)


HARD_SWISH = invert.pattern(_hard_swish, jax.nn.hard_swish, name="hard_swish")
RELU2 = invert.pattern(_relu2, lambda x: jnp.square(jax.nn.relu(x)), name="relu2")
SOFTPLUS = invert.pattern(_softplus, jax.nn.softplus)
RMS = invert.pattern(_rms, named("rms_norm", _rms))
UNIT = invert.pattern(_unit, named("unit", _unit), options={"axis": (0, -1)})
ROTATED = invert.pattern(_rotated, named("rotated", _rotated))
SCALED = invert.pattern(_scaled, named("scaled", _scaled))


def in_dtype(dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    return [jnp.linspace(0.1, 2, int(np.prod(s)), dtype=dtype).reshape(s) for s in shapes]


FOUND = {
    "hard_swish": (_hard_swish, HARD_SWISH, (X,), ["hard_silu"]),
    "relu2": (_relu2, RELU2, (X,), ["custom_jvp_call", "square"]),
    "softplus": (_softplus, SOFTPLUS, (X,), ["softplus"]),
    "of a scalar": (_softplus, SOFTPLUS, (X[0, 0],), ["softplus"]),
    "of four axes": (_softplus, SOFTPLUS, (X.reshape(3, 1, 2, 2),), ["softplus"]),
    "rms": (_rms, RMS, (X, V), ["rms_norm"]),
    "rms of equal shapes": (_rms, RMS, (X, X), ["rms_norm"]),
    "rms by a scalar": (_rms, RMS, (X, V[0]), ["rms_norm"]),
    "rms, three axes": (_rms, RMS, in_dtype(np.float32, (2, 3, 4), (4,)), ["rms_norm"]),
    "rms, bfloat16": (_rms, RMS, in_dtype(jnp.bfloat16, (3, 4), (4,)), ["rms_norm"]),
    "rms, mixed": (
        _rms,
        RMS,
        (in_dtype(jnp.bfloat16, (3, 4))[0], V),
        ["rms_norm"],
    ),
    "an option": (lambda x: _unit(x, axis=-1), UNIT, (X,), ["unit"]),
    "another option": (lambda x: _unit(x, axis=0), UNIT, (X,), ["unit"]),
    "several results": (_rotated, ROTATED, (X, X + 1, V, V + 1), ["rotated"]),
    "one result of them": (lambda *a: _rotated(*a)[0], ROTATED, (X, X + 1, V, V + 1), ["rotated"]),
    "a number as an operand": (lambda x, y: _scaled(x, y, 3.0), SCALED, (X, V), ["scaled"]),
    "the other order": (
        lambda x: jnp.minimum(6, jnp.maximum(0, 3 + x)) * x / 6,
        HARD_SWISH,
        (X,),
        ["hard_silu"],
    ),
    "the other order of many": (
        lambda x, s: s * (lax.rsqrt(1e-6 + jnp.mean(x * x, -1, keepdims=True)) * x),
        RMS,
        (X, V),
        ["rms_norm"],
    ),
    "the other order of results": (
        lambda a, b, c, s: (a * c - s * b, c * b + s * a),
        ROTATED,
        (X, X + 1, V, V + 1),
        ["rotated"],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_before_becomes_after(name: str) -> None:
    function, pattern, args, want = FOUND[name]
    got = rewritten(function, pattern, *args, tolerance=2e-2)  # bfloat16 among them
    assert [n for n in got if n != "broadcast_in_dim"] == want


def test_operands_are_taken_before_broadcasts() -> None:
    new = jax.make_jaxpr(invert.rewrite(_rms, [RMS]))(X, V)
    (eqn,) = new.jaxpr.eqns
    assert [v.aval.shape for v in eqn.invars] == [(3, 4), (4,)]


def _used_elsewhere(x: Any) -> Any:
    e = jnp.exp(x)
    return jnp.log1p(e), jnp.sin(e)


NEAR: dict[str, tuple[Callable[..., Any], invert.Pattern, tuple[Any, ...]]] = {
    "constant": (lambda x: x * jnp.minimum(jnp.maximum(x + 2, 0), 6) / 6, HARD_SWISH, (X,)),
    "used elsewhere": (_used_elsewhere, SOFTPLUS, (X,)),
    "primitive": (lambda x: jnp.log1p(jnp.exp2(x)), SOFTPLUS, (X,)),
    "axis": (
        lambda x, s: x * lax.rsqrt(jnp.mean(x * x, 0, keepdims=True) + 1e-6) * s,
        RMS,
        (X, V),
    ),
    "axis of a square": (
        lambda x, s: x * lax.rsqrt(jnp.mean(x * x, 0, keepdims=True) + 1e-6) * s,
        RMS,
        (X[:, :3], V[:3]),
    ),
    "operands of a quotient": (
        lambda x: jnp.sqrt(jnp.sum(x * x, 0, keepdims=True)) / x,
        UNIT,
        (X,),
    ),
    "two values for one operand": (
        lambda x, y: x * jnp.minimum(jnp.maximum(y + 3, 0), 6) / 6,
        HARD_SWISH,
        (X, X + 1),
    ),
    "option that is not tried": (lambda x: _unit(x, axis=1), UNIT, (X.reshape(3, 2, 2),)),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_are_left_alone(name: str) -> None:
    function, pattern, args = NEAR[name]
    assert rewritten(function, pattern, *args) == calls(function, *args)


REASONS = {
    "constant": ("add", "3.0 in the pattern, 2.0 in the program"),
    "used elsewhere": ("exp", "used elsewhere, by sin at test_short.py:"),
    "primitive": ("log1p", "exp in the pattern, exp2 in the program"),
    "axis": ("reduce_sum", "reduce_sum[axes=(1,)] in the pattern, axes=(0,) in the program"),
    "two values for one operand": (
        "mul",
        "one operand of the pattern matches two different values",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_explanation_names_equation_place_and_reason(name: str) -> None:
    function, pattern, args = NEAR[name]
    equation, reason = REASONS[name]
    found = invert.explain(pattern, function, *args)
    assert found.matched == 0
    attempt = found.attempts[0]
    assert attempt.root in pattern.roots
    assert reason in attempt.reason
    assert attempt.equation == equation
    assert "test_short.py:" in attempt.place and "test_short.py:" in attempt.equation_place
    assert attempt.reason in str(attempt) and str(attempt) in str(found)


def test_the_explanation_says_where_the_pattern_matched() -> None:
    def f(x: Any) -> Any:
        with jax.named_scope("first"):
            x = _softplus(x)
        with jax.named_scope("second"):
            return jnp.log1p(x)

    found = invert.explain(SOFTPLUS, f, jax.ShapeDtypeStruct((3,), np.float32))
    assert [(a.matched, a.root, a.place.split(",")[0]) for a in found.attempts] == [
        (True, "log1p", "first"),
        (False, "log1p", "second"),
    ]
    assert str(found).startswith("softplus: 1 matched, 1 not\n  log1p at first, test_short.py:")


def test_the_explanation_of_a_program_without_roots() -> None:
    found = invert.explain(SOFTPLUS, jnp.sin, X)
    assert not found.attempts
    assert str(found) == "softplus: nothing to try, the program holds no log1p"


def test_a_built_in_pattern_is_explained_on_the_lowering() -> None:
    def f(x: Any) -> Any:
        return jnp.cumsum(x), lax.reduce_window(x, 0.0, lax.add, (4,), (1,), ((2, 1),))

    found = invert.explain("cumulative", f, V)
    assert [a.matched for a in found.attempts] == [True, False]
    with pytest.raises(invert.PatternError, match="did you mean 'cumulative'"):
        invert.explain("cumulatif", f, V)
    with pytest.raises(invert.PatternError, match="as a whole"):
        invert.explain("keys", f, V)


@pytest.mark.parametrize("name", ["hard_swish", "softplus", "rms, three axes", "rms, bfloat16"])
def test_conversions_use_it(name: str) -> None:
    function, pattern, args, _ = FOUND[name]
    exported = jax.export.export(jax.jit(lambda *a: jnp.tanh(function(*a))))(*args)
    module = invert.from_exported(exported, config=invert.Config(extra_patterns=(pattern,)))
    assert module.report.rewrites[pattern.name] == 1
    np.testing.assert_allclose(
        np.asarray(module(*args), float), np.asarray(jnp.tanh(function(*args)), float), rtol=2e-2
    )


def test_a_root_that_other_patterns_make() -> None:
    """`1 / (1 + exp(-x))` is a quotient when traced, and `logistic` when converted."""

    def before(x: Any) -> Any:
        return 1 / (1 + jnp.exp(-x))

    pattern = invert.pattern(before, named("own", jax.nn.sigmoid))
    exported = jax.export.export(jax.jit(before))(X)
    module = invert.from_exported(exported, config=invert.Config(extra_patterns=(pattern,)))
    assert module.report.rewrites["own"] == 1
    assert invert.explain(pattern, before, X, lowered=True).matched == 1
    assert rewritten(before, pattern, X) == ["own"]


@jax.custom_jvp
def _clipped(x: Any) -> Any:
    return jnp.minimum(jnp.maximum(x, -1), 1)


@_clipped.defjvp
def _clipped_jvp(primals: Any, tangents: Any) -> Any:
    return _clipped(*primals), tangents[0]


def test_the_lowering_of_a_function_brings_its_derivative_rule_back() -> None:
    def function(x: Any) -> Any:
        return jnp.sum(jnp.sin(_clipped(2 * x)))

    pattern = invert.pattern(None, _clipped)
    exported = jax.export.export(jax.jit(function))(X).serialize()
    module = invert.from_exported(exported, config=invert.Config(extra_patterns=(pattern,)))
    assert module.report.certificate.kind == "exact"
    np.testing.assert_array_equal(jax.grad(module)(X), jax.grad(function)(X))
    without = invert.from_exported(exported)
    assert not np.array_equal(jax.grad(without)(X), jax.grad(function)(X))
    near = rewritten(lambda x: jnp.minimum(jnp.maximum(x, -1), 2), pattern, X)
    assert near == ["max", "min"]


def _mish(x: Any) -> Any:
    return x * jnp.tanh(jax.nn.softplus(x))


MISH = invert.pattern(_mish, jax.nn.mish)


def test_functions_with_derivative_rules_are_compared_by_their_rules() -> None:
    assert rewritten(_mish, MISH, X) == ["mish"]
    other = jax.custom_jvp(_clipped.fun)
    other.defjvp(lambda primals, tangents: (other(*primals), 2 * tangents[0]))
    pattern = invert.pattern(lambda x: x * _clipped(x), named("own", lambda x: x * _clipped(x)))
    assert invert.explain(pattern, lambda x: x * _clipped(x), X).matched == 1
    found = invert.explain(pattern, lambda x: x * other(x), X)
    assert found.matched == 0
    assert "_clipped_jvp in the pattern, another rule" in str(found)


def test_the_body_of_a_call_is_not_replaced_by_the_call() -> None:
    (call,) = jax.make_jaxpr(invert.rewrite(jax.nn.mish, [MISH]))(X).jaxpr.eqns
    names = [e.primitive.name for e in call.params["jaxpr"].jaxpr.eqns]
    assert names == ["jit", "tanh", "mul"]
    (call,) = jax.make_jaxpr(invert.rewrite(named("other", _mish), [MISH]))(X).jaxpr.eqns
    assert [e.params["name"] for e in call.params["jaxpr"].jaxpr.eqns] == ["mish"]


def _endless(x: Any) -> Any:
    return jnp.sin(x) + 0


def _prints(x: Any) -> Any:
    jax.debug.print("{}", x)
    return jnp.sin(x)


WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], str]] = {
    "nothing": (lambda x: x, jnp.sin, {}, "computes nothing"),
    "no result": (lambda x: None, jnp.sin, {}, "computes nothing"),
    "types": (jnp.sin, lambda x: x > 0, {}, "`before` gives float32.* and `after` gives bool"),
    "number of results": (jnp.sin, lambda x: (x, x), {}, "results differ"),
    "effects": (_prints, jnp.sin, {}, "`before` has effects"),
    "effects after": (jnp.sin, _prints, {}, "`after` has effects"),
    "operand": (lambda x, y: jnp.sin(x), lambda x, y: x, {}, "does not use operand 1"),
    "any number": (lambda *x: x[0], jnp.sin, {}, "any number of operands"),
    "no operand": (lambda: jnp.ones(3), jnp.sin, {}, "no operand"),
    "arity of after": (jnp.sin, jnp.add, {}, "`after` does not trace"),
    "option not given": (_unit, jnp.sin, {}, "missing 1 required keyword-only argument: 'axis'"),
    "option of lists": (_unit, _unit, {"options": {"axis": ([0],)}}, "hashable"),
    "option of nothing": (_unit, _unit, {"options": {"axis": ()}}, "no values"),
    "example": (jnp.sin, jnp.cos, {"example": (X, X)}, "1 operands, `example` 2"),
    "untraced": (
        lambda x: jnp.sin(x.reshape(5, 7)),
        jnp.sin,
        {},
        "Give types at which",
    ),
    "endless": (jnp.sin, _endless, {}, "rewritten forever"),
    "a new array": (
        jnp.sin,
        lambda x: jnp.cos(x) * V,
        {"example": (X,)},
        r"holds an array, float32\[4\]",
    ),
    "commuted for ever": (lambda x, y: x * y, lambda x, y: y * x, {}, "rewritten forever"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_patterns_fail_at_once(name: str) -> None:
    before, after, options, message = WRONG[name]
    with pytest.raises(invert.PatternError, match=message):
        invert.pattern(before, after, **{"name": "wrong", **options})


def test_an_array_that_before_also_holds_stays_a_constant() -> None:
    def before(x: Any) -> Any:
        return jnp.tanh(x) * V

    def after(x: Any) -> Any:
        return V * jnp.sinh(x) / jnp.cosh(x)

    def function(x: Any) -> Any:
        return before(lax.fori_loop(0, 3, lambda i, y: before(y), x))

    pattern = invert.pattern(before, after, name="own", example=(X,))
    exported = jax.export.export(jax.jit(function))(X)
    module = invert.from_exported(exported, config=invert.Config(extra_patterns=(pattern,)))
    assert module.report.rewrites["own"] == 2
    np.testing.assert_allclose(module(X), function(X), rtol=1e-5)
    other = jax.export.export(jax.jit(lambda x: jnp.tanh(x) * (V + 1)))(X)
    module = invert.from_exported(other, config=invert.Config(extra_patterns=(pattern,)))
    assert "own" not in module.report.rewrites


def test_an_example_gives_the_types_of_before() -> None:
    def before(x: Any) -> Any:
        return jnp.sin(x.reshape(-1, 6)).sum(0)

    pattern = invert.pattern(before, named("own", before), example=(X,))
    assert rewritten(before, pattern, X) == ["own"]
    assert rewritten(before, pattern, X[:1].repeat(9, 0)) == ["own"]


def test_the_examples_of_the_documentation_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    short = next(b for b in blocks if "invert.pattern(" in b)
    explained = next(b for b in blocks if "invert.explain(" in b)
    exec(compile(short + explained, "docs/patterns.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert "dot_general" in printed and "name=silu" in printed
    assert "1.0 in the pattern, 2.0 in the program" in printed
