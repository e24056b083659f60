"""Names and numbers for sizes, given by the caller."""

from __future__ import annotations

import jax
import jax.export
import numpy as np
import pytest

import invert


def _exported(*shapes: str) -> jax.export.Exported:
    scope = jax.export.SymbolicScope()
    types = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), np.float32) for s in shapes
    ]
    return jax.export.export(jax.jit(lambda *xs: [x.sum(0) for x in xs]))(*types)


def _convert(*shapes: str, **sizes: str) -> invert.Module:
    return invert.from_exported(_exported(*shapes), config=invert.Config(sizes=sizes))


def test_a_name_replaces_that_of_the_container():
    module = _convert("b, t", arg0="batch length")
    assert module.report.certificate.sizes == "batch >= 1, length >= 1"
    assert '"batch length"' in module.source
    assert str(module.jaxpr.in_avals[0].shape) == "(batch, length)"


def test_a_name_applies_wherever_the_dimension_occurs():
    module = _convert("b", "b, t", arg0="n")
    assert module.report.certificate.sizes == "n >= 1, t >= 1"


def test_a_number_fixes_a_size():
    module = _convert("b, t", arg0="b 4")
    assert module.report.certificate.sizes == "b >= 1"
    assert module(np.ones((2, 4), np.float32))[0].shape == (4,)
    with pytest.raises(invert.SignatureError, match="expected"):
        module(np.ones((2, 5), np.float32))


def test_one_name_says_that_sizes_are_equal():
    module = _convert("b", "t", arg0="n", arg1="n")
    assert module.report.certificate.sizes == "n >= 1"
    with pytest.raises(invert.SignatureError, match="'n'"):
        module(np.ones(2, np.float32), np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"z": "b 3"}, "no argument is named 'z'; there are 'arg0'"),
        ({"arg0": "b"}, "has 1 sizes, but the argument has 2"),
        ({"arg0": "b 4"}, "axis 1 has size 3"),
        ({"arg0": "b! 3"}, "'b!' is neither a name nor a number"),
        ({"arg0": "max 3"}, "'max' is neither"),
    ],
)
def test_what_does_not_fit(sizes: dict[str, str], message: str):
    with pytest.raises(invert.SignatureError, match=message):
        invert.from_exported(_exported("b, 3"), config=invert.Config(sizes=sizes))


def test_names_of_an_expression_are_named_by_its_dimensions():
    with pytest.raises(invert.SignatureError, match="name the dimensions in it"):
        _convert("b", "2*b", arg1="n")
    assert _convert("b", "2*b", arg0="n").report.certificate.sizes == "n >= 1"


def test_sizes_have_to_be_text():
    with pytest.raises(ValueError, match="expected a mapping of names to names"):
        invert.Config(sizes={"x": 3})  # pyright: ignore[reportArgumentType]


def test_examples_leave_named_sizes_open():
    tf = pytest.importorskip("tensorflow")
    function = tf.function(lambda x, y: tf.nn.relu(x) @ tf.transpose(y))
    x = np.arange(-7, 8, dtype=np.float32).reshape(5, 3)
    config = invert.Config(sizes={"x": "batch 3", "y": "rows 3"})
    # One array for two arguments, and one given by name.
    for module in (
        invert.convert(function, x, x, config=config),
        invert.convert(function, x, y=x, config=config),
    ):
        assert module.report.certificate.sizes == "batch >= 1, rows >= 1"
        np.testing.assert_allclose(module(x[:2], x), function(x[:2], x))
    fresh = tf.function(lambda x, y: tf.nn.relu(x) @ tf.transpose(y))
    only = invert.convert(fresh, x, x, config=invert.Config(sizes={"y": "rows 3"}))
    assert only.report.certificate.sizes == "rows >= 1"


def test_a_reshape_requires_equal_sizes():
    """A batch read from one argument is that of another one, which is reshaped to it."""
    tf = pytest.importorskip("tensorflow")

    def attend(x, memory):
        return x[:, :, None] + tf.reshape(memory, [tf.shape(x)[0], 2, 2])

    specs = [tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, 4], tf.float32)]
    module = invert.convert(tf.function(attend), *specs)
    assert module.report.certificate.sizes == "batch >= 1"
    x, memory = np.ones((3, 2), np.float32), np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(module(x, memory), np.full((3, 2, 2), 2, np.float32))
    with pytest.raises(invert.InvertError, match=r"Reshape.*\(5, 4\)"):
        module(x, np.ones((5, 4), np.float32))
