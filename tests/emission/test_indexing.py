"""Scatters and gathers as the indexing and the functions of segments that a person writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert

_X = np.arange(80, dtype=np.float32).reshape(10, 8)
_I = np.array([2, -1, 2], np.int32)
_J = np.array([0, 7, 3], np.int32)
_Y = np.ones((3, 8), np.float32)

_CASES: tuple[tuple[Callable[..., Any], tuple[Any, ...], str], ...] = (
    (lambda x, i, y: x.at[i].add(y), (_X, _I, _Y), "x.at[i].add(y)"),
    (lambda x, i, y: x.at[i].set(y), (_X, _I, _Y), "x.at[i].set(y)"),
    (lambda x, i, y: x.at[i].subtract(y), (_X, _I, _Y), "x.at[i].subtract(y)"),
    (lambda x, i: x.at[i].multiply(2.0), (_X, _I), "x.at[i].multiply(2.0)"),
    (
        lambda x, i, y: x.at[:, i].max(y),
        (_X, _J, np.ones((10, 3), np.float32)),
        "x.at[:, i].max(y)",
    ),
    (
        lambda x, i, y: x.at[i].min(y, mode="clip"),
        (_X, _I, _Y),
        'x.at[i].min(y, mode="clip")',
    ),
    (
        lambda x, i, y: x.at[i].add(y, indices_are_sorted=True),
        (_X, np.sort(_I), _Y),
        "x.at[i].add(y, indices_are_sorted=True)",
    ),
    (
        lambda x, i, j, y: x.at[i, j].add(y),
        (_X, _I, _J, np.ones(3, np.float32)),
        "x.at[i, j].add(y)",
    ),
    (
        lambda x, i, j, y: x.at[i, j].set(y, wrap_negative_indices=False),
        (_X, _I, _J, np.ones(3, np.float32)),
        "x.at[i, j].set(y, wrap_negative_indices=False)",
    ),
    (
        lambda x, i, j: x.at[i, j].get(mode="clip", wrap_negative_indices=False),
        (_X, _I, _J),
        'x.at[i, j].get(mode="clip", wrap_negative_indices=False)',
    ),
    (
        lambda x, i, j: x.at[i, j].get(mode="fill", indices_are_sorted=True),
        (_X, np.sort(_I), _J),
        'x.at[i, j].get(mode="fill", indices_are_sorted=True)',
    ),
    (
        lambda x, i: jnp.take(x, i, axis=0, mode="wrap"),
        (_X, _I),
        'x.at[i].get(mode="promise_in_bounds", wrap_negative_indices=False)',
    ),
    (lambda x, y: x.at[2:5].set(y), (_X, _Y), "x.at[2:5].set(y)"),
    (lambda x, y: x.at[:2].add(y), (_X, _Y[:2]), "x.at[:2].add(y)"),
    (
        lambda x, i: jax.ops.segment_sum(x, i, 4),
        (_Y, _J),
        "jax.ops.segment_sum(x, i, num_segments=4)",
    ),
    (
        lambda x, i: jax.ops.segment_max(x, i, 4),
        (_Y, _J),
        "jax.ops.segment_max(x, i, num_segments=4)",
    ),
    (lambda x, i, j: x[i, j], (_X, _I, _J), "return x[i, j]"),
    (lambda x, i: x[:, i], (_X, _J), "return x[:, i]"),
    (
        lambda x, i: x.at[i].get(mode="clip"),
        (_X, _I),
        'return x.at[i].get(mode="clip")',
    ),
    (
        lambda x, i, j: x.at[i, j].get(mode="fill", fill_value=-1),
        (_X, _I, _J),
        'return x.at[i, j].get(mode="fill", fill_value=-1.0)',
    ),
    (
        lambda x, i: jnp.take_along_axis(x, i[None], axis=1, mode="clip"),
        (_X[:1], _J),
        'jnp.take_along_axis(x, i[None], axis=-1, mode="clip")',
    ),
    (
        lambda x: jax.lax.broadcast_in_dim(x, (3, 2, 8), (0, 2)),
        (_Y,),
        "return jnp.broadcast_to(x[:, None], (3, 2, 8))",
    ),
    # One index for several tables is counted from the end once.
    (lambda x, y, i: x[i] + 2 * y[i], (_X, -_X, _I), "return x[i] + 2.0 * y[i]"),
)


@pytest.mark.parametrize("fn, args, wanted", _CASES, ids=[c[2] for c in _CASES])
def test_an_update_or_lookup_is_written_as_indexing(
    fn: Callable[..., Any], args: tuple[Any, ...], wanted: str
) -> None:
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
    module = invert.from_exported(jax.export.export(jax.jit(fn))(*types))
    emission = module.emit(loader=False)
    assert wanted in emission.source
    assert "DimensionNumbers" not in emission.source
    model: Any = emission.model
    for shift in (0, 1, 100):  # out of bounds too
        own = [a + shift if a.dtype == np.int32 else a for a in args]
        np.testing.assert_array_equal(model(*own), fn(*map(jnp.asarray, own)))


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "wrap", "edge"])
@pytest.mark.parametrize("widths", [((0, 0), (2, 1)), ((1, 2), (0, 3)), ((0, 0), (3, 0))])
def test_a_border_of_elements_is_a_padding(mode: str, widths: tuple[Any, ...]) -> None:
    exported = jax.export.export(jax.jit(lambda x: 2 * jnp.pad(x * x, widths, mode=mode)))(_X)
    emission = invert.from_exported(exported).emit(loader=False)
    assert f'return 2.0 * jnp.pad(x * x, {widths}, mode="{mode}")' in emission.source
    model: Any = emission.model
    np.testing.assert_array_equal(model(_X), 2 * np.pad(_X * _X, widths, mode))  # type: ignore


def test_other_borders_are_joined() -> None:
    def run(x: Any) -> Any:
        return jnp.concatenate([x[:, 1:3], x, x[:, ::-1][:, :1]], axis=1)

    emission = invert.from_exported(jax.export.export(jax.jit(run))(_X)).emit(loader=False)
    assert "jnp.pad" not in emission.source
    model: Any = emission.model
    np.testing.assert_array_equal(model(_X), run(_X))


@pytest.mark.parametrize(
    ("op", "shape", "scatter"),
    [
        (tf.tensor_scatter_nd_update, (10, 8), "lax.scatter"),
        (tf.tensor_scatter_nd_add, (10, None), "lax.scatter_add"),
        (tf.tensor_scatter_nd_max, (None, 8), "lax.scatter_max"),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_indices_in_one_array(
    op: Callable[..., Any], shape: tuple[int | None, ...], scatter: str, depth: int
) -> None:
    specs = [
        tf.TensorSpec(shape, tf.float32, name="x"),
        tf.TensorSpec((None, depth), tf.int32, name="i"),
        tf.TensorSpec((None, *shape[depth:]), tf.float32, name="y"),
    ]
    emission = invert.convert(tf.function(op, input_signature=specs)).emit(loader=False)
    assert f"scatter_nd({scatter}, tensor, indices, updates)" in emission.source
    assert "DimensionNumbers" not in emission.source.split("class ")[1]
    model, rng = emission.model, np.random.default_rng(depth)
    for count in (1, 4):
        x = rng.normal(size=(10, 8)).astype(np.float32)
        i = rng.permuted(np.indices((8, 8)).reshape(2, -1).T)[:count, :depth].astype(np.int32)
        y = rng.normal(size=(count, *x.shape[depth:])).astype(np.float32)
        np.testing.assert_array_equal(model(x, i, y), op(x, i, y))
        weights = rng.normal(size=x.shape).astype(np.float32)
        with tf.GradientTape() as tape:
            inputs = tf.constant(x), tf.constant(y)
            tape.watch(inputs)
            loss = tf.reduce_sum(weights * op(inputs[0], i, inputs[1]))
        ours = jax.grad(lambda x, y, i=i, w=weights: jnp.vdot(w, model(x, i, y)), (0, 1))(x, y)
        for one, other in zip(ours, tape.gradient(loss, inputs), strict=True):
            np.testing.assert_array_equal(one, other)
    # A negative index is not counted from the end.
    out = np.full((2, depth), -1, np.int32)
    np.testing.assert_array_equal(model(x, out, np.ones((2, *x.shape[depth:]), np.float32)), x)


@pytest.mark.parametrize(("depth", "text"), [(1, "jnp.take(params, "), (2, "gather_nd(params, ")])
def test_lookups_by_indices_in_one_array(depth: int, text: str) -> None:
    specs = [
        tf.TensorSpec((None, 8, 3), tf.float32, name="params"),
        tf.TensorSpec((2, None, depth), tf.int32, name="indices"),
    ]
    emission = invert.convert(tf.function(tf.gather_nd, input_signature=specs)).emit(loader=False)
    assert text in emission.source
    assert "DimensionNumbers" not in emission.source.split("class ")[1]
    model, rng = emission.model, np.random.default_rng(depth)
    for rows, count in ((5, 1), (3, 7)):
        x = rng.normal(size=(rows, 8, 3)).astype(np.float32)
        i = rng.integers(0, rows, (2, count, depth)).astype(np.int32)
        np.testing.assert_array_equal(model(x, i), tf.gather_nd(x, i))
        weights = rng.normal(size=model(x, i).shape).astype(np.float32)
        with tf.GradientTape() as tape:
            tape.watch(given := tf.constant(x))
            loss = tf.reduce_sum(weights * tf.gather_nd(given, i))
        wanted = tf.convert_to_tensor(tape.gradient(loss, given))
        ours = jax.grad(lambda x, i=i, w=weights: jnp.vdot(w, model(x, i)))(x)
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)  # sums of equal places


def test_a_complex_fill_value() -> None:
    x, i = np.arange(3, dtype=np.complex64), np.array([1, 7])
    exported = jax.export.export(jax.jit(lambda x, i: x.at[i].get(mode="fill", fill_value=1 - 2j)))(
        x, i
    )
    module = invert.from_exported(exported)
    assert "fill_value=complex(1.0, -2.0)" in module.source
    model: Any = module.model
    np.testing.assert_array_equal(model(x, i), np.array([1, 1 - 2j], np.complex64))


_OPEN: tuple[tuple[Callable[..., Any], tuple[str, ...], str], ...] = (
    (lambda x, i: x[i], ("rows, 5", "n"), "return x[i]"),
    (lambda x, i: x[i], ("rows, 5", "3, n"), "return x[i]"),
    (lambda x, i: x[i], ("rows, 5", "3"), "return x[i]"),
    (lambda x, i, j: x[i, :, j], ("rows, 5, columns", "3", "3"), "return x[i, :, j]"),
    (lambda x, i, y: x.at[i].add(y), ("rows, 5", "3", "3, 5"), "return x.at[i].add(y)"),
    (
        lambda x, i: jnp.take(x, i[None], axis=0, mode="clip"),
        ("rows, 5", "n"),
        'return jnp.take(x, i[None], axis=0, mode="clip")',
    ),
    (lambda x, i, j: x[i, j], ("rows, columns, 5", "n", "n"), "return x[i, j]"),
    (
        lambda x, i: x[i - 1, jnp.arange(i.shape[0])],
        ("length, batch, 5", "batch"),
        "return x[i - 1, jnp.arange(batch, dtype=jnp.int32)]",
    ),
    (lambda x, i, y: x.at[i].add(y), ("rows, 5", "n", "n, 5"), "return x.at[i].add(y)"),
)


@pytest.mark.parametrize(("function", "shapes", "text"), _OPEN)
def test_indices_of_axes_of_open_length(
    function: Callable[..., Any], shapes: tuple[str, ...], text: str
) -> None:
    """JAX widens such indices under x64, where the text has to hold as well."""
    scope = jax.export.SymbolicScope()
    names = function.__code__.co_varnames[: len(shapes)]
    types = [jnp.int32 if name in "ij" else jnp.float32 for name in names]
    specs = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), dtype)
        for shape, dtype in zip(shapes, types, strict=True)
    ]
    emission = invert.from_exported(jax.export.export(jax.jit(function))(*specs)).emit()
    assert text in emission.source
    sizes = {"rows": 6, "columns": 3, "n": 4, "length": 6, "batch": 4}
    args = [
        np.arange(np.prod(shape), dtype=dtype).reshape(shape) % 3
        for shape, dtype in (
            ([int(sizes.get(n, n)) for n in text.split(", ")], dtype)
            for text, dtype in zip(shapes, types, strict=True)
        )
    ]
    for x64 in (False, True):
        with jax.enable_x64(x64):
            np.testing.assert_array_equal(emission.model(*args), function(*map(jnp.asarray, args)))


@pytest.mark.parametrize(
    ("function", "table", "text"),
    [
        (lambda x, i: jax.vmap(lambda k: x[k])(i), (7, 4), 'x.at[i].get(mode="clip")'),
        (lambda x, i: jax.vmap(lambda k: x[k])(i), (7, 2, 3), 'x.at[i].get(mode="clip")'),
        (lambda x, i: jax.vmap(lambda k: x[:, k])(i), (2, 7, 4), "jax.vmap(lambda i: x[:, i])(i)"),
        (lambda x, i: jax.vmap(lambda k, j: x[k, :, j])(i, i), (7, 4, 7), "lax.gather("),
        (
            lambda x, i: jax.vmap(lambda k: jax.lax.dynamic_slice_in_dim(x, k, 2))(i),
            (7, 4),
            "jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, 2))(i)",
        ),
        (lambda x, i: jax.vmap(lambda k: x[:1][k])(i), (7, 4), ""),
    ],
)
@pytest.mark.parametrize("count", [6, "n"])
def test_mapped_lookups_are_indexing(
    function: Callable[..., Any], table: tuple[int, ...], text: str, count: int | str
) -> None:
    shape = jax.export.symbolic_shape(str(count))
    specs = jax.ShapeDtypeStruct(table, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)
    emission = invert.from_exported(jax.export.export(jax.jit(function))(*specs)).emit()
    assert text in emission.source, emission.source
    rng = np.random.default_rng(len(table))
    x = jnp.asarray(rng.normal(size=table), jnp.float32)
    i = jnp.asarray([0, 6, -1, 9, -20, 6], jnp.int32)
    weights = rng.normal(size=function(x, i).shape).astype(np.float32)
    model: Any = emission.model
    np.testing.assert_array_equal(model(x, i), function(x, i))
    one, other = (jax.grad(lambda x, f=f: jnp.vdot(weights, f(x, i)))(x) for f in (model, function))
    np.testing.assert_array_equal(one, other)


# Lookups and updates mapped over a batch, and at places counted from the ends of open axes.
_OF_EACH: tuple[tuple[Callable[..., Any], tuple[str, ...], str], ...] = (
    (lambda x, i: jax.vmap(lambda x, i: x[i])(x, i), ("b, n, 6", "b"), "lambda x, i: x[i])(x, i)"),
    (
        lambda x, i: jax.vmap(lambda x, i: x[:, i])(x, i),
        ("b, n, 6", "b, 4"),
        "jax.vmap(lambda x, i: x[:, i])(x, i)",
    ),
    (
        lambda x, i: jax.vmap(jax.vmap(lambda x, i: x[i]))(x, i),
        ("b, n, 6", "b, n"),
        "jax.vmap(jax.vmap(lambda x, i: x[i]))(x, i)",
    ),
    (
        lambda x, i: jax.vmap(lambda x, i: jnp.take(x, i, axis=1))(x, i),
        ("b, n, 6", "b, 3"),
        "jax.vmap(lambda x, i: jnp.take(x, i, axis=-1))(x, i)",
    ),
    (
        lambda x, i: jax.vmap(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 3, 1))(x, i),
        ("b, n, 6", "b"),
        "jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 3, 1))(x, i)",
    ),
    (
        lambda x, i, y: jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(x, y, i, 0),
        ("b, n, 6", "b", "b, 1, 6"),
        "jax.vmap(lambda x, y, i: lax.dynamic_update_slice_in_dim(x, y, i, 0))(x, y, i)",
    ),
    (
        lambda x, i: jax.vmap(lambda x, i: x.at[i].set(1.0))(x, i),
        ("b, n, 6", "b"),
        "jax.vmap(lambda x, i: x.at[i].set(1.0))(x, i)",
    ),
    (
        lambda x, i, y: jax.vmap(lambda x, i, y: x.at[i].add(y))(x, i, y),
        ("b, n, 6", "b, 2", "b, 2, 6"),
        "jax.vmap(lambda x, i, y: x.at[i].add(y))(x, i, y)",
    ),
    (
        lambda x, i: jax.vmap(lambda x, i: jax.ops.segment_sum(x, i, 5))(x, i),
        ("b, n, 6", "b, n"),
        "jax.vmap(lambda x, i: jax.ops.segment_sum(x, i, num_segments=5))(x, i)",
    ),
    (
        lambda x, i: jax.vmap(lambda x, i: jnp.roll(x, i, axis=1))(x, i),
        ("b, n, 6", "b"),
        "jax.vmap(lambda x, i: jnp.roll(x, i, axis=-1))(x, i)",
    ),
    (
        lambda x, i: jnp.repeat(x, jnp.abs(i), axis=2, total_repeat_length=7),
        ("b, n, 6", "6"),
        "jnp.repeat(x, jnp.abs(i), axis=-1, total_repeat_length=7)",
    ),
    (
        lambda x, i: jnp.repeat(x[:, 0], jnp.abs(i), total_repeat_length=2 * x.shape[0]),
        ("n, 6", "n"),
        "jnp.repeat(x[:, 0], i, total_repeat_length=2 * n)",
    ),
    (lambda x: x[:, ::2, 1::3], ("b, 7, 6",), "x[:, ::2, 1::3]"),
    (lambda x: x[:, ::2, ::2], ("b, n, 6",), "x[:, ::2, ::2]"),
    (lambda x: x[:, 1:6:2, 2:5, ::-2], ("b, 7, 6, 5",), "jnp.flip(x[:, 1::2, 2:-1, ::2], axis=3)"),
    (lambda x: x[0] + x[-1], ("n, 6",), "x[0] + x[-1]"),
    (lambda x: x[3] + x[-2], ("n, 6",), "x[3] + x[-2]"),
    (lambda x, i: x[i], ("n, 6", ""), "x[i]"),
    (lambda x, i: x[:, i], ("b, n, 6", ""), "x[:, i]"),
    (lambda x, i: x[i, :, -2], ("n, 6, b", ""), "x[i, :, -2]"),
    (lambda x: x.at[-1].set(2.0), ("n, 6",), "x.at[-1].set(2.0)"),
    (lambda x: x.at[-1].set(x[0]), ("n, 6",), "x.at[-1].set(x[0])"),
)


@pytest.mark.parametrize(("function", "shapes", "text"), _OF_EACH, ids=[c[2] for c in _OF_EACH])
@pytest.mark.parametrize("fixed", [False, True], ids=["open", "fixed"])
def test_places_of_each_and_from_the_end_are_indexing(
    function: Callable[..., Any], shapes: tuple[str, ...], text: str, fixed: bool
) -> None:
    """The derivatives too, and of places out of bounds."""
    scope = jax.export.SymbolicScope()
    names = function.__code__.co_varnames[: len(shapes)]
    types = [jnp.int32 if name == "i" else jnp.float32 for name in names]

    def sized(shape: str, b: int, n: int) -> list[int]:
        return [{"b": b, "n": n}.get(part) or int(part) for part in shape.split(", ") if part]

    specs = [
        jax.ShapeDtypeStruct(
            tuple(sized(shape, 3, 5)) if fixed else jax.export.symbolic_shape(shape, scope=scope),
            dtype,
        )
        for shape, dtype in zip(shapes, types, strict=True)
    ]
    emission = invert.from_exported(jax.export.export(jax.jit(function))(*specs)).emit()
    if not fixed or "vmap" in text:
        assert text in emission.source, emission.source
    assert "DimensionNumbers" not in emission.source
    model: Any = emission.model
    rng = np.random.default_rng(len(text))
    for b, n in [(3, 5)] if fixed else [(3, 5), (1, 1), (2, 9)]:
        given = zip(types, (sized(shape, b, n) for shape in shapes), strict=True)
        args = [
            jnp.asarray(rng.integers(-8, 12, own) if t == jnp.int32 else rng.normal(size=own), t)
            for t, own in given
        ]
        for x64 in (False, True):
            with jax.enable_x64(x64):
                weights = rng.normal(size=jax.eval_shape(function, *args).shape)
                weights = weights.astype(np.float32)

                def loss(x: Any, f: Any, rest: Any = args[1:], weights: Any = weights) -> Any:
                    return jnp.vdot(weights, f(x, *rest))

                np.testing.assert_array_equal(model(*args), function(*args))
                one, other = (jax.grad(loss)(args[0], f) for f in (model, function))
                np.testing.assert_array_equal(one, other)


def test_layers_take_the_indices_that_they_share_as_they_are() -> None:
    """Layers of a network of graphs, whose edges have an axis added in each of them."""
    tf = pytest.importorskip("tensorflow")
    random = np.random.default_rng(0)

    def variable(name: str, *shape: int) -> Any:
        return tf.Variable(random.normal(size=shape), dtype=tf.float32, name=name)

    weights = [variable("w0", 6, 8), variable("w1", 8, 8)]
    biases = [variable("b0", 8), variable("b1", 8)]
    readout = variable("readout", 8, 3)

    @tf.function(autograph=False)
    def run(x: Any, rows: Any, cols: Any, graph: Any) -> Any:
        n = tf.shape(x)[0]
        degrees = tf.math.unsorted_segment_sum(tf.ones_like(cols, tf.float32), cols, n) + 1.0
        scale = tf.math.rsqrt(degrees)
        for w, b in zip(weights, biases, strict=True):
            y = tf.matmul(x, w)
            sums = tf.gather(y * scale[:, None], rows)
            sums = tf.math.unsorted_segment_sum(sums, cols, n) * scale[:, None]
            x = tf.nn.relu(sums + y * tf.square(scale)[:, None] + b)
        return tf.matmul(tf.math.unsorted_segment_mean(x, graph, 4), readout)

    ids = tf.TensorSpec([None], tf.int32)
    emission = invert.convert(run, tf.TensorSpec([None, 6]), ids, ids, ids).emit(loader=False)
    assert "DimensionNumbers" not in emission.source
    assert "class Block" in emission.source
    model: Any = emission.model
    rows, cols, graph = (np.array(v, np.int32) for v in ([0, 9, 3], [4, 4, 1], [0, 1] * 5))
    args = _X[:, :6] / 80, rows, cols, graph
    np.testing.assert_allclose(model(*args), run(*args), rtol=1e-5, atol=1e-5)


def test_layers_take_indices_rather_than_steps_of_them() -> None:
    """Two layers of a graph network look up the same senders and receivers."""

    def network(params: Any, nodes: Any, senders: Any, receivers: Any) -> Any:
        for p in params:
            messages = jax.nn.relu(nodes[senders] @ p["message"] + nodes[receivers])
            sums = jax.ops.segment_sum(messages, receivers, nodes.shape[0])
            nodes = nodes + jnp.tanh(sums @ p["update"])[receivers % nodes.shape[0]]
        return nodes

    rng = np.random.default_rng(0)
    params = [
        {k: rng.normal(size=(8, 8)).astype(np.float32) for k in ("message", "update")}
        for _ in range(2)
    ]
    ids = np.array([1, -2, 0, 9, 9, 3, 1, 2, 0, 4], np.int32)
    args = (_X, ids, np.abs(ids[::-1]))
    exported = jax.export.export(jax.jit(network))(params, *args)
    module: Any = invert.from_exported(exported, params={"params": params})
    source = module.emit(loader=False).source
    layer = source[source.index("class Layer") : source.index("class Network")]
    assert "jax.ops.segment_sum(" in layer
    assert "receivers: Int" in layer
    for raw in ("lax.gather", "lax.scatter", "mask: Bool", "< 0"):
        assert raw not in source
    np.testing.assert_array_equal(module.model(*args), jax.jit(network)(params, *args))


def test_lookups_in_a_loop_share_their_indices() -> None:
    """As a tree of a search, whose arrays are read and written at one node and action."""

    def search(values: Any, visits: Any, parents: Any, actions: Any, node: Any) -> Any:
        def backward(values: Any, visits: Any, parents: Any, actions: Any, node: Any) -> Any:
            def step(state: Any) -> Any:
                values, visits, node = state
                i, j = parents[node], actions[node]
                value = values[i, j] + values[i, j] / (1 + visits[i, j])
                return values.at[i, j].set(value), visits.at[i, j].add(1), i

            return jax.lax.while_loop(lambda s: s[2] > 0, step, (values, visits, node))

        return jax.vmap(backward)(values, visits, parents, actions, node)

    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 7, 3)).astype(np.float32)
    parents = np.maximum(np.arange(7, dtype=np.int32) - np.array([[1], [2]], np.int32), 0)
    actions = rng.integers(-1, 3, (2, 7)).astype(np.int32)
    args = values, np.zeros((2, 7, 3), np.int32), parents, actions, np.array([6, 5], np.int32)
    module: Any = invert.from_exported(jax.export.export(jax.jit(search))(*args))
    source = module.emit(loader=False).source
    assert "jax.vmap(lambda x, i, j: x[i, j])" in source
    assert "jax.vmap(lambda x, i, j: x.at[i, j].add(1))" in source
    for raw in ("lax.gather", "lax.scatter", "concatenate", "< 0", " _ = "):
        assert raw not in source
    for got, want in zip(module.model(*args), jax.jit(search)(*args), strict=True):
        np.testing.assert_array_equal(got, want)
