"""What a text calls by a name: pooling, dropout, masks, the two keys of a split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
from jax import lax

import invert
from invert.emission.expressions import keys
from invert.ir import fast
from tests.emission.models import ramp, recovered, with_params
from tests.emission.test_blocks import _arrays, _emitted
from tests.emission.test_state import assert_same_steps, entry_of


def test_pooling_is_a_function_of_the_file() -> None:
    (kernel, x) = _arrays((3, 3, 2, 4), (2, 8, 8, 2))
    numbers = ("NHWC", "HWIO", "NHWC")

    def run(kernel: Any, x: Any) -> Any:
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        for padding in ("VALID", "SAME"):
            window = (1, 3, 3, 1)
            x = lax.reduce_window(x, -jnp.inf, lax.max, window, (1, 2, 2, 1), padding)
        return x

    source = _emitted(run, [kernel], x).source
    assert source.count("def max_pool(") == 1
    assert ', 3, 2, "VALID")' in source
    assert ', 3, 2, "SAME")' in source


@pytest.mark.parametrize(
    ("strides", "window", "sizes"),
    [
        ((1, 2, 2, 1), (1, 3, 2, 1), "(3, 2), 2"),
        ((1,) * 4, (1, 3, 3, 1), "3, 1"),
        ((1, 2, 1, 1), (1, 2, 2, 1), "2, (2, 1)"),
        ((1, 2, 2, 1), (1, 2, 2, 1), "2"),
    ],
)
def test_means_of_windows_are_a_function_of_the_file(
    strides: tuple[int, ...], window: tuple[int, ...], sizes: str
) -> None:
    (x,) = _arrays((2, 7, 6, 4))

    def same(x: Any) -> Any:
        ones = jnp.ones((1, 7, 6, 1), np.float32)
        total, count = (
            lax.reduce_window(y, 0.0, lax.add, window, strides, "SAME") for y in (x, ones)
        )
        return total / count

    def valid(x: Any, count: float) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, window, strides, "VALID") / np.float32(count)

    assert f"return avg_pool_same(x, {sizes})" in _emitted(same, [], x).source
    count = window[1] * window[2]
    assert f"return avg_pool(x, {sizes})" in _emitted(lambda x: valid(x, count), [], x).source
    assert "avg_pool" not in _emitted(lambda x: valid(x, count + 1), [], x).source


def test_windows_along_channels_are_not_pooling() -> None:
    (x,) = _arrays((2, 6, 6, 4))

    def run(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 1, 2), (1, 1, 1, 2), "VALID")

    assert "max_pool" not in _emitted(run, [], x).source


@pytest.mark.parametrize("axis", [0, 2])
def test_places_of_extrema_are_functions_of_the_file(axis: int) -> None:
    (x,) = _arrays((2, 6, 5))

    def run(x: Any) -> Any:
        return fast.two_pass_argmax(x, axis, np.int32) + fast.two_pass_argmin(x, axis, np.int32)

    source = _emitted(run, [], x).source
    for name in ("two_pass_argmax", "two_pass_argmin"):
        assert source.count(f"def {name}(") == 1
        assert f"{name}(x, {axis}, jnp.int32)" in source


def test_dropout_is_a_function_of_the_file(tmp_path: Path) -> None:
    def fn(values: Any, x: Any, key: Any) -> list[Any]:
        (count,) = values
        for rate in (0.3, 0.1):
            key, subkey = jax.random.split(key)
            kept = jax.random.uniform(subkey, x.shape, np.float32) >= np.float32(rate)
            x = jnp.where(kept, x * np.float32(1 / (1 - rate)), np.float32(0))
        return [x, count + np.int32(1)]

    params = {"count": np.asarray(1, np.int32)}
    module = recovered(entry_of(fn, params, (0,), ramp(5, 3), draws=True))
    assert_same_steps(module, (ramp(5, 3),), tmp_path, key=jax.random.key(3))
    source = module.source
    assert source.count("def dropout(") == 1
    assert "return dropout(dropout(x, 0.3, subkey), 0.1, key), state" in source
    assert "key, subkey = jax.random.split(key)" in source
    assert source.count("jax.random.split(") == 1  # the last numbers are drawn with the key itself


def test_another_scale_is_not_dropout(tmp_path: Path) -> None:
    def fn(values: Any, x: Any, key: Any) -> list[Any]:
        kept = jax.random.uniform(key, x.shape, np.float32) >= np.float32(0.3)
        return [jnp.where(kept, x * np.float32(1.5), np.float32(0)), values[0] + np.int32(1)]

    params = {"count": np.asarray(1, np.int32)}
    module = recovered(entry_of(fn, params, (0,), ramp(5, 3), draws=True))
    assert_same_steps(module, (ramp(5, 3),), tmp_path, key=jax.random.key(3))
    assert "dropout" not in module.source


@pytest.mark.parametrize("k", [0, 1])
def test_triangles_equal_jax(k: int) -> None:
    (x,) = _arrays((2, 6, 6))
    source = _emitted(lambda x: jnp.tril(x) + jnp.triu(x, k), [], x).source
    triu = "jnp.triu(x, 1)" if k else "jnp.triu(x)"
    assert f"return jnp.tril(x) + {triu}" in source


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: jnp.clip(x, -1.0, 2.0), "jnp.clip(x, -1.0, 2.0)"),
        (lambda x: jnp.maximum(jnp.minimum(x, 3.0), 1.0), "jnp.clip(x, 1.0, 3.0)"),
        (lambda x: jnp.clip(x, jnp.sin(x), 1.0), "jnp.clip(x, jnp.sin(x), 1.0)"),
        (lambda x: jnp.maximum(jnp.minimum(x, 0.5), 0.5), "jnp.maximum(jnp.minimum(x, 0.5), 0.5)"),
        # The signs of zeros are those of the original.
        (lambda x: jnp.maximum(jnp.minimum(x, 3.0), 0.0), "jnp.minimum(jnp.maximum(x, 0.0), 3.0)"),
    ],
)
def test_numbers_limited_from_both_sides(function: Callable[[Any], Any], expected: str) -> None:
    (x,) = _arrays((2, 6))
    emission = _emitted(function, [], x)
    assert f"return {expected}" in emission.source
    model: Any = emission.model
    for values in (x, 4 * x, -0.0 * x, jnp.full_like(x, jnp.nan), jnp.full_like(x, 3.0)):
        np.testing.assert_array_equal(model(values), function(values))
        assert np.array_equal(np.signbit(model(values)), np.signbit(function(values)))


def test_operations_with_neutral_numbers_are_left_out() -> None:
    (x,) = _arrays((2, 6))
    source = _emitted(lambda x: jnp.sin(x * 1.0 + 0.0) / 1.0 - 0.0, [], x).source
    assert "return jnp.sin(x)" in source


def test_a_pad_that_adds_nothing_is_left_out() -> None:
    (x,) = _arrays((2, 6))
    source = _emitted(lambda x: jnp.sin(jnp.pad(x, ((0, 0), (0, 0)))), [], x).source
    assert "return jnp.sin(x)" in source
    padded = _emitted(lambda x: jnp.sin(jnp.pad(x, ((0, 0), (0, 1)))), [], x).source
    assert "jnp.pad(x, ((0, 0), (0, 1)))" in padded


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (lambda x, y: x.at[:].add(y), "x.at[:].add(self.b)"),
        (lambda x, y: x.at[...].multiply(y * 2), "x.at[:].multiply("),
        (lambda x, y: x.at[:].set(y) * x, "x.at[:].set(self.b)"),
        (lambda x, y: jax.grad(lambda z: jnp.sum(jnp.sin(z.at[:].add(y))))(x), ".at[:].add("),
    ],
)
def test_changes_of_whole_arrays(change: Any, written: str) -> None:
    """JAX holds an empty array for the index of `x.at[:]`."""
    b, x = _arrays((3,), (5, 3))
    module = recovered(with_params(lambda p, x: change(x, p["b"]), {"b": b}, x))
    source = module.emit(loader=False).source
    assert written in source
    assert "constant" not in source
    assert "trainable" not in source


def test_the_last_of_many_is_left_out_by_a_negative_index() -> None:
    """Of a few, as of coordinates, the number of those that are left says more."""
    w, x = _arrays((7,), (5, 4))

    def run(p: Any, x: Any) -> Any:
        return p["w"][:-1].sum() + x[1:-1, :3].sum() + x[:-1].sum()

    source = recovered(with_params(run, {"w": w}, x)).emit(loader=False).source
    assert "self.w[:-1]" in source
    assert "x[1:-1, :3]" in source
    assert "x[:-1]" in source


def test_constants_of_one_number_are_no_fields() -> None:
    """Beside parameters, a constant array of one number is made where it is used."""
    b, x = _arrays((3,), (5, 3))
    far = np.full((1, 3), 1e10, np.float32)

    def run(p: Any, x: Any) -> Any:
        return jnp.concatenate([x + p["b"], far])

    module = recovered(with_params(run, {"b": b}, x))
    source = module.emit(loader=False).source
    assert "jnp.full((1, dim), 1e10, jnp.float32)" in source
    assert "trainable" not in source


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda x, y: jax.scipy.linalg.solve_triangular(x, y, lower=True), ", lower=True)"),
        (lambda x, y: jnp.sort(y, descending=True), "jnp.sort(x, descending=True)"),
    ],
)
def test_flags_of_functions(function: Any, written: str) -> None:
    x, y = _arrays((4, 4), (4,))
    module = invert.from_exported(jax.export.export(jax.jit(function))(x, y))
    assert written in module.source


def test_imaginary_numbers() -> None:
    """The real part of `-2j` is -0.0."""
    (x,) = _arrays((2, 6))
    for number, written in ((2j, "2j"), (complex(0.0, -2.0), "complex(0.0, -2.0)")):
        source = _emitted(lambda x, n=number: jnp.abs(jnp.exp(n * x) - n), [], x).source
        assert f"jnp.exp({written} * x" in source


def test_a_split_whose_keys_are_used_whole_stays() -> None:
    jaxpr = jax.make_jaxpr(lambda key: jax.random.split(key))(jax.random.key(0)).jaxpr
    assert [e.primitive.name for e in keys.unpacked(jaxpr).eqns] == ["random_split"]


def test_fields_of_keras_layers_have_no_numbers_of_the_process() -> None:
    params = {
        "net/dense_7/kernel": ramp(3, 4), "net/dense_8/kernel": ramp(4, 4),
        "net/lstm_5/recurrent_kernel": ramp(4, 4), "net/head_1/gamma": ramp(4, 4),
    }  # fmt: skip

    def run(p: Any, x: Any) -> Any:
        for name, kernel in p.items():
            with jax.named_scope(name.split("/")[1]):
                x = jnp.tanh(x @ kernel)
        return x

    source = recovered(with_params(run, params, ramp(2, 3), name="net")).emit().source
    for field in ("dense_1: ", "dense_2: ", "lstm: ", "head: "):
        assert f"\n    {field}" in source


def test_arguments_of_layers_are_in_the_order_of_libraries() -> None:
    """`PyTorch` stores what comes out first; a layer is made with what comes in first."""
    shapes = [(8, 4), (8,), (4, 8), (4,)] * 2
    *arrays, x = _arrays(*shapes, (2, 4))

    def run(*values: Any) -> Any:
        *arrays, x = values
        for w, b in zip(arrays[::2], arrays[1::2], strict=True):
            x = jnp.tanh(jnp.dot(x, w.T) + b)
        return x

    source = _emitted(run, arrays, x).source
    assert "def __init__(self, n_in: int, n_out: int, *, key: PRNGKeyArray):" in source


def test_gates_are_a_multiple_of_the_state() -> None:
    fields = ("kernel", "recurrent_kernel")
    names = [f"{layer}/cell/{field}" for layer in ("one", "two") for field in fields]
    arrays = _arrays((3, 16), (4, 16), (4, 24), (6, 24))

    def run(p: Any, x: Any) -> Any:
        for layer in ("one", "two"):
            kernel, recurrent = (p[f"{layer}/cell/{field}"] for field in fields)

            def step(carry: Any, x: Any, kernel: Any = kernel, recurrent: Any = recurrent) -> Any:
                c, h = carry
                i, f, g, o = jnp.split(x @ kernel + h @ recurrent, 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (c, h), h

            with jax.named_scope(layer):
                zeros = jnp.zeros((2, recurrent.shape[0]))
                x = lax.scan(step, (zeros, zeros), x)[1]
        return x

    params = dict(zip(names, arrays, strict=True))
    source = recovered(with_params(run, params, ramp(5, 2, 3), name="net")).emit().source
    assert 'recurrent_kernel: Float[Array, "hidden gates"]' in source
    assert "def __init__(self, n_in: int, hidden: int, *, key: PRNGKeyArray):" in source


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shape", [(5, 5), (4, 6)])
def test_a_causal_mask_is_a_triangle(shape: tuple[int, int], swapped: bool) -> None:
    (x,) = _arrays(shape)

    def run(x: Any) -> Any:
        rows, columns = (lax.iota(np.int32, n) for n in x.shape)
        mask = columns[None] <= rows[:, None] if swapped else rows[:, None] >= columns[None]
        return jnp.where(mask, x, 0.0)

    sizes = "5" if shape == (5, 5) else "4, 6"
    source = invert.from_stablehlo(jax.jit(run).lower(x)).source
    assert f"jnp.where(jnp.tri({sizes}, dtype=bool), x, 0.0)" in source
    assert "jnp.tri(" not in _emitted(run, [], x).source  # at an open size


@pytest.mark.parametrize("shift", [1, -1])
def test_another_triangle_is_compared(shift: int) -> None:
    (x,) = _arrays((5, 5))

    def run(x: Any) -> Any:
        rows, columns = (lax.iota(np.int32, n) for n in x.shape)
        near = rows[:, None] + shift >= columns[None], rows[:, None] > columns[None]
        return jnp.where(near[0], x, jnp.where(near[1], x, 0.0))

    assert "jnp.tri(" not in _emitted(run, [], x).source


def test_numbers_computed_from_numbers_are_numbers() -> None:
    (x,) = _arrays((2, 3))

    def run(x: Any) -> Any:
        scale = jnp.maximum(jnp.float32(1.0), jnp.full((1, 3), 1e-7, np.float32))
        return x / scale + scale * 0.5

    assert "return x + 0.5" in _emitted(run, [], x).source

    def kept(x: Any) -> Any:  # zero, and what compilers may round in their own way
        return x * jnp.exp(jnp.full((1, 3), 2.0, np.float32)) + (jnp.zeros((1, 3)) * -1.0)

    source = _emitted(kept, [], x).source
    assert "jnp.exp(" in source


def test_a_negative_number_is_subtracted() -> None:
    (x,) = _arrays((2, 3))
    assert (
        "return x * (1 / 127.5) - 1.0"
        in _emitted(lambda x: x * np.float32(1 / 127.5) + np.float32(-1.0), [], x).source
    )


def test_what_is_done_to_several_values_is_written_once() -> None:
    (x,) = _arrays((2, 5, 12))

    def run(x: Any) -> Any:
        parts = [jnp.swapaxes(y.reshape(-1, 5, 2, 2), 1, 2) for y in jnp.split(x, 3, axis=-1)]
        query, key, value = parts
        weights = jax.nn.softmax(query @ jnp.swapaxes(key, 2, 3))
        return weights @ value

    source = _emitted(run, [], x).source
    assert "query, key, value = (" in source
    assert "for y in jnp.split(x, 3, axis=-1)" in source


def test_leaky_relu_has_the_derivative_of_tensorflow_at_zero() -> None:
    tf = pytest.importorskip("tensorflow")

    def run(x: Any) -> Any:
        return tf.nn.leaky_relu(x, 0.2) + tf.nn.leaky_relu(2.0 * x, 0.3)

    function = tf.function(run, input_signature=[tf.TensorSpec([5], tf.float32)])
    emission = invert.convert(function).emit(loader=False)
    assert "leaky_relu(x, 0.2)" in emission.source and "def leaky_relu(" in emission.source
    x = np.array([-2.0, -0.0, 0.0, np.nan, np.inf], np.float32)
    model: Any = emission.model
    assert np.array_equal(model(x), run(x), equal_nan=True)
    slopes = jax.grad(lambda x: jnp.sum(model(x)))(x)
    assert np.allclose(slopes[:3], 0.8) and np.isclose(slopes[4], 3.0)
