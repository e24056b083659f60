"""The engine: what it refuses and replaces, how to switch it off, and its cost."""

from __future__ import annotations

import dataclasses
import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import invert
from benchmarks.recovery import primitives, stripped
from invert._private.jax import dce, open_jaxpr, trace_closed
from invert.ir.graph import Graph
from invert.ir.match import Match
from invert.patterns import STAGES
from invert.rewriting.driver import Rewriter
from invert.rewriting.pattern import Stage
from invert.rewriting.templates import raise_call
from invert.stablehlo.program import Program
from tests.rewriting.rewrites import rewritten

X = np.linspace(-1.5, 2, 9, dtype=np.float32).reshape(3, 3)
K = np.array([3, 4], np.uint32)


def pattern(name: str, root: str, function: Callable[..., Any], arity: int) -> invert.Pattern:
    """A pattern that puts a call of `function` in place of its equations."""

    def outlined(*args: Any) -> Any:
        return function(*args)

    outlined.__name__ = outlined.__qualname__ = name
    call = jax.jit(outlined)

    def propose(site: invert.Site) -> Any:
        yield invert.Call(name, call, (site.out,) * arity, before=function)

    return invert.Pattern(name, (root,), propose)


SWISH = pattern("swish", "mul", lambda x: x * (1 / (1 + jnp.exp(-x))), 1)
PAIR = pattern("pair", "mul", lambda a, b, s: (a * s, b + s), 3)
BOTH = pattern("both", "add", lambda x: (jnp.sin(x) + 1, jnp.cos(x) * 2), 1)


def test_the_equations_of_a_pattern_become_its_call() -> None:
    assert rewritten(lambda x: x * (1 / (1 + jnp.exp(-x))), SWISH, X) == ["swish"]


def test_an_interior_value_may_not_be_used_outside() -> None:
    def as_result(x: Any) -> Any:
        e = jnp.exp(-x)
        return x * (1 / (1 + e)), e

    def by_another(x: Any) -> Any:
        e = jnp.exp(-x)
        return x * (1 / (1 + e)), jnp.sin(e)

    for f in (as_result, by_another):
        assert "swish" not in rewritten(f, SWISH, X)


@pytest.mark.parametrize(
    "near",
    [
        lambda x: x * (1 / (2 + jnp.exp(-x))),
        lambda x: x * (1 / (1 + jnp.exp(x))),
        lambda x: x * (1 / (1 - jnp.exp(-x))),
        lambda x: x * ((1 + jnp.exp(-x)) / 1),
        lambda x: x * (1 / (1 + jnp.exp(-jnp.sin(x)))),
    ],
)
def test_near_misses_are_left_alone(near: Callable[..., Any]) -> None:
    assert "swish" not in rewritten(near, SWISH, X)


def _swish(x: Any) -> Any:
    return x * (1 / (1 + jnp.exp(-x)))


_with_jvp, _with_vjp = jax.custom_jvp(_swish), jax.custom_vjp(_swish)
_with_jvp.defjvp(lambda primals, tangents: (_with_jvp(*primals), tangents[0]))
_with_vjp.defvjp(lambda x: (_with_vjp(x), None), lambda _, g: (g,))


@pytest.mark.parametrize("inside_rules", [True, False])
@pytest.mark.parametrize("function", [_with_jvp, _with_vjp])
def test_functions_with_rules_are_rewritten_on_request(
    function: Callable[..., Any], inside_rules: bool
) -> None:
    rewriter = Rewriter((Stage((SWISH,), inside_rules=inside_rules),), raise_call)
    rewriter.run(
        trace_closed(lambda x: function(x) + lax.map(lambda row: _swish(_swish(row)), x), X)
    )
    assert rewriter.counts == {"swish": 2 + inside_rules}


def test_unused_results_may_be_missing() -> None:
    assert rewritten(lambda x: jnp.sin(x) + 1, BOTH, X) == ["both"]
    assert rewritten(lambda x: (jnp.sin(x) + 1, jnp.cos(x) * 2), BOTH, X) == ["both"]


def test_a_match_that_needs_its_own_result_is_refused() -> None:
    assert rewritten(lambda a, b, s: (a * s, b + s), PAIR, X, X + 1, X + 2) == ["pair"]

    def directly(a: Any, s: Any) -> Any:
        first = a * s
        return first, first + s

    def through_another(a: Any, s: Any) -> Any:
        first = a * s
        return first, jnp.sin(first) + s

    for f in (directly, through_another):
        assert "add" in rewritten(f, PAIR, X, X + 2)


def test_one_of_two_cyclic_matches_is_replaced() -> None:
    def f(x: Any, y: Any, s: Any, t: Any) -> Any:
        first, second = x * s, y * t
        return first, second, first + t, second + s

    got = rewritten(f, PAIR, X, X - 1, X + 2, X + 3)
    assert sorted(got) == ["add", "mul", "pair"]


def test_patterns_reach_into_bodies() -> None:
    def f(x: Any) -> Any:
        step = lambda c, r: lax.cond(c[0] > 0, lambda c: c * (1 / (1 + jnp.exp(-c))), jnp.sin, c)  # noqa: E731
        return lax.scan(lambda c, r: (step(c, r) + r, None), x[0], x)[0]

    new = jax.make_jaxpr(invert.rewrite(f, [SWISH]))(X).jaxpr
    assert "exp" in primitives(new, True)  # calls are looked through
    assert "name=swish" in str(new)


def export(
    f: Callable[..., Any], *args: Any, platforms: list[str] | None = None
) -> jax.export.Exported:
    return jax.export.export(jax.jit(f), platforms=platforms)(*args)


def test_patterns_are_switched_by_name() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, r: (c + r, jnp.cumsum(r)), x[0], x)

    exported = export(f, X, platforms=["cpu"])  # for GPUs JAX lowers a sum without windows

    def recovered(**options: Any) -> invert.Module:
        module = invert.from_exported(exported, config=invert.Config(**options))
        for got, want in zip(jax.tree.leaves(module(X)), jax.tree.leaves(f(X)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
        return module

    every, without = recovered(), recovered(disabled_patterns=("cumulative",))
    alone, raw = recovered(patterns=("scan",)), recovered(patterns=False)
    assert {"cumsum", "scan"} <= set(every.report.primitives)
    assert "cumsum" not in without.report.primitives and "scan" in without.report.primitives
    assert set(alone.report.rewrites) == {"scan"} and "cumsum" not in alone.report.primitives
    assert not raw.report.rewrites and "while" in raw.report.primitives
    assert {m.report.certificate.kind for m in (every, without, alone, raw)} == {"exact"}
    with pytest.raises(ValueError, match="no pattern is named"):
        recovered(disabled_patterns=("cumulatif",))


def test_custom_patterns_serve_conversions() -> None:
    exported = export(lambda x: x * (1 / (1 + jnp.exp(-x))), X)

    def propose(site: invert.Site) -> Any:
        yield invert.Call("tangent", jax.jit(_named_swish), (site.out,))

    own = invert.Pattern("own", ("mul",), propose)
    module = invert.from_exported(exported, config=invert.Config(extra_patterns=(own,)))
    assert module.report.rewrites["own"] == 1
    np.testing.assert_allclose(module(X), X / (1 + np.exp(-X)), rtol=1e-6, atol=1e-6)


def _named_swish(x: Any) -> Any:
    return x * (1 / (1 + jnp.exp(-x)))


@pytest.mark.parametrize("inner", [False, True])
def test_a_pattern_is_not_tried_without_a_primitive_that_it_holds(inner: bool) -> None:
    tried: list[str] = []

    def propose(site: invert.Site) -> Any:
        tried.append(site.eqn.primitive.name)
        yield from ()

    swish = jax.jit(_named_swish) if inner else _named_swish
    for holds in ("log", "exp", None):
        p = invert.Pattern("held", ("mul",), propose, holds=holds)
        invert.rewrite(lambda x: 2 * swish(x), [p])(X)
        assert bool(tried) == (holds != "log")
        tried.clear()


def test_nothing_is_proposed_by_the_numbers_of_a_pattern_alone() -> None:
    def apply(x: Any) -> Any:  # numbers and roots of `philox4x32`, `lgamma` and `poch`
        mixed = lax.select(x == 676.5203681, x * float(0xD2511F53), x + 1)
        return jax.jit(lambda a, b: a * b)(mixed, jnp.exp(mixed))

    proposed: list[str] = []

    def spy(p: invert.Pattern) -> invert.Pattern:
        return dataclasses.replace(p, propose=lambda _: proposed.append(p.name) or ())

    held = [p for s in STAGES for p in s.patterns if isinstance(p, invert.Pattern) and p.holds]
    Rewriter((Stage(tuple(map(spy, held))),), raise_call).run(trace_closed(apply, X))
    assert {"lgamma", "poch", "philox4x32"} <= {p.name for p in held} and not proposed


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text()
    (example,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "def propose" in b)
    exec(compile(example, "docs/patterns.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert (
        "dot_general" in printed
        and "name=silu" in printed
        and "exp" not in printed.split("silu")[0]
    )


STRIPPED = {
    "cumsum": (lambda x: jnp.cumsum(x, 0), X),
    "argmax": (lambda x: jnp.argmax(x, 1), X),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(3)), X),
    "erf_inv": (lambda x: lax.erf_inv(x / 4), X),
    "digamma": (lax.digamma, X),
    "scan": (lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c - r), x[0], x), X),
    "map": (lambda x: lax.map(lambda r: jnp.sin(r) - r[0], x), X),
    "uniform": (lambda k: random.uniform(k, (3,)), K),
    "normal": (lambda k: random.normal(k, (2, 2)), K),
    "softmax": (lambda x: jax.nn.softmax(x, 1), X),
    "relu": (jax.nn.relu, X),
    "gather": (lambda x: x.at[jnp.array([2, 5, 0])].get(mode="fill", fill_value=0), X),
}


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", STRIPPED)
def test_without_locations_and_names(name: str, platform: Literal["cpu", "cuda"]) -> None:
    f, x = STRIPPED[name]
    exported = export(f, x, platforms=[platform])
    text = stripped(exported)
    assert "loc(" not in text
    module = invert.from_stablehlo(text, config=invert.Config(platform=platform))
    named = invert.from_exported(exported)
    want = primitives(dce(open_jaxpr(jax.make_jaxpr(f)(x))), True)
    assert primitives(named.jaxpr, True) == want
    assert primitives(module.jaxpr, True) == want
    assert module.report.certificate.kind == "exact"


def test_the_driver_takes_linear_time() -> None:
    def chain(n: int) -> Callable[..., Any]:
        def f(x: Any) -> Any:
            for i in range(n // 5):
                x = jnp.sin(x * x - x) + np.float32(i)
                x = x / 3
            return x

        return f

    def seconds(n: int) -> float:
        config = invert.Config(verify=False)
        exported = export(chain(n), X)
        runs = [invert.from_exported(exported, config=config).report for _ in range(3)]
        assert runs[0].equations >= n
        return min(r.seconds["patterns"] for r in runs)

    seconds(500)
    # Other processes slow a machine down for a while.
    assert any(seconds(2000) < 4 * 2.5 * seconds(500) for _ in range(3))


def test_a_pattern_with_a_defect_is_left_out_and_named() -> None:
    def propose(site: invert.Site) -> Any:
        yield {}[site.hint]

    def propose_call(site: invert.Site) -> Any:
        yield invert.Call("typo", lambda x: jnp.no_such_function(x), (site.out,))

    def rewrite_one(site: invert.Site) -> Any:
        return lambda *xs: xs[7]

    broken = [
        (invert.Pattern("of_a_site", ("mul",), propose), "KeyError"),
        (invert.Pattern("of_a_call", ("mul",), propose_call), "AttributeError"),
        (invert.EquationPattern("of_an_equation", ("mul",), rewrite_one), "IndexError"),
    ]
    exported = export(lambda x: jnp.sin(x * x), X)
    for pattern_, error in broken:
        config = invert.Config(extra_patterns=(pattern_,))
        text = f"the pattern {pattern_.name} was left out, because of a defect: {error}"
        with pytest.warns(invert.DefectWarning, match=text):
            module = invert.from_exported(exported, config=config)
        np.testing.assert_allclose(module(X), jnp.sin(X * X), rtol=1e-6, atol=1e-6)
        assert len([n for n in module.report.notes if n.startswith(text)]) == 1
        with pytest.raises(invert.DefectWarning, match=error):  # as warnings are errors here
            invert.from_exported(exported, config=config)


def test_a_call_that_does_not_fit_is_not_a_defect() -> None:
    def propose(site: invert.Site) -> Any:
        yield invert.Call("unfit", lambda x: jnp.linalg.det(x), (jax.ShapeDtypeStruct((2,), "f4"),))

    config = invert.Config(extra_patterns=(invert.Pattern("unfit", ("mul",), propose),))
    module = invert.from_exported(export(lambda x: x * x, X), config=config)
    assert "unfit" not in module.report.rewrites


def test_a_defect_in_raising_a_template_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    aval = jax.ShapeDtypeStruct((3,), np.float32)
    call = invert.Call("bug", lambda x: jnp.cumsum(x * 7.25), (aval,), of_site=True)
    assert raise_call(call, "cpu") is not None
    assert raise_call(dataclasses.replace(call, function=lambda x: x[9, 9]), "cpu") is None

    def broken(program: Program, *values: Any) -> Any:
        raise TypeError("a rule with a defect")

    monkeypatch.setattr(Program, "__call__", broken)
    with pytest.raises(TypeError, match="a rule with a defect"):
        raise_call(call, "cpu")


@pytest.mark.parametrize("of_site", [False, True])
def test_calls_with_parts_of_a_program_are_not_cached(of_site: bool) -> None:
    class Weights:
        """Weights held by a user's program."""

    def rewrite(weights: Weights) -> None:
        def propose(site: invert.Site) -> Any:
            def function(x: Any, held: Any = weights) -> Any:
                return x * 2.0

            yield invert.Call("double", function, (site.out,), of_site=of_site)

        stage = Stage((invert.Pattern("double", ("add",), propose),))
        program = trace_closed(lambda x: x + 1.0, jax.ShapeDtypeStruct((3,), np.float32))
        Rewriter((stage,), raise_call).run(program)

    weights = Weights()
    rewrite(weights)
    held = weakref.ref(weights)
    del weights
    jax.clear_caches()
    gc.collect()
    # Calls that depend only on a name are kept for the next program.
    assert (held() is None) == of_site


def test_a_pattern_that_matches_its_own_results_is_an_error() -> None:
    endless = invert.EquationPattern("endless", ("sin",), lambda site: lambda x: jnp.sin(x) * 1.5)
    with pytest.raises(invert.PatternError, match="'endless' matches its own results"):
        invert.rewrite(jnp.sin, (endless,))(jnp.ones(2))


def test_a_template_at_full_shape_matches_operands_that_operations_broadcast() -> None:
    def template(i: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sin(i + b) * i

    def program(i: jax.Array, b: jax.Array) -> jax.Array:
        jax.debug.print("{}", i)  # an equation without results uses the number, too
        return jnp.sin(lax.add(i, b)) * lax.broadcast_in_dim(i, (3,), ())

    b = np.ones(3, np.float32)
    one = Graph(jax.make_jaxpr(template)(b, b).jaxpr)
    two = Graph(jax.make_jaxpr(program)(np.float32(1), b).jaxpr)
    match = Match(one, two)
    assert match.seed(one.eqns[-1], two.eqns[-1])
    (wide,) = two.by_primitive["broadcast_in_dim"]
    assert match.inputs() == [wide.outvars[0], two.jaxpr.invars[1]]
