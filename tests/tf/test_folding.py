"""Constant folding, and library functions with one implementation per device."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

import invert

tf = pytest.importorskip("tensorflow")

PLAIN = invert.Config(patterns=False, verify=False)


def same(fn: Any, *args: Any) -> invert.Module:
    fn = tf.function(fn, autograph=False)
    module = invert.convert(fn, *args, config=PLAIN)
    np.testing.assert_array_equal(module(*args), fn(*(tf.constant(a) for a in args)).numpy())
    return module


def test_axes_and_shapes_computed_by_unusual_ops() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    same(lambda x: tf.transpose(x, tf.roll(tf.range(tf.rank(x)), 1, 0)), x)
    same(lambda x: tf.reshape(x, tf.pad(tf.shape(x)[:2], [[0, 1]], constant_values=4)), x)
    same(lambda x: tf.transpose(x, tf.argsort(tf.constant([3, 1, 2]))), x)
    # Over several such ops, one of them a slice of what another one made.

    def reshaped(x: Any) -> Any:
        sizes = tf.roll(tf.sort(tf.constant([4, 2, 3])), 1, 0)
        return tf.reshape(x, tf.concat([[-1], sizes[1:]], 0))

    same(reshaped, x)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((0, 5, 8), (0, -1, 4)),
        ((0, 5, 7), (0, -1, 4)),
        ((0, 5, 8), (-1, 0)),
        ((3, 0), (0, -1)),
        ((3, 0), (3, -1)),
    ],
)
def test_the_size_that_is_left_of_an_array_without_elements(
    old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    """TensorFlow divides the sizes that are not zero, as for an empty batch."""

    def open_shape(x: Any) -> Any:
        return tf.reshape(x, new + 0 * tf.shape(x)[0])

    same(open_shape, np.zeros(old, np.float32))
    same(lambda x: x + tf.reduce_sum(tf.reshape(tf.zeros(old), new)), np.float32(1.5))
    module = invert.convert(tf.function(open_shape), tf.TensorSpec([None] * len(old)), config=PLAIN)
    assert module(np.zeros(old, np.float32)).shape == tf.reshape(tf.zeros(old), new).shape


def test_an_array_of_elements_has_no_shape_with_a_zero() -> None:
    def empty(x: Any) -> Any:
        return tf.reshape(x, (0, -1))

    module = invert.convert(tf.function(empty), tf.TensorSpec([None, 3]), config=PLAIN)
    assert module(np.zeros((0, 3), np.float32)).shape == (0, 3)
    with pytest.raises(invert.SignatureError, match="cannot be reshaped"):
        module(np.ones((2, 3), np.float32))


def test_sizes_that_are_repeated_to_a_number() -> None:
    """The size that they repeat is not the shape to which they are repeated."""

    def fn(x: Any) -> Any:
        sizes = tf.broadcast_to(tf.shape(x)[0], [2])
        filled = tf.fill([2], tf.shape(x)[0])
        return tf.reshape(x, tf.stack([tf.reduce_max(sizes), 1])), tf.zeros(filled)

    module = invert.convert(tf.function(fn), tf.TensorSpec([None]), config=PLAIN)
    assert "for every batch" in str(module.report)
    x = np.arange(3, dtype=np.float32)
    for found, wanted in zip(module(x), fn(x), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("fn", "shapes", "reason"),
    [
        (
            tf.linalg.banded_triangular_solve,
            ([2, None], [None, 1]),
            "tf.BandedTriangularSolve: is converted at fixed sizes only",
        ),
        (
            lambda x: tf.repeat([1.0, 2.0], [tf.shape(x)[0]] * 2),
            ([None],),
            "tf.Where: has a result whose size depends on data",
        ),
    ],
)
def test_ops_that_need_fixed_sizes_say_so(fn: Any, shapes: Any, reason: str) -> None:
    """In words of this package, not of the function that asked for the number."""
    fn = tf.function(fn, autograph=False)
    module = invert.convert(fn, *map(tf.TensorSpec, shapes), config=PLAIN)
    with pytest.raises(invert.SignatureError, match=reason):
        _ = module.report
    args = [np.ones([n or 3 for n in shape], np.float32) for shape in shapes]
    np.testing.assert_allclose(module(*args), fn(*args))


def test_sums_and_products_of_constants_keep_their_type() -> None:
    """Floating-point ones are not sizes; integers wrap around."""
    few = [0.5, 0.75, 0.25]

    def fn(x: Any) -> Any:
        return tf.sqrt(tf.reduce_sum(tf.constant(few))) * x + tf.sqrt(tf.reduce_prod(few))

    same(fn, np.float32(1.5))
    same(lambda x: x + tf.reduce_prod(tf.constant([70000, 70000])), np.int32(1))


@pytest.mark.parametrize("specs", [([2, 3], [2, 3, 2]), ([None, 3], [None, None, 2])])
def test_shapes_of_other_ranks_are_not_equal(specs: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        sizes, floats = tf.shape(x), tf.constant([1.0, 2.0])
        return sizes == tf.shape(y), sizes != tf.shape(y), floats == tf.constant([1.0, 2.0, 3.0])

    x, y = np.ones((2, 3), np.float32), np.ones((2, 3, 2), np.float32)
    module = invert.convert(tf.function(fn), *map(tf.TensorSpec, specs), config=PLAIN)
    assert [bool(v) for v in module(x, y)] == [False, True, False]


def test_data_dependent_values_are_still_refused() -> None:
    fn = tf.function(lambda x, p: tf.transpose(x, tf.roll(p, 1, 0)))
    with pytest.raises(invert.UnsupportedOpError, match="depends on data"):
        invert.convert(fn, np.ones((2, 3), np.float32), np.int32([1, 0]), config=PLAIN)


def test_unrequested_constants_stay_in_the_program() -> None:
    module = same(lambda x: x + tf.roll(tf.constant([1, 2, 3]), 1, 0), np.int32([5, 6, 7]))
    assert "slice" in module.report.primitives


def by_device(api: str, cpu: Any, other: Any) -> Any:
    """A call of a function for which the library has another one, preferred on the CPU."""
    general = tf.function(other, experimental_attributes={"api_implements": api}, autograph=False)
    attributes = {"api_implements": api, "api_preferred_device": "CPU"}
    on_cpu = tf.function(cpu, experimental_attributes=attributes, autograph=False)

    def fn(x: Any) -> Any:
        y = general(x)
        concrete = on_cpu.get_concrete_function(x)
        concrete.add_to_graph()
        concrete.add_gradient_functions_to_graph()
        return y

    return fn


def test_the_implementation_that_tensorflow_runs_on_a_cpu() -> None:
    module = same(by_device("one", lambda x: tf.sin(x), lambda x: tf.cos(x)), np.float32([0.5]))
    assert "sin" in module.report.primitives and "cos" not in module.report.primitives


def test_an_implementation_of_another_type_is_not_used() -> None:
    fn = by_device("two", lambda x: (tf.sin(x), x), lambda x: tf.cos(x))
    assert "cos" in same(fn, np.float32([0.5])).report.primitives


# Places in a table that has as many rows as a sequence may have elements.
PLACES = {
    "from the first": lambda length: tf.range(length),
    "from the last": lambda length: tf.range(length)[::-1],
    "as Keras looks them up": lambda length: tf.where(
        tf.range(length) < 0, tf.range(length) + 32, tf.range(length)
    ),
    "every third": lambda length: tf.range(length) * 3 + 1,
}


@pytest.mark.parametrize("name", PLACES)
def test_positions_of_an_open_length_stay_a_range(name) -> None:
    table = tf.constant(np.random.default_rng(0).standard_normal((32, 2)), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 2), tf.float32, name="x")])
    def network(x):
        return x + tf.gather(table, PLACES[name](tf.shape(x)[1]))

    module = invert.convert(network)
    assert "jnp.arange(length" in module.source or "jnp.arange(x_1" in module.source
    for rows, length in ((1, 4), (3, 9)):
        x = np.random.default_rng(1).standard_normal((rows, length, 2)).astype(np.float32)
        np.testing.assert_array_equal(module.model(x), network(x))


def _beside(value: np.ndarray, x: Any) -> Any:
    return x, tf.constant(value)


def test_a_range_keeps_its_bits_whatever_its_step() -> None:
    for value in (
        np.array([6, 4, 2, 0, -2], np.int32),
        np.array([250, 0, 6, 12], np.uint8),
        np.array([2**31 - 2, -(2**31) + 3, 8 - 2**31], np.int32),
    ):
        module = invert.convert(tf.function(partial(_beside, value)), np.float32(1))
        np.testing.assert_array_equal(module(np.float32(1))[1], value)


def test_cast_constants_of_double_precision_leave_no_doubles() -> None:
    x = np.linspace(-2, 2, 200, dtype=np.float32)
    scale = np.tile([0.1, -np.inf, np.nan, 1e300, 0.0], 40)
    module = same(lambda x: x * tf.cast(tf.constant(scale), tf.float32), x)
    assert "f64" not in str(module.jaxpr)
    # Not those that are subnormal afterwards, which TensorFlow flushes to zero.
    module = same(lambda x: x * tf.cast(tf.constant(scale * 1e-40), tf.float32), x)
    assert "f64" in str(module.jaxpr)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32"])
@pytest.mark.parametrize("number", [np.nan, 3e9, -1e300, 1e-42, 2.5])
def test_cast_constants_are_those_of_xla(number: float, dtype: str) -> None:
    """NumPy has other integers for NaN and for large numbers."""
    x = np.zeros((), dtype)
    for constant in (np.float64(number), np.full(2, number)):

        def cast(value: Any, x: Any) -> Any:
            return tf.cast(value, dtype) + x

        wanted = tf.function(cast, jit_compile=True)(tf.constant(constant), x)
        module = invert.convert(tf.function(partial(cast, tf.constant(constant))), x, config=PLAIN)
        np.testing.assert_array_equal(module(x), wanted)
        np.testing.assert_array_equal(module.model(x), wanted)


def test_divisors_are_compared_with_zero_before_they_are_broadcast() -> None:
    x = np.array([[0.0, -1.0, -0.0], [np.nan, 3.0, np.inf], [2.0, 1.0, 5.0]], np.float32)
    module = same(lambda x: tf.math.divide_no_nan(x, tf.reduce_max(x, 1, keepdims=True)), x)
    assert "largest == 0.0" in module.source


_NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -2.5,
    0.1,
    -0.1,
    7.0,
    np.nan,
    np.inf,
    -np.inf,
    1e-40,
    -1e-40,
    3e38,
    1e30,
]


@pytest.mark.parametrize(
    "op",
    [
        tf.add, tf.subtract, tf.multiply, tf.truediv, tf.math.floordiv, tf.math.floormod,
        tf.maximum, tf.minimum, tf.greater, tf.equal, tf.not_equal,
    ],
)  # fmt: skip
def test_numbers_are_computed_as_at_run_time(op: Any) -> None:
    """NumPy floors other quotients, as 9 for `1.0 // 0.1`, and keeps subnormal numbers."""
    x, y = (
        np.array(v, np.float32) for v in zip(*itertools.product(_NUMBERS, repeat=2), strict=True)
    )

    def folded() -> Any:
        parts = [
            op(tf.constant(a), tf.constant(b))
            for a, b in zip(np.split(x, 14), np.split(y, 14), strict=True)
        ]
        return tf.concat(parts, 0)

    wanted = invert.convert(tf.function(op), x, y, config=PLAIN)(x, y)
    np.testing.assert_array_equal(
        bits(invert.convert(tf.function(folded), config=PLAIN)()), bits(wanted)
    )


def bits(x: Any) -> Any:
    """An array whose equality tells zeros apart, but not NaNs."""
    x = np.asarray(x)
    return np.where(x == 0, np.where(np.signbit(x), -1e-9, 1e-9), x) if x.dtype.kind == "f" else x


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_integers_are_divided_as_at_run_time(dtype: str) -> None:
    """The lowest number has no absolute value."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    few = [low, high, low + 1, 7, 2, 1, *((-1, -3) if low else (3, 5))]
    x, y = (np.array(v, dtype) for v in zip(*itertools.product(few, few), strict=True))
    x, y = x[y != 0], y[y != 0]
    for op in (tf.raw_ops.Div, tf.raw_ops.FloorDiv, tf.raw_ops.FloorMod):
        module = same(
            lambda z, op=op: z + op(x=tf.constant(x), y=tf.constant(y)), np.zeros((), dtype)
        )
        assert "div" not in str(module.jaxpr)


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(0.0, 0.3, 0.1), (0.0, 0.6, 0.2), (1.0, 1.7, 0.1), (0.3, 9.1, 0.37), (2.0, -1.0, -0.3)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_range_of_floats_has_the_length_and_the_numbers_of_its_type(
    start: float, limit: float, delta: float, dtype: str
) -> None:
    """The quotient is rounded: 0.3 is three times 0.1 in single precision, and less in double."""

    def fn(x: Any) -> Any:
        return x + tf.cast(
            tf.range(*(tf.constant(v, dtype) for v in (start, limit, delta))), x.dtype
        )

    same(fn, np.float64(0) if dtype == "float64" else np.float32(0))


@pytest.mark.parametrize("k", [0, 1, -2])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 2)])
def test_a_matrix_with_a_diagonal_without_elements(shape: tuple[int, ...], k: int) -> None:
    x = np.zeros(shape, np.float32)
    same(lambda x: tf.linalg.diag(x, k=k, padding_value=5), x)


def test_no_numbers_have_no_range() -> None:
    x = np.zeros((0, 3), np.float32)
    for op in (tf.raw_ops.QuantizeAndDequantizeV2, tf.raw_ops.QuantizeAndDequantizeV4):
        same(lambda x, op=op: op(input=x, input_min=0.0, input_max=0.0), x)
