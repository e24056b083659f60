"""Loops that end on data but have a known bound: a `scan`, with derivatives."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert

XS = np.float32(
    [
        [0.3, 0.4, 0.5, 0.6, 0.7],
        [3.0, 1.0, 1.0, 1.0, 1.0],  # ends in the first step
        [-0.2, 0.5, -0.3, 0.8, 0.1],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [2.0, -1.0, 0.5, 3.0, 1.0],
    ]
)


def _break(x):
    s = tf.zeros([])
    for i in tf.range(10):
        s += tf.sin(x[0] * tf.cast(i, tf.float32) + s)
        if s > 1.5:
            break
    return s


def _break_over_rows(x):
    s = tf.zeros([])
    for v in x:
        if v < 0.0:
            break
        s += v * v
    return s


def _break_and_continue(x):
    s = x[0]
    for i in tf.range(tf.shape(x)[0] * 2):
        s = s * 1.3 + 0.1
        if i < 2:
            continue
        s += x[2]
        if s > 3.0:
            break
    return s


def _break_before_the_count(x):
    """The counter increases only if the loop continues."""
    i, y = tf.constant(0), x[0]
    while i < 8:
        y = y * 1.5 + 0.1
        if y > 3.0:
            break
        i += 1
    return y


def _and_of_python(x):
    i, y = tf.constant(0), x[0]
    while y < 3.0 and i < 8:
        y = y * 1.5 + 0.1
        i += 1
    return y


def _or(x):
    i, y = tf.constant(0), x[0]
    while tf.logical_or(i < 3, tf.logical_and(i < 9, y < 3.0)):
        y = y * 1.1 + 0.1
        i += 1
    return y


def _not(x):
    i, y = tf.constant(0), x[0]
    while not (i >= 9 or y > 3.0):
        y = y * 1.2 + 0.1
        i += 1
    return y


def _flag(x):
    """The body, not the condition, checks the bound."""
    i, y, done = tf.constant(0), x[0], tf.constant(False)
    while not done:
        y = y * 1.2 + 0.1
        i += 1
        done = tf.logical_or(i >= 9, y > 3.0)
    return y


def _downwards(x):
    s = x[0]
    for i in tf.range(8, -1, -2):
        s = s * 1.1 + tf.cast(i, tf.float32) * 0.1
        if s > 2.0:
            break
    return s


def _sums(x):
    """The sum of 25 single-precision tenths is less than 2.5."""
    t, y = tf.constant(0.0), x[0]
    while t < 2.5 and y < 1e3:
        y = y * 1.01 + 0.1
        t += 0.1
    return y


def _count_of_data(x):
    s = x[0]
    for i in tf.range(tf.math.count_nonzero(x > 0.5, dtype=tf.int32)):
        s += x[i] * x[i]
        if s > 9.0:
            break
    return s


def _least_of_data(x):
    n = tf.cast(tf.reduce_sum(x) * 2.0, tf.int32)
    s = x[0]
    for _ in tf.range(tf.minimum(n, 6)):
        s = s * 1.2 + 0.1
    return s


def _list(x):
    array, s = tf.TensorArray(tf.float32, size=5), x[0]
    for i in tf.range(5):
        s = s * 1.2
        array = array.write(i, s)
        if s > 2.0:
            break
    return tf.reduce_sum(array.stack())


def _nested(x):
    s = tf.zeros([])
    for i in tf.range(4):
        for j in tf.range(3):
            s += x[j] * x[i]
            if s > 2.0:
                break
        if s > 4.0:
            break
        s = s * 1.1
    return s


def _triangle(x):
    """Inner loops count to the counters of outer ones."""
    s = tf.zeros([])
    for i in tf.range(4):
        for j in tf.range(i):
            for k in tf.range(j + 1):
                s += x[k] * x[j] * x[i]
                if s > 2.0:
                    break
    return s


def _largest_of_data(x):
    """The bound is a floating-point number, as is the counter."""
    i, s = tf.zeros([]), x[0]
    while i < tf.reduce_max(tf.minimum(3.0 * x, 6.5)):
        i, s = i + 1.0, tf.sin(s) + x[1]
    return s


def _smallest_of_data(x):
    i, s = tf.constant(4.0), x[0]
    while i > tf.reduce_min(tf.maximum(x, -2.0)):
        i, s = i - 1.0, tf.sin(s) + x[1]
    return s


# With the lengths of the scans.
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "break": (_break, (10,)),
    "break over rows": (_break_over_rows, (5,)),
    "break and continue": (_break_and_continue, (10,)),
    "break before the count": (_break_before_the_count, (8,)),
    "and": (_and_of_python, (8,)),
    "or": (_or, (9,)),
    "not": (_not, (9,)),
    "flag": (_flag, (9,)),
    "downwards": (_downwards, (5,)),
    "sums": (_sums, (26,)),
    "count of data": (_count_of_data, (5,)),
    "least of data": (_least_of_data, (6,)),
    "largest of data": (_largest_of_data, (7,)),
    "smallest of data": (_smallest_of_data, (6,)),
    "list": (_list, (5,)),
    "nested": (_nested, (4, 3)),
    "triangle": (_triangle, (4, 3, 3)),
}
QUICK = ("break", "break before the count", "flag", "sums", "count of data", "largest of data")


def _lengths(jaxpr: Any) -> list[int]:
    found = []
    for eqn in jaxpr.eqns:
        assert eqn.primitive.name != "while"
        found += [eqn.params["length"]] if eqn.primitive.name == "scan" else []
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=_holds_equations):
            if _holds_equations(inner):
                found += _lengths(getattr(inner, "jaxpr", inner))
    return found


def _holds_equations(x: Any) -> bool:
    return hasattr(getattr(x, "jaxpr", x), "eqns")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_loops_with_a_bound_are_scans(name: str) -> None:
    fn, lengths = CASES[name]
    theirs = tf.function(fn)
    module = invert.convert(theirs, XS[0])
    assert tuple(_lengths(module.jaxpr)) == lengths

    values, gradients = [], []
    for x in XS:
        with tf.GradientTape() as tape:
            tape.watch(given := tf.constant(x))
            values.append(theirs(given))
        gradients.append(tape.gradient(values[-1], given, unconnected_gradients="zero"))
    value, gradient = np.stack(values), np.stack([tf.convert_to_tensor(g) for g in gradients])
    near: Any = {"rtol": 1e-4, "atol": 1e-5}
    forward = jax.jit(jax.jacfwd(module))
    derived = jax.jit(jax.value_and_grad(module))
    each = [derived(jnp.asarray(x)) for x in XS]
    np.testing.assert_allclose([v for v, _ in each], value, **near)
    np.testing.assert_allclose([g for _, g in each], gradient, **near)
    np.testing.assert_allclose([forward(x) for x in XS], gradient, **near)
    np.testing.assert_allclose(jax.vmap(module)(XS), value, **near)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(module)))(XS), gradient, **near)
    np.testing.assert_allclose(
        [module.model(x) for x in XS], [v for v, _ in each], rtol=1e-6, atol=1e-6
    )
    assert "while_loop" not in module.source


def test_a_loop_of_no_steps() -> None:
    def fn(x):
        s = x[0] * 2.0
        for i in tf.range(tf.shape(x)[0] - 5):
            s += x[i]
            if s > 2.0:
                break
        return s

    module = invert.convert(tf.function(fn), XS[0])
    assert _lengths(module.jaxpr) == []
    np.testing.assert_allclose(jax.grad(module)(jnp.asarray(XS[0])), [2, 0, 0, 0, 0])


def test_a_sum_alone_is_added_up_as_the_loop_does() -> None:
    def fn(x):
        return tf.while_loop(lambda t, y: t < 2.5, lambda t, y: (t + 0.1, y + x), [0.0, x])[1]

    module = invert.convert(tf.function(fn), np.float32(1.0))
    assert module(np.float32(1.0)) == tf.function(fn)(tf.constant(1.0)).numpy() == 27.0


def test_possibly_infinite_numbers_do_not_bound_a_loop_with_another_condition() -> None:
    def fn(x, y):
        limit = tf.math.log(tf.abs(x))

        def more(t, y):
            return tf.logical_and(t < limit, y < 300.0)

        return tf.while_loop(more, lambda t, y: (t + 1.0, y + 1.0), [0.0, y])[1]

    theirs = tf.function(fn)
    module = invert.convert(theirs, np.float32(1.0), np.float32(0.0))
    for x in np.float32([0.5, 30.0, np.inf, np.nan]):
        y = np.float32(0.0)
        np.testing.assert_array_equal(module(x, y), theirs(tf.constant(x), tf.constant(y)).numpy())


@pytest.mark.slow
def test_a_flag_from_outside_the_loop_may_precede_its_condition() -> None:
    """As in `tf.linalg.expm`, whose loop is bounded by the largest number."""
    theirs = tf.function(tf.linalg.expm)
    x = np.float32([[0.3, 2.0], [-4.0, 1.0]])
    module = invert.convert(theirs, x)
    assert module.report.primitives["scan"] == 1
    assert re.findall(r"length=(\d+)", str(module.jaxpr)) == ["127"]  # the largest exponent
    with tf.GradientTape() as tape:
        tape.watch(given := tf.constant(x))
        value = tf.reduce_sum(theirs(given) ** 2)
    gradient = jax.grad(lambda x: (module(x) ** 2).sum())(jnp.asarray(x))
    np.testing.assert_allclose(gradient, tape.gradient(value, given), rtol=1e-4)
    infinite = x * np.float32(np.inf)
    np.testing.assert_array_equal(module(infinite), theirs(tf.constant(infinite)).numpy())

    def fn(x, flag):
        limit = tf.math.log(tf.abs(x))

        def more(t, y):
            return tf.logical_and(flag, tf.logical_and(t < limit, y < 300.0))

        return tf.while_loop(more, lambda t, y: (t + 1.0, y + 1.0), [0.0, 0.0])[1]

    theirs = tf.function(fn)
    module = invert.convert(theirs, np.float32(1.0), np.bool_(True))
    for x in np.float32([30.0, np.inf, np.nan]):
        for flag in (False, True):
            expected = theirs(tf.constant(x), tf.constant(flag)).numpy()
            np.testing.assert_array_equal(module(x, np.bool_(flag)), expected)


def test_a_limit_that_wraps_around_is_not_a_bound() -> None:
    def fn(x, n):
        i, y = tf.constant(0), x
        n = tf.minimum(n, 6)
        while i < n - 1 and y < 50.0:
            y, i = y + 1.0, i + 1
        return y

    theirs = tf.function(fn)
    module = invert.convert(theirs, np.float32(0.0), np.int32(3))
    for n in np.int32([3, 9, -(2**31)]):
        x = np.float32(0.0)
        np.testing.assert_array_equal(module(x, n), theirs(tf.constant(x), tf.constant(n)).numpy())


@pytest.mark.parametrize(
    ("dtype", "start", "step", "steps"),
    [
        (tf.int8, 0, 1, 300),
        (tf.uint8, 200, -2, 120),
        (tf.int32, 5, 2**30, 10),
        (tf.uint8, 3, -7, None),
        (tf.int32, 0, 2**20, None),
        (tf.int64, 2**62, 2**61, None),
    ],
)
def test_counters_wrap_around(dtype: Any, start: int, step: int, steps: int | None) -> None:
    def fn(x: Any) -> Any:
        count, total = tf.constant(start, dtype), tf.zeros([], dtype)
        for _ in tf.range(tf.shape(x)[0] if steps is None else steps):
            total += count // tf.constant(3, dtype)
            if step < 0:
                count -= tf.constant(-step, dtype)
            else:
                count += tf.constant(step, dtype)
        return count, total, count < tf.constant(100, dtype)

    theirs = tf.function(fn, input_signature=[tf.TensorSpec([None], tf.float32)])
    module = invert.convert(theirs)
    for size in (1, 5, 5000):
        x = np.ones(size, np.float32)
        for run in (module, module.model):
            for got, wanted in zip(run(x), theirs(x), strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_branches_chosen_by_a_constant_may_have_different_shapes() -> None:
    """As in window attention, where some positions of a mask widen the window."""

    def fn(x):
        mask = tf.tensor_scatter_nd_update(tf.ones([2, 6], tf.int32), [[0, 0], [1, 0]], [2, 2])
        wide = tf.reduce_max(tf.math.count_nonzero(mask > 1, axis=1, dtype=tf.int32))
        if tf.reduce_any(mask > 1):
            times = tf.tile(x[:, :, None], (1, 1, 5 + wide))
        else:
            times = tf.tile(x[:, :, None], (1, 1, 5))
        return tf.nn.softmax(times * tf.range(tf.cast(tf.shape(times)[2], tf.float32)))

    x = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    theirs = tf.function(fn)
    module = invert.convert(theirs, x)
    assert "cond" not in module.report.primitives
    np.testing.assert_allclose(module(x), theirs(tf.constant(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_a_size_of_an_argument_names_the_remedy() -> None:
    def fn(x, mask):
        return tf.tile(x, [tf.reduce_max(tf.math.count_nonzero(mask > 1, axis=1, dtype=tf.int32))])

    with pytest.raises(invert.UnsupportedOpError, match="close over the array"):
        invert.convert(tf.function(fn), np.ones(3, np.float32), np.ones((2, 6), np.int32))


def _limit(rng: np.random.Generator, x: Any, depth: int) -> Any:
    """A data-dependent integer, bounded by its expression."""
    if depth == 0:
        leaf = rng.integers(4)
        if leaf == 0:
            return tf.clip_by_value(tf.cast(x[rng.integers(4)], tf.int32), -3, rng.integers(1, 6))
        if leaf == 1:
            return tf.reduce_sum(tf.cast(x > 0.25, tf.int32))
        if leaf == 2:
            return tf.argmax(x, output_type=tf.int32)
        return tf.minimum(tf.cast(tf.round(x[rng.integers(4)]), tf.int32), 4)
    one = _limit(rng, x, depth - 1)
    node = rng.integers(7)
    if node < 4:
        two = _limit(rng, x, depth - 1)
        return (tf.maximum, tf.minimum, tf.add, tf.subtract)[node](one, two)
    return (tf.identity, lambda a: tf.maximum(a, -2) * 3, lambda a: -tf.maximum(a, -5))[node - 4](
        one
    )


def _ends_at(seed: int) -> Any:
    def fn(x):
        limit = _limit(np.random.default_rng(seed), x, 2)
        i, y = tf.constant(0), x[0]
        while i < limit:
            y, i = y + 1.0, i + 1
        return tf.cast(i, tf.float32), y

    return fn


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.slow)])
def test_a_loop_cut_at_a_bound_has_ended(seeds: range) -> None:
    """The bound follows from the expression of the limit alone, for all data."""
    bounded = 0
    for seed in seeds:
        theirs = tf.function(_ends_at(seed))
        module = invert.convert(theirs, np.zeros(4, np.float32))
        bounded += "while[" not in str(module.jaxpr)
        rng = np.random.default_rng(seed + 1)
        # Other floating point numbers have no integer, and each processor its own answer.
        extreme = np.float32([0, -0.0, 1, -1, 2.1e9, -2.1e9, 1e-45, 2.5, 0.3])
        for x in [*rng.choice(extreme, (12, 4)), *rng.normal(0, 3, (4, 4))]:
            x = np.float32(x)
            limit = _limit(np.random.default_rng(seed), tf.constant(x), 2).numpy()
            if limit < 1000:
                np.testing.assert_array_equal(module(x)[0], max(limit, 0), err_msg=f"{seed}: {x}")
    assert bounded >= len(seeds) // 2
