"""Functions whose equations are recorded once, compared with the functions themselves."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert._private.jax import made_by, names_of, trace_closed
from invert.gradients.cache import without_rules
from invert.ir.match import difference
from invert.primitives import recorded
from invert.primitives.recorded import Recorded

X = jax.ShapeDtypeStruct((3, 4), np.float32)


class Counted:
    """A function that counts how often it runs, and its recorded form."""

    def __init__(self, function: Callable[..., Any]):
        self.runs = 0
        self.function = function
        self.recorded = Recorded(self._run)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self.function(*args, **kwargs)

    def check(self, use: Callable[[Callable[..., Any]], Callable[..., Any]], *avals: Any) -> None:
        """Two traces that call the recorded form equal one that calls the function."""
        plain = without_rules(trace_closed(use(self.function), *avals))
        for _ in range(2):
            again = without_rules(trace_closed(use(self.recorded), *avals))
            assert difference(again, plain) is None


def once(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: f(*xs)


def relu(x: Any) -> Any:
    return jax.nn.relu(x) * 2 + np.float32(0.5)


def several(x: Any, y: Any) -> Any:
    with jax.named_scope("inner"):
        return [x + y, x, jnp.sort(x @ y.T)]


def constant(x: Any) -> Any:
    return x + jnp.arange(12.0, dtype=np.float32).reshape(3, 4) + np.eye(3, 4, dtype=np.float32)


def loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) + x, x), lax.cond(
        x[0, 0] > 0, jnp.cos, jnp.tanh, x
    )


@pytest.mark.parametrize(
    ("function", "count"),
    [(relu, 1), (several, 2), (constant, 1), (loop, 1)],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_repeated_equations_are_those_of_the_function(
    function: Callable[..., Any], count: int
) -> None:
    counted = Counted(function)
    counted.check(once, *[X] * count)
    assert counted.runs == 1
    values = [np.random.default_rng(i).normal(size=(3, 4)).astype(np.float32) for i in range(count)]
    results, wanted = jax.jit(once(counted.recorded))(*values), jax.jit(function)(*values)
    assert counted.runs == 1
    jax.tree_util.tree_map(np.testing.assert_array_equal, results, wanted)


def test_types_and_static_values_tell_calls_apart() -> None:
    counted = Counted(lambda x, n: x * n if isinstance(n, (int, float)) else x + n.sum())
    half = jax.ShapeDtypeStruct((3, 4), np.float16)
    weak = jax.ShapeDtypeStruct((), np.float32, weak_type=True)
    statics = (1, True, 1.0, 0.0, -0.0, 2, np.ones(2, np.float32), np.ones(2, np.int32))
    for static in statics:
        counted.check(lambda f, n=static: lambda x: f(x, n), X)
    assert counted.runs == len(statics)
    for i, aval in enumerate((half, weak, jax.ShapeDtypeStruct((4, 3), np.float32))):
        counted.check(lambda f: lambda x: f(x, 2), aval)
        assert counted.runs == len(statics) + i + 1


def test_an_operand_given_twice_is_another_call() -> None:
    counted = Counted(lambda x, y: x * x if x is y else x * y)
    counted.check(lambda f: lambda x, y: f(x, y), X, X)
    counted.check(lambda f: lambda x, y: f(x, x), X, X)
    assert counted.runs == 2


def test_settings_of_jax_tell_calls_apart() -> None:
    counted = Counted(lambda x: jnp.sum(x.astype(int)))
    for wide in (True, False, True):
        with jax.enable_x64(wide):
            counted.check(once, X)
    assert counted.runs == 2


def asks(x: Any) -> Any:
    made = made_by(x)
    return x if made is not None and made[0] == "sin" else jnp.sin(x)


def prints(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def static(x: Any) -> Any:
    return np.ones(x.shape)


def large(x: Any) -> Any:
    return x + np.random.default_rng(0).normal(size=(1000, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("function", [asks, prints, static, large], ids=lambda f: f.__name__)
def test_what_may_differ_next_time_runs_each_time(function: Callable[..., Any]) -> None:
    counted = Counted(function)
    for _ in range(2):
        trace_closed(once(counted.recorded), X)
    assert counted.runs == 2


def test_what_asks_inside_another_recording_spoils_both() -> None:
    inner = Recorded(asks)
    outer = Counted(lambda x: inner(x) + 1)
    outer.check(lambda f: lambda x: f(x), X)
    outer.check(lambda f: lambda x: f(jnp.sin(x)), X)


def test_numbers_and_open_sizes_are_not_operands() -> None:
    (n,) = jax.export.symbolic_shape("n")
    counted = Counted(lambda x: x + x.size)
    counted.check(once, jax.ShapeDtypeStruct((n, 4), np.float32))
    assert counted.runs == 2
    # A traced number may be a literal, which the equations would hold.
    for number in (1.0, 2.0):
        counted.check(lambda f, n=number: lambda x: x + f(jnp.float32(n) + 0 * x[0, 0]), X)
        counted.check(lambda f, n=number: lambda x: x + f(lax.full((), n, np.float32)), X)


def test_the_scopes_are_those_of_the_caller() -> None:
    function = Recorded(lambda x, y: several(x, y)[0])

    def program(x: Any, y: Any) -> Any:
        with jax.named_scope("first"):
            x = function(x, y)
        with jax.named_scope("second"):
            return function(x, y)

    names = [names_of(eqn) for eqn in trace_closed(program, X, X).eqns]
    assert list(dict.fromkeys(names)) == [("first", "inner"), ("second", "inner")]


def test_other_traces_run_the_function() -> None:
    counted = Counted(relu)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    trace_closed(once(counted.recorded), X)
    for transform in (jax.vmap, lambda f: jax.grad(lambda x: f(x).sum()), jax.jacfwd, lambda f: f):
        wanted = transform(relu)(x)
        np.testing.assert_array_equal(transform(counted.recorded)(x), wanted)
        np.testing.assert_array_equal(jax.jit(transform(counted.recorded))(x), wanted)
    # A derivative of what was recorded has the rule of the function.
    recorded_once = jax.jit(counted.recorded)
    np.testing.assert_array_equal(
        jax.grad(lambda x: recorded_once(x).sum())(x), jax.grad(lambda x: relu(x).sum())(x)
    )


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_MOST_RECORDINGS", 2)
    counted = Counted(lambda x, n: x + n)
    for n in (1, 2, 3, 3, 2, 1):
        trace_closed(functools.partial(lambda n, x: counted.recorded(x, n), n), X)
    assert counted.runs == 4


class Scaling(eqx.Module):
    """A layer with an array, a static value and a function."""

    weight: Any
    factor: Any = eqx.field(static=True)
    function: Any = eqx.field(static=True)


def test_layers_of_a_text_are_told_apart_by_their_types_and_static_fields() -> None:
    runs: list[object] = []

    def call(layer: Scaling, x: Any) -> Any:
        runs.append(layer.factor)
        return [layer.function(x * layer.weight) * layer.factor]

    (n,) = jax.export.symbolic_shape("n")
    open_x, weight = jax.ShapeDtypeStruct((n, 4), np.int32), jax.ShapeDtypeStruct((4,), np.int32)
    for statics in itertools.product((2, 2.0, True), (jnp.sin, jnp.cos)):
        runs.clear()
        recorded = Recorded(call, for_text=True)

        def program(f: Any, x: Any, *weights: Any, statics: Any = statics) -> Any:
            for i, w in enumerate(weights):
                factor, function = (statics[0], jnp.sin) if i == 1 else (2, statics[1])
                (x,) = f(Scaling(w, factor, function), x)
                x = x.astype(np.int32)
            return x

        avals = open_x, *[weight] * 4
        again = trace_closed(functools.partial(program, recorded), *avals)
        assert len(runs) == (1 if statics == (2, jnp.sin) and type(statics[0]) is int else 2)
        assert str(again) == str(trace_closed(functools.partial(program, call), *avals))


def test_layers_that_hold_values_or_a_state_run_each_time() -> None:
    index = eqx.nn.StateIndex(jnp.zeros(()))
    for held in (np.ones(1000, np.float32), jnp.ones(4), index):
        counted = Counted(lambda layer, x: x * 2)
        function = Recorded(counted._run, for_text=True)
        trace_closed(lambda x, h=held, f=function: f(h, f(h, x)), X)
        assert counted.runs == 2
