"""TensorFlow functions with open sizes, and jax2tf conversions of JAX programs with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from tests.sizes import jax_programs
from tests.sizes.checks import (
    FEW,
    MANY,
    PARTS,
    assert_same,
    called,
    forms,
    gradient,
    often,
    random_arrays,
)
from tests.sizes.tensorflow_programs import PROGRAMS

# JAX exports Fourier transforms of open length for no platform but the CPU alone.
_NOT_EXPORTED = ("spectra",)


def _check(name: str, sizes: tuple[tuple[int, ...], ...], directory: Path | None) -> None:
    function, specs = PROGRAMS[name]
    original = tf.function(function, input_signature=specs, autograph=False)
    module = invert.convert(original)
    assert module.report.certificate.kind == "exact"
    assert "fixed sizes only" not in module.source
    types = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in module.jaxpr.in_avals]
    types = types[len(types) - len(specs) :]
    if "mod(" in module.report.certificate.sizes:  # some of the sizes have to be divisible
        sizes = (*sizes, *(tuple(4 * n for n in row) for row in sizes))
    made = list(forms(module, types, directory, name not in _NOT_EXPORTED))
    run = 0
    for row in sizes:
        shapes = []
        for spec in specs:
            open_sizes = iter(row)
            shape = [next(open_sizes) if n is None else n for n in spec.shape]
            shapes.append((shape, spec.dtype.as_numpy_dtype))
        args = random_arrays(shapes, seed=sum(row))
        try:
            wanted = jax.tree_util.tree_map(np.asarray, original(*map(tf.constant, args)))
        except tf.errors.OpError:
            for what, form in made[:2]:
                with pytest.raises((ValueError, TypeError, invert.InvertError)):
                    form(*args)
                    pytest.fail(f"{name}: {what} took the sizes {row}")
            continue
        for what, form in made:
            assert_same(called(form, args, run > 0), wanted, f"{name}: {what} at {row}")
        run += 1
        derivative = _gradient(original, args)
        for what, form in made[:2] if derivative is not None else ():
            assert_same(gradient(form, args), derivative, f"{name}: gradient of {what} at {row}")
    assert run >= len(sizes) // 2


def _gradient(original: Any, args: list[np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """TensorFlow's derivative, as `gradient` for a module; `None` if there is none."""
    given = list(map(tf.constant, args))
    floats = [x for x in given if x.dtype.is_floating]
    if not floats:
        return None
    try:
        with tf.GradientTape() as tape:
            tape.watch(floats)
            results = [y for y in tf.nest.flatten(original(*given)) if y.dtype.is_floating]
            total = tf.add_n([tf.reduce_sum(tf.cos(y) * y) for y in results])
        found = tape.gradient(total, floats, unconnected_gradients="zero")
    except (LookupError, ValueError):  # an op without a derivative, or no results of floats
        return None
    return tuple(tf.convert_to_tensor(g).numpy() for g in found)


@pytest.mark.parametrize("name", often(PROGRAMS, "u_net"))
@pytest.mark.drawn(12)
def test_program(name: str):
    _check(name, FEW, None)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_at_many_sizes(name: str, part: int, tmp_path: Path):
    _check(name, MANY[part::PARTS], tmp_path)


_POLYMORPHIC = [
    "dense_relu", "softmax_net", "layer_norm", "causal_attention", "rnn", "convolution", "halves",
    "averages", "embedding", "at_most", "padded_to_eight", "straight_through", "product",
]  # fmt: skip


def _polymorphic(name: str) -> tuple[Any, Any]:
    function, shapes, _ = jax_programs.PROGRAMS[name]
    specs = [
        tf.TensorSpec(
            [int(n) if n.strip().isdigit() else None for n in s.removeprefix("i:").split(",")],
            tf.int32 if s.startswith("i:") else tf.float32,
        )
        for s in shapes
    ]
    polymorphic = [s.removeprefix("i:") for s in shapes]
    converted = jax2tf.convert(function, polymorphic_shapes=polymorphic)
    return function, tf.function(converted, input_signature=specs, autograph=False)


@pytest.mark.parametrize("name", often(_POLYMORPHIC))
def test_jax2tf(name: str):
    function, original = _polymorphic(name)
    module = invert.roundtrip(original)
    assert module.report.certificate.kind == "exact"
    assert not any("kept as" in g for g in module.report.gradients)
    assert "fixed sizes only" not in module.source
    # The names are those of `polymorphic_shapes`.
    assert module.report.certificate.sizes.startswith("b >= 1")
    types = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in module.jaxpr.in_avals]
    types = types[len(types) - len(original.input_signature) :]
    for row in FEW:
        shapes = []
        for t in types:
            names = {"b": row[0], "t": row[1], "k": row[2]}
            shapes.append(([n if isinstance(n, int) else names[str(n)] for n in t.shape], t.dtype))
        args = random_arrays(shapes, seed=sum(row))
        wanted = jax.jit(function)(*args)
        for what, form in (("module", module), ("text", module.model)):
            assert_same(form(*args), wanted, f"{name}: {what} at {row}")
        if name != "embedding":
            assert_same(gradient(module, args), gradient(function, args), f"{name} at {row}")


@pytest.mark.parametrize("name", ["causal_attention", "halves", "dense_relu"])
def test_there_and_back_twice(name: str):
    """JAX to TensorFlow to JAX to TensorFlow to JAX."""
    function, original = _polymorphic(name)
    module = invert.roundtrip(original)
    shapes = [s.removeprefix("i:") for s in jax_programs.PROGRAMS[name][1]]
    again = tf.function(
        jax2tf.convert(module, polymorphic_shapes=shapes),
        input_signature=original.input_signature,
        autograph=False,
    )
    second = invert.roundtrip(again)
    assert second.report.certificate == module.report.certificate
    assert second.report.primitives == module.report.primitives
    sizes = {"b": 5, "t": 7}
    args = random_arrays(
        [([int(sizes.get(n.strip(), n)) for n in s.split(",")], np.float32) for s in shapes], seed=0
    )
    assert_same(second(*args), function(*args), name)


_TWO: dict[str, tuple[Any, bool]] = {
    "means": (
        lambda x, y: tf.reduce_sum(x) * tf.reduce_sum(y) / tf.cast(tf.shape(y)[0], tf.float32),
        True,
    ),
    "pairs": (lambda x, y: x[:, None] - y[None], True),
    "rows": (lambda x, y: tf.gather(x, tf.cast(tf.abs(y[:, 0]), tf.int32) % tf.shape(x)[0]), True),
    "sum": (lambda x, y: x + y, False),
    "product": (lambda x, y: tf.matmul(x, y, transpose_a=True), False),
}


@pytest.mark.parametrize("name", _TWO)
def test_first_sizes_differ_unless_the_program_refuses(name: str):
    """A text that took them for equal would compute other numbers without an error."""
    function, differ = _TWO[name]
    module = invert.convert(function, *[tf.TensorSpec([None, 3])] * 2)
    sizes = {v.aval.shape[0] for v in module.jaxpr.invars}
    assert len(sizes) == 1 + differ
    for rows in ((4, 2), (2, 5), (1, 3)) if differ else ((4, 4), (1, 1)):
        x, y = random_arrays([((n, 3), np.float32) for n in rows], seed=0)
        for form in (module, module.model):
            assert_same(form(x, y), function(*map(tf.constant, (x, y))).numpy(), f"{name} {rows}")


def test_a_graph_has_nodes_and_edges():
    def sums(nodes, sources, targets):
        sent = tf.nn.relu(tf.gather(nodes, sources))
        return nodes + tf.math.unsorted_segment_sum(sent, targets, tf.shape(nodes)[0])

    specs = tf.TensorSpec([None, 3]), *[tf.TensorSpec([None], tf.int32)] * 2
    module = invert.convert(sums, *specs)
    nodes, sources, targets = (v.aval.shape[0] for v in module.jaxpr.invars)
    assert nodes != sources == targets
    for n, k in ((3, 5), (4, 1), (2, 2)):
        rng = np.random.default_rng(n)
        args = rng.normal(size=(n, 3)).astype(np.float32), *rng.integers(0, n, (2, k), np.int32)
        for form in (module, module.model):
            assert_same(form(*args), sums(*map(tf.constant, args)).numpy(), f"{n} nodes, {k} edges")


def test_two_texts_with_masks_have_a_length_each():
    """As the encoder and decoder of a T5: eight unnamed sizes, three of them different."""

    def attended(text, text_mask, other, other_mask):
        x, y = (
            tf.one_hot(t, 5) * m[..., None] for t, m in ((text, text_mask), (other, other_mask))
        )
        scores = tf.matmul(x, y, transpose_b=True) + (other_mask[:, None] - 1.0) * 1e9
        return tf.matmul(tf.nn.softmax(scores), y) + x

    kinds = (tf.int32, tf.float32) * 2
    module = invert.convert(attended, *[tf.TensorSpec([None, None], k) for k in kinds])
    lengths = [v.aval.shape[1] for v in module.jaxpr.invars]
    assert lengths[0] == lengths[1] != lengths[2] == lengths[3]
    rng = np.random.default_rng(0)
    for batch, n, k in ((2, 4, 3), (1, 2, 6), (3, 5, 5)):
        args = [a for m in (n, k) for a in (rng.integers(0, 5, (batch, m), np.int32),
                                            np.ones((batch, m), np.float32))]  # fmt: skip
        for form in (module, module.model):
            assert_same(form(*args), attended(*map(tf.constant, args)).numpy(), f"{n} and {k}")


# Names of the sizes in `polymorphic_shapes`, shapes that fit them, and shapes that do not.
_MULTIPLES: dict[str, tuple[Any, list[str], list[Any], list[Any]]] = {
    "halves": (
        lambda x, y: (jnp.sin(x[:, ::2] * y), jnp.concatenate([y, x[:, : x.shape[1] // 2]], 1)),
        ["b, 2*n", "b, n"], [[(2, 6), (2, 3)], [(1, 2), (1, 1)]], [[(2, 5), (2, 2)]],
    ),
    "quarters": (
        lambda x: jnp.max(x.reshape(x.shape[0], -1, 4), axis=-1),
        ["b, 4*n"], [[(2, 8)], [(1, 4)]], [[(2, 6)], [(2, 0)]],
    ),
    "doubled": (
        lambda x, y: y.reshape(-1, 2, 3).sum(1) * x,
        ["b, 3", "2*b, 3"], [[(3, 3), (6, 3)], [(1, 3), (2, 3)]], [[(3, 3), (7, 3)]],
    ),
    "product": (
        lambda x, y: x.reshape(y.shape) * y,
        ["m*n", "m, n"], [[(6,), (2, 3)], [(4,), (4, 1)]], [[(7,), (2, 3)]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _MULTIPLES)
def test_sizes_in_proportion(name: str):
    function, shapes, fitting, others = _MULTIPLES[name]
    specs = [
        tf.TensorSpec([int(n) if n.strip().isdigit() else None for n in s.split(",")])
        for s in shapes
    ]
    converted = jax2tf.convert(function, polymorphic_shapes=shapes)
    module = invert.roundtrip(tf.function(converted, input_signature=specs, autograph=False))
    assert module.report.certificate.kind == "exact"
    assert not any("kept as" in g for g in module.report.gradients)
    assert "fixed sizes only" not in module.source
    for row in fitting:
        args = random_arrays([(s, np.float32) for s in row], seed=0)
        for form in (module, module.model):
            assert_same(form(*args), function(*args), f"{name} at {row}")
            assert_same(gradient(form, args), gradient(function, args), f"{name} at {row}")
    for row in others:
        args = random_arrays([(s, np.float32) for s in row], seed=0)
        with pytest.raises(invert.SignatureError):
            module(*args)
        with pytest.raises(ValueError, match="shape"):
            module.model(*args)


def test_table_of_positions_refuses_longer_ones():
    function, specs = PROGRAMS["positions"]
    original = tf.function(function, input_signature=specs, autograph=False)
    module = invert.convert(original)
    assert "<= 64" in module.report.certificate.sizes
    long = np.zeros((2, 65, 8), np.float32)
    with pytest.raises(ValueError, match="64"):
        module.model(long)
    np.testing.assert_allclose(
        module.model(long[:, :64]), original(tf.constant(long[:, :64])), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_range_is_as_long_as_its_limit_in_its_type(dtype: tf.DType):
    def places(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.range(tf.cast(tf.cast(tf.shape(x)[0], dtype), tf.float32)), tf.int32)

    original = tf.function(places, input_signature=[tf.TensorSpec([None])], autograph=False)
    module = invert.convert(original)
    x = np.ones(257, np.float32)  # 256 in bfloat16
    try:
        found = module(x)
    except invert.InvertError:
        assert dtype is tf.bfloat16
    else:
        assert_same(found, original(tf.constant(x)).numpy(), "the range")


def test_the_reason_for_fixed_sizes_is_what_no_condition_settles():
    def original(x, y):
        return tf.raw_ops.NthElement(input=x[1:] + y[1:], n=tf.shape(x)[0] // 2)

    specs = [tf.TensorSpec([None], tf.float32, name=n) for n in ("x", "y")]
    module = invert.convert(tf.function(original, input_signature=specs, autograph=False))
    with pytest.raises(invert.SignatureError, match="no source covers all sizes") as info:
        _ = module.source
    # That `x` and `y` must be equally long is known after the first attempt.
    assert "requires a constant, in tf.NthElement (at node 'NthElement')" in str(info.value)
    assert "Incompatible shapes" not in str(info.value)


def test_a_program_of_64_bits_is_exported_again_at_open_sizes():
    function, specs = PROGRAMS["picked"]
    module = invert.convert(tf.function(function, input_signature=specs, autograph=False))

    def around(x):
        """Uses functions that the program calls, too, outside of it and in 32 bits."""
        return jax.nn.relu(jnp.take(x, jnp.arange(x.shape[0]), axis=0)), module(jax.nn.relu(x))

    again = jax.export.export(jax.jit(around))(
        *jax.export.symbolic_args_specs([np.zeros((2, 2), np.float32)], "b, t")
    )
    (x,) = random_arrays([((5, 3), np.float32)], seed=0)
    x = np.maximum(x, 0)
    wanted = x, jax.tree_util.tree_map(np.asarray, function(tf.constant(x)))
    assert_same(again.call(x), wanted, "exported again")


def test_sizes_that_prove_equal_late() -> None:
    """First those of the slices are equal, then the sizes that these are computed from."""

    specs = [tf.TensorSpec([None, None], tf.float32)] * 2

    def function(x: Any, y: Any) -> Any:
        part, other = (tf.nn.conv1d(v[..., None], tf.ones((3, 1, 1)), 1, "VALID") for v in (x, y))
        return tf.reshape(part * other, [-1]), x + y

    module = invert.convert(tf.function(function, input_signature=specs))
    assert module.report.certificate.kind == "exact"
    x, y = random_arrays([((3, 12), np.float32)] * 2, seed=3)
    for got, wanted in zip(module(x, y), function(x, y), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
