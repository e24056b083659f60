"""Control flow of TensorFlow graphs: values, primitives, derivatives in both modes."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import _verify
from invert.tf.control import trip_count
from invert.tf.values.bounds import line

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def _while(x):
    return tf.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, tf.sin(a) * 1.5), [0, x])[1]


def _limited(x):
    def body(i, a):
        return i + 1, tf.sin(a) * tf.cast(i, tf.float32)

    return tf.while_loop(lambda i, a: i < 5, body, [tf.constant(0), x], maximum_iterations=3)[1]


def _halved(x):
    """The shape changes in each step, and determines the number of steps."""

    def body(a):
        n = tf.shape(a)[1]
        lower, upper = tf.split(a, [n // 2, n - n // 2], axis=1)
        return (tf.pad(lower, [(0, 0), (0, n % 2)]) + upper,)

    shapes = (tf.TensorShape([4, None]),)
    return tf.while_loop(lambda a: tf.not_equal(tf.shape(a)[1], 1), body, (x,), shapes)


def _until(x):
    return tf.while_loop(
        lambda i, a: tf.reduce_sum(tf.abs(a)) > 1.0,
        lambda i, a: (i + 1, a * 0.7),
        [0, x],
        maximum_iterations=30,
    )


def _downwards(x):
    return tf.while_loop(lambda i, a: i > 0, lambda i, a: (i - 2, a * 0.5 + x), [7, x])[1]


def _branch_in_loop(x):
    s = tf.zeros([6])
    for i in tf.range(4):
        s = s * 0.5 + tf.tanh(x[i])
        if tf.reduce_sum(s) > 0.0:
            s = s * 2.0
        else:
            s = s - 1.0
    return s


def _write(x, **kwargs):
    array = tf.TensorArray(tf.float32, **kwargs)
    for i in tf.range(4):
        array = array.write(i, x[3 - i] * tf.cast(i, tf.float32))
    return array.stack()


def _write_in_nested_loops(x):
    by_count = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    by_size = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    k = 0
    for i in tf.range(3):
        for j in tf.range(2):
            row = x[i] * tf.cast(i * 2 + j, tf.float32)
            by_count = by_count.write(k, tf.sin(row))
            by_size = by_size.write(by_size.size(), row * row)
            k += 1
    return by_count.stack(), by_size.stack()


def _unrolled_array(x):
    array = tf.TensorArray(tf.float32, size=4)
    for i in range(4):
        array = array.write(i, x[3 - i] * float(i))
    return array.concat(), array.stack(), array.read(2), array.gather([1, 3])


def _split(x):
    array = tf.TensorArray(tf.float32, size=3, infer_shape=False)
    array = array.split(x, [1, 2, 1])
    return array.read(1) * 2.0, array.concat() + 1.0


def _grow(x):
    return tf.while_loop(
        lambda i, a: i < 3,
        lambda i, a: (i + 1, tf.concat([a, a], 0)),
        [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 6])],
    )[1]


def _nested(x):
    return tf.map_fn(lambda row: tf.scan(lambda a, b: a * 0.5 + tf.sin(b), row), x)


def _if(x):
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.sin(x), lambda: tf.cos(x) * 2.0)


def _case(x):
    index = tf.cast(tf.reduce_sum(x) > 0.0, tf.int32)
    return tf.switch_case(index, [lambda: tf.sin(x), lambda: tf.cos(x) * 2.0, lambda: x])


def _loops_in_branches(x):
    def scan():
        return tf.scan(lambda a, r: a * 0.5 + tf.tanh(r), x)

    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: _while(x), scan)


# What becomes of the loops: numbers of scan, while and cond equations, those of inner jaxprs once.
CASES = {
    "map_fn": (lambda x: tf.map_fn(lambda r: tf.sin(r) * 2.0, x), (1, 0, 0)),
    "scan": (lambda x: tf.scan(lambda a, r: a * 0.5 + tf.tanh(r), x), (1, 0, 0)),
    "reversed scan": (
        lambda x: tf.scan(lambda a, r: a * 0.5 + tf.tanh(r), x, reverse=True),
        (1, 0, 0),
    ),
    "foldl": (lambda x: tf.foldl(lambda a, r: a * 0.5 + tf.tanh(r), x), (1, 0, 0)),
    "foldr": (lambda x: tf.foldr(lambda a, r: a * 0.5 + tf.tanh(r), x), (1, 0, 0)),
    "while": (_while, (1, 0, 0)),
    "while with a limit": (_limited, (1, 0, 0)),
    "while on data with a limit": (_until, (1, 0, 1)),
    "while that counts down": (_downwards, (1, 0, 0)),
    "branch in a loop": (_branch_in_loop, (1, 0, 1)),
    "array": (lambda x: _write(x, size=4), (1, 0, 0)),
    "array that grows": (lambda x: _write(x, size=0, dynamic_size=True), (1, 0, 0)),
    "array that grows in nested loops": (_write_in_nested_loops, (2, 0, 0)),
    "array without a loop": (_unrolled_array, (0, 0, 0)),
    "array of several lengths": (_split, (0, 0, 0)),
    "shape that grows": (_grow, (0, 0, 0)),
    "shape that is halved": (_halved, (0, 0, 0)),
    "nested": (_nested, (2, 0, 0)),
    "if": (_if, (0, 0, 1)),
    "case": (_case, (0, 0, 1)),
    "loops in branches": (_loops_in_branches, (2, 0, 1)),
}


QUICK = (
    "while on data with a limit",
    "array that grows",
    "array that grows in nested loops",
    "nested",
    "case",
)


def _loss(results) -> Any:
    floats = [r for r in results if r.dtype in (tf.float32, jnp.float32)]
    total = tf.reduce_sum if isinstance(floats[0], tf.Tensor) else jnp.sum
    return sum(total(r * r) for r in floats)


def _tf_gradient(fn):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = _loss(tf.nest.flatten(fn(x)))
        return tape.gradient(loss, x)

    return gradient


SLOW = (
    "foldl", "foldr", "reversed scan", "while with a limit", "array of several lengths", "if",
    "array", "scan", "array without a loop", "shape that grows",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
)
@pytest.mark.drawn(8)
def test_control_flow(name):
    fn, counts = CASES[name]
    module = invert.convert(tf.function(fn), X)
    want = tf.nest.flatten(tf.function(fn)(tf.constant(X)))
    for g, w in zip(jax.tree_util.tree_leaves(module(X)), want, strict=True):
        np.testing.assert_allclose(g, w.numpy(), rtol=2e-6, atol=1e-6)
    found = module.report.primitives
    assert tuple(found.get(p, 0) for p in ("scan", "while", "cond")) == counts
    got = jax.grad(lambda x: _loss(jax.tree_util.tree_leaves(module(x))))(jnp.asarray(X))
    want = tf.function(_tf_gradient(fn))(tf.constant(X))
    np.testing.assert_allclose(got, want.numpy(), rtol=2e-5, atol=2e-6)


# The gradient that TensorFlow builds keeps what it needs on lists, those of inner loops on lists of
# lists, and what branches need in optionals.
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_gradient_graphs_of_tensorflow(name):
    gradient = _tf_gradient(CASES[name][0])
    module = invert.convert(tf.function(gradient), X)
    want = tf.function(gradient)(tf.constant(X))
    np.testing.assert_allclose(module(X), want.numpy(), rtol=2e-5, atol=2e-6)


def test_loop_without_a_bound_stays_a_while():
    def fn(x):
        return tf.while_loop(lambda a: tf.reduce_sum(tf.abs(a)) > 1.0, lambda a: (a * 0.7,), [x])[0]

    module = invert.convert(tf.function(fn), X)
    np.testing.assert_allclose(module(X), fn(tf.constant(X)).numpy(), rtol=1e-6, atol=1e-6)
    assert module.report.primitives["while"] == 1
    _, tangent = jax.jvp(module, (X,), (X,))
    assert np.isfinite(tangent).all()


def test_long_loops_on_data_stay_a_while():
    module = invert.convert(tf.function(_until), X, config=invert.Config(max_scan=8))
    assert module.report.primitives["while"] == 1
    np.testing.assert_allclose(
        module(X)[1], tf.function(_until)(tf.constant(X))[1].numpy(), rtol=1e-6, atol=1e-6
    )


def test_a_bound_that_fails_where_integers_wrap_around_cuts_no_loop():
    """The limit is 10 unless `n + 5` wraps around; it is then beyond 2**32."""

    def function(n, x):
        behind = tf.cast(n, tf.int64) - tf.cast(n + 5, tf.int64)
        limit = tf.maximum(behind, 10)
        return tf.while_loop(
            lambda i, a: (i < limit) & (a < 1000.0),
            lambda i, a: (i + 1, a * 1.5),
            [tf.constant(0, tf.int64), x],
        )

    args = np.int32(3), np.float32(1.0)
    module = invert.convert(tf.function(function), *args)
    for n in (np.int32(3), np.int32(2**31 - 3)):
        want = function(tf.constant(n), tf.constant(args[1]))
        have = module(n, args[1])
        assert int(have[0]) == int(want[0]) == (10 if n == 3 else 18)
        np.testing.assert_allclose(have[1], want[1], rtol=1e-6)


def test_a_list_has_no_capacity_by_a_bound_that_fails_where_integers_wrap_around():
    def function(n, x):
        limit = tf.maximum(tf.cast(n, tf.int64) - tf.cast(n + 5, tf.int64), 10)
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)

        def body(i, a, array):
            return i + 1, a * 1.5, array.write(tf.cast(i, tf.int32), a)

        start = tf.constant(0, tf.int64), x, array
        loop = tf.while_loop(lambda i, a, _: (i < limit) & (a < 1000.0), body, start)
        return loop[2].read(0)

    with pytest.raises(invert.UnsupportedOpError, match="no known bound"):
        invert.convert(tf.function(function), np.int32(3), np.float32(1.0))


@pytest.mark.parametrize("within", [None, 4096])
def test_bounds_that_hold_for_all_inputs(within):
    """The difference of two integers does not order them if it wraps around."""
    body = jax.make_jaxpr(lambda i, n: (i + 1, n))(np.int32(0), np.int32(0))

    def bound(limit):
        condition = jax.make_jaxpr(lambda i, n: i < limit(n))(np.int32(0), np.int32(0))
        starts = [0, None]
        lines = trip_count.lines(body, starts, within=within)
        return trip_count.count(condition, lines, body, starts, within=within).bound

    assert bound(lambda n: jnp.minimum(n, 7)) == 7
    assert bound(lambda n: (n + 5) - n) == 5
    assert bound(lambda n: jnp.maximum(n + 5, n) - n) == (5 if within is None else None)
    wide = jnp.int64 if jax.config.jax_enable_x64 else jnp.int32
    assert bound(lambda n: jnp.minimum((n + 9).astype(wide), 9).astype(np.int32)) == 9


def test_list_that_grows_without_a_bound_is_refused():
    def fn(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        i = 0
        while tf.reduce_sum(x) > 1.0:
            array = array.write(i, x)
            x = x * 0.5
            i += 1
        return array.stack()

    with pytest.raises(invert.UnsupportedOpError, match="maximum_iterations"):
        invert.convert(tf.function(fn), np.abs(X))


def test_shape_that_varies_with_data_is_refused():
    def fn(x):
        return tf.while_loop(
            lambda a: tf.reduce_sum(a) < 100.0,
            lambda a: (tf.concat([a, a], 0),),
            [x],
            shape_invariants=[tf.TensorShape([None, 6])],
        )[0]

    with pytest.raises(invert.UnsupportedOpError, match=r"loop variable 0 is float32\[4,6\]|4, 6"):
        invert.convert(tf.function(fn), np.abs(X))


def test_branches_of_several_shapes_are_refused():
    def fn(x):
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: tf.concat([x, x], 0))

    with pytest.raises(invert.UnsupportedOpError, match=r"result 0 has type float32.* in another"):
        invert.convert(tf.function(fn), X)


def test_known_predicate_leaves_no_branch():
    def fn(x):
        return tf.cond(tf.shape(x)[0] > 3, lambda: tf.sin(x), lambda: tf.cos(x))

    module = invert.convert(tf.function(fn), X)
    assert "cond" not in module.report.primitives
    np.testing.assert_allclose(module(X), np.sin(X), rtol=1e-6, atol=1e-6)


def test_open_batch_is_static_inside_loops():
    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def fn(x):
        rows = tf.shape(x)[0]
        return tf.while_loop(
            lambda i, a: i < 3,
            lambda i, a: (i + 1, a + tf.ones(tf.stack([rows, 6])) * tf.reshape(a, [rows, 6])),
            [0, x],
        )[1]

    module = invert.convert(fn)
    for batch in (2, 5):
        x = np.ones((batch, 6), np.float32)
        np.testing.assert_allclose(module(x), fn(tf.constant(x)).numpy(), rtol=1e-6, atol=1e-6)


def test_deep_nesting_is_traced_a_linear_number_of_times():
    def nest(depth):
        def step(x):
            if not depth:
                return tf.sin(x)
            return tf.while_loop(
                lambda i, a: i < 2, lambda i, a: (i + 1, nest(depth - 1)(a)), [0, x]
            )[1]

        return step

    seconds = []
    for depth in (2, 7):
        fn = tf.function(nest(depth)).get_concrete_function(tf.TensorSpec([3]))
        start = time.perf_counter()
        module = invert.convert(fn, config=invert.Config(patterns=False, verify=False))
        seconds.append(time.perf_counter() - start)
        assert module.report.primitives["while"] == depth
    assert seconds[1] < 20 * max(seconds[0], 0.02)  # twice as often per level would be 32 times


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "ne"])
def test_number_of_steps_of_every_comparison(name):
    compare = {
        "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
        "ne": np.not_equal,
    }[name]  # fmt: skip
    condition = jax.make_jaxpr(lambda i: getattr(jax.lax, name)(i, np.int32(0)))(np.int32(0))
    for start in range(-6, 7):
        for step in range(-3, 4):
            holds = [bool(compare(start + step * k, 0)) for k in range(50)]
            want = holds.index(False) if False in holds else None
            found = trip_count.count(condition, [line(start, step)])
            assert (found.bound, found.exact) == (want, want is not None)


def test_equal_constants_of_a_loop_are_held_once():
    """Lowering merges them too; a program with both would not be its own lowering."""
    numbers = [np.array([0, 1, 3], np.float32) for _ in range(2)]

    def function(x):
        def body(x):
            return x * tf.constant(numbers[0]) + tf.constant(numbers[1])

        return tf.while_loop(lambda x: tf.reduce_sum(x) < 9.0, body, [x])[0]

    module = invert.convert(tf.function(function, autograph=False), np.ones(3, np.float32))
    assert len(module.constants) == 1
    assert module.report.certificate.kind == "exact", module.report
    np.testing.assert_array_equal(module(np.ones(3, np.float32)), [0, 3, 21])


def test_a_loop_that_writes_rows_is_proved_to_be_its_scan(monkeypatch) -> None:
    lowered: list[Any] = []
    again = _verify._again

    def counted(program: Any, *args: Any) -> Any:
        lowered.append(program)
        return again(program, *args)

    def recurrent(x):
        def step(i, rows, h, c):
            c = tf.sigmoid(h) * c + tf.tanh(x[i])
            h = tf.sigmoid(x[i]) * tf.tanh(c)
            return i + 1, rows.write(i, h), h, c

        init = (0, tf.TensorArray(tf.float32, 4), tf.zeros([6]), tf.zeros([6]))
        return tf.while_loop(lambda i, *_: i < 4, step, init)[1].stack()

    monkeypatch.setattr(_verify, "_again", counted)
    module = invert.convert(tf.function(recurrent, autograph=False), tf.TensorSpec(X.shape))
    assert "scan" in module.report.primitives
    assert str(module.report.certificate) == "exact"
    # Equation by equation: neither program is lowered as a whole.
    assert not lowered
