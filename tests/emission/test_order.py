"""Arguments, results, fields and statements in the order of the original, and names of a stream."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from tests.emission.models import ramp, recovered, with_params


def _dense(rows: int, columns: int, start: float) -> dict[str, Any]:
    kernel = np.cos(ramp(rows, columns) + np.float32(start))
    return {"kernel": kernel, "bias": np.sin(ramp(columns) + np.float32(start))}


def _linear(p: Any, x: Any, scope: str = "") -> Any:
    with jax.named_scope(scope) if scope else contextlib.nullcontext():
        return x @ p["kernel"] + p["bias"]


def _written(fn: Any, params: Any, *args: Any, **options: Any) -> Any:
    return recovered(with_params(fn, params, *args, **options))


def _source(module: Any) -> str:
    return module.emit(loader=False).source


def _call_of(source: str, cls: str) -> str:
    """The text of a class from its `__call__` on."""
    text = source.split(f"class {cls}(")[1].split("\nclass ")[0]
    return text[text.index("def __call__") :]


@pytest.fixture(scope="module", params=range(2))
def variational() -> Any:
    """A model whose sampling layer uses the second of its arguments first.

    The second one of a process, whose layers Keras counts on.
    """
    import keras

    class Sampling(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(7)

        def call(self, inputs: Any) -> Any:
            center, spread = inputs
            noise = keras.random.normal((3, 2), seed=self.seeds)
            return keras.ops.exp(0.5 * spread) * noise + center

    given = keras.Input((5,), name="image")
    x = keras.layers.Dense(4, activation="relu")(given)
    zeta = keras.layers.Dense(2, name="zeta")(x)
    alpha = keras.layers.Dense(2, name="alpha")(x)
    z = Sampling()([zeta, alpha])
    model = keras.Model(given, {"z": z, "mean": zeta, "area": alpha})
    return invert.convert(model, ramp(3, 5), config=invert.Config(random="jax"))


def test_a_value_is_read_in_the_order_of_the_program() -> None:
    """Reverse mode adds up its gradient in that order, which rounding and fusions depend on."""

    def residual(p: Any, x: Any) -> Any:
        square = jnp.square(x)
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(square, axis=-1, keepdims=True) - jnp.square(mean)
        return x + (x - mean) * jax.lax.rsqrt(variance + 1e-3) * p["scale"]

    x, params = np.cos(ramp(5, 8) * 40), {"scale": np.sin(ramp(8) * 9)}
    module = _written(residual, params, x)
    call = _source(module).split("def __call__")[1]
    assert call.index("jnp.square(x)") < call.index("jnp.mean(x,")

    def slope(model: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(3 * model(x)))))(x)

    assert np.array_equal(slope(module.model), slope(lambda x: residual(params, x)))


def test_similar_arguments_are_in_order_of_computation(variational: Any) -> None:
    source = _source(variational)
    call = " ".join(source.split("def sampling(")[1].split())
    names = re.findall(r"(\w+): ", call)
    assert names[:3] == ["zeta", "alpha", "key"]
    assert "*, key: PRNGKeyArray" in call
    assert re.search(r"[^.]sampling\(\w+, \w+, key=key\)", source)
    key = jax.random.key(3)
    for name, value in variational(ramp(3, 5), key=key).items():
        assert np.array_equal(variational.model(ramp(3, 5), key=key)[name], value)


def test_fields_and_results_are_as_the_original_has_them(variational: Any) -> None:
    source = _source(variational)
    fields = re.findall(r"^    (\w+): \w+$", source.split("class Model(")[1], re.M)
    assert fields == ["dense", "zeta", "alpha"]
    assert re.findall(r'"(\w+)":', source.split("return {")[1]) == ["z", "mean", "area"]
    kinds = source.split("class Outputs(TypedDict):")[1].split("\n\n")[0]
    assert re.findall(r"^    (\w+):", kinds, re.M) == ["z", "mean", "area"]


def test_an_argument_has_the_name_of_its_input(variational: Any) -> None:
    import keras

    assert "image: Float[Array" in _source(variational)
    assert "Certificate: exact for image of shape (3, 5)." in _source(variational)
    given = keras.Input((5,))  # its name, such as `input_layer_3`, says nothing
    source = _source(invert.convert(keras.Model(given, keras.layers.Dense(2)(given))))
    assert "inputs: Float[Array" in source
    assert "Certificate: exact for every batch >= 1." in source

    @tf.function(input_signature=[tf.TensorSpec((2, 3), tf.float32, name="image")])
    def scaled(pixels: Any) -> Any:
        return 2.0 * pixels

    assert "pixels: Float[Array" in _source(invert.convert(scaled))


def test_the_parameters_of_a_cell_are_as_keras_makes_them() -> None:
    import keras

    given = keras.Input((4, 3))
    x = keras.layers.Bidirectional(keras.layers.GRU(5))(given)
    source = _source(invert.convert(keras.Model(given, x)))
    fields = re.findall(r"^    (\w+): Float", source.split("class GRUCell(")[1], re.M)
    assert fields[:3] == ["kernel", "recurrent_kernel", "bias"]
    assert re.findall(r"^    (\w+): GRU", source, re.M)[1:] == ["forward_gru", "backward_gru"]


def test_a_memory_follows_the_queries_that_attend_to_it() -> None:
    """As a near miss: both arguments have one type and are arguments of the program."""
    params = {n: _dense(4, 4, i) for i, n in enumerate(("query", "key", "value"))}

    def decoder(p: Any, source: Any, target: Any) -> Any:
        with jax.named_scope("attention"):
            given = {"query": target, "key": source, "value": source}
            query, key, value = (_linear(p["attention"][n], x, n) for n, x in given.items())
            weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", query, key))
            y = jnp.einsum("bqk,bkd->bqd", weights, value)
        return _linear(p["head"], jnp.tanh(y), "head")

    params = {"attention": params, "head": _dense(4, 2, 5)}
    arrays = ramp(2, 3, 4), np.cos(ramp(2, 3, 4))
    module = _written(decoder, params, *arrays, arg_names=("source", "target"))
    source = _source(module)
    assert "self.attention(target, source)" in source, source
    assert np.array_equal(module.model(*arrays), module(*arrays))


def test_an_argument_that_needs_another_stays_behind_it() -> None:
    params = {n: _dense(4, 4, i) for i, n in enumerate(("first", "second", "third"))}

    def chained(p: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            first = _linear(p["first"], x)
        with jax.named_scope("second"):
            second = _linear(p["second"], first)
        with jax.named_scope("third"):
            third = _linear(p["third"], second) * first
        return jnp.tanh(third)

    module = _written(chained, params, ramp(3, 4))
    assert re.search(r"self\.third\(self\.second\((\w+)\), \1\)", _source(module))
    assert np.array_equal(module.model(ramp(3, 4)), module(ramp(3, 4)))


def test_layers_of_one_class_have_one_order() -> None:
    """The second block gets the two values from elsewhere, and in another order."""
    params = {
        "left": _dense(4, 4, 1), "right": _dense(4, 4, 2),
        "mix_0": _dense(4, 4, 3), "mix_1": _dense(4, 4, 4),
    }  # fmt: skip

    def mixed(p: Any, x: Any) -> Any:
        left, right = (_linear(p[n], x, n) for n in ("left", "right"))
        for i in range(2):
            with jax.named_scope(f"mix_{i}"):
                gate = jnp.tanh(_linear(p[f"mix_{i}"], jnp.sin(right)))
                new = gate * left + jnp.square(left)
            left, right = right, new
        return left - right

    module = _written(mixed, params, ramp(3, 4))
    source = _source(module)
    assert re.search(r"(\w+) = self\.mix_0\(self\.left\(x\), right\)", source)
    assert re.search(r"self\.mix_1\(right, \w+\)", source)
    assert len(re.findall(r"self\.mix_\d = Mix\(", source)) == 2
    assert np.array_equal(module.model(ramp(3, 4)), module(ramp(3, 4)))


def test_a_chain_of_layers_is_a_stream_and_a_skip_connection_has_a_name() -> None:
    names = ("down_0", "down_1", "bottom_0", "bottom_1", "up_0", "up_1", "head")
    params = {n: _dense(8 if n == "up_0" else 4, 4, i) for i, n in enumerate(names)}

    def unet(p: Any, image: Any) -> Any:
        skip = x = _linear(p["down_1"], jnp.tanh(_linear(p["down_0"], image)))
        x = jnp.sin(jnp.cos(_linear(p["bottom_0"], jnp.tanh(x))))
        x = jnp.sin(jnp.cos(jnp.tanh(_linear(p["bottom_1"], x))))
        x = _linear(p["up_0"], jnp.concatenate([x, skip], axis=-1))
        x = jnp.sin(jnp.cos(jnp.tanh(_linear(p["up_1"], x))))
        return _linear(p["head"], x)

    module = _written(unet, params, ramp(3, 4), arg_names=("image",))
    call = _call_of(_source(module), "Model")
    targets = re.findall(r"^ +(\w+) = ", call, re.M)
    assert targets[0] == "down_1"
    assert "down_1], axis=-1" in call
    assert not {"bottom_0", "bottom_1", "up_0", "up_1"} & set(targets)
    assert np.array_equal(module.model(ramp(3, 4)), module(ramp(3, 4)))


def test_values_that_join_are_not_a_stream() -> None:
    """As a near miss: each is read by the next line alone, which reads both of them."""
    params = {n: _dense(4, 4, i) for i, n in enumerate(("token", "position", "head"))}

    def summed(p: Any, tokens: Any, places: Any) -> Any:
        with jax.named_scope("token"):
            token = jnp.sin(jnp.cos(_linear(p["token"], jnp.tanh(tokens))))
        with jax.named_scope("position"):
            position = jnp.sin(jnp.cos(_linear(p["position"], jnp.tanh(places))))
        return _linear(p["head"], jnp.maximum(jnp.abs(token), jnp.abs(position)) - position)

    arrays = ramp(3, 4), np.cos(ramp(3, 4))
    module = _written(summed, params, *arrays, arg_names=("tokens", "places"))
    call = _call_of(_source(module), "Model")
    assert re.search(r"position = self\.position\(places\)", call)
    assert "x = self.position" not in call and "x = self.token" not in call
    assert np.array_equal(module.model(*arrays), module(*arrays))


def test_a_stopped_gradient_of_a_variance_is_explained() -> None:
    import keras

    given = keras.Input((None, 6))
    source = _source(invert.convert(keras.Model(given, keras.layers.LayerNormalization()(given))))
    reason = "# As in tf.nn.moments: the variance has no derivative through its mean.\n"
    (after,) = source.split(reason)[1:]
    assert re.match(r" +\w+ = jnp\.square\(\w+ - lax\.stop_gradient\(mean\)\)\n", after)

    @tf.function(input_signature=[tf.TensorSpec((2, 3), tf.float32)])
    def stopped(x: Any) -> Any:
        return tf.square(x - tf.stop_gradient(tf.reduce_mean(x, -1, keepdims=True)))

    assert "tf.nn.moments" not in _source(invert.convert(stopped))


@pytest.mark.parametrize("layers", ["classes", "scan"])
def test_layers_in_a_list_take_their_key_by_name(layers: str) -> None:
    params = {f"block_{i}": _dense(4, 4, i) for i in range(3)}

    def dropped(p: Any, key: Any, x: Any) -> Any:
        for i in range(3):
            with jax.named_scope(f"block_{i}"):
                kept = jax.random.bernoulli(jax.random.fold_in(key, 7), 0.9, x.shape)
                x = jnp.where(kept, jnp.tanh(_linear(p[f"block_{i}"], x)) / 0.9, 0.0) + x
        return jnp.sin(x)

    arrays = jax.random.key(1), ramp(3, 4)
    module = _written(dropped, params, *arrays, arg_names=("key", "x"))
    emitted = module.emit(layers=layers, loader=False) if layers == "scan" else module.emit()
    assert "*, key: PRNGKeyArray) -> Float" in _call_of(emitted.source, "Block")
    assert "(x, key=key)" in emitted.source.split("class Model(")[1]
    model: Any = emitted.model
    np.testing.assert_allclose(model(*arrays), module(*arrays), rtol=1e-5, atol=1e-6)


def test_fields_of_nested_dictionaries_are_in_order_of_use(tmp_path: Any) -> None:
    """A SavedModel lists the variables of sorted dictionaries level by level."""
    params = {"body": {"inner": _dense(4, 4, 1)}, "last": _dense(4, 4, 2), "stem": _dense(4, 4, 0)}
    holder = tf.Module()
    holder.params = tf.nest.map_structure(tf.Variable, params)

    def model(p: Any, x: Any) -> Any:
        x = jnp.tanh(_linear(p["stem"], x, "stem"))
        with jax.named_scope("body"):
            x = x + jnp.tanh(_linear(p["body"]["inner"], x, "inner"))
        return _linear(p["last"], x, "last")

    converted = jax2tf.convert(model)
    holder.f = tf.function(
        lambda x: converted(holder.params, x),
        autograph=False,
        input_signature=[tf.TensorSpec((3, 4), tf.float32, name="x")],
    )
    tf.saved_model.save(holder, str(tmp_path))
    fields = re.findall(
        r"^    (\w+): \w+$", _source(invert.load(tmp_path)).split("__init__")[-2], re.M
    )
    assert fields == ["stem", "body", "last"]


def test_modules_of_one_class_have_their_fields_in_one_order() -> None:
    """The author made the layers of the second block in another order than they are called."""
    import keras

    class Block(keras.layers.Layer):
        def __init__(self, order: str, activation: str) -> None:
            super().__init__()
            self.activation = keras.activations.get(activation)
            for name in order.split():
                norm = name == "norm"
                made = keras.layers.LayerNormalization if norm else keras.layers.Dense
                setattr(self, name, made(**({} if norm else {"units": 4}), name=name))

        def build(self, shape: Any) -> None:
            for layer in self._layers:
                layer.build(shape)

        def call(self, x: Any) -> Any:
            return self.down(self.activation(self.norm(self.up(x))))

    given = keras.Input((4,), name="image")
    x = Block("up norm down", "relu")(given)
    model = keras.Model(given, Block("up down norm", "tanh")(x))
    for i, v in enumerate(model.weights):
        v.assign(np.cos(ramp(*v.shape) + np.float32(i)))
    module = invert.convert(model, ramp(3, 4))
    emission = module.emit(loader=False)
    assert emission.messages == ()
    assert emission.source.count("(eqx.Module)") == 4
    image = np.sin(ramp(3, 4))
    np.testing.assert_array_equal(module.model(image), module(image))
    np.testing.assert_allclose(module.model(image), model(image), rtol=1e-5, atol=1e-6)


def test_parameters_passed_through_several_layers_are_in_order_of_use() -> None:
    names = [f"w_{i}" for i in range(9)]
    kernels = {name: {"kernel": ramp(3, 3) + i} for i, name in enumerate(("first", "second"))}
    params = {**kernels, "shared": {n: np.cos(ramp(3) + i) for i, n in enumerate(names)}}

    def model(p: Any, x: Any) -> Any:
        for layer in kernels:
            with jax.named_scope(layer):
                x = jnp.tanh(x @ p[layer]["kernel"])
                with jax.named_scope("inner"):
                    for name in names:
                        x = jnp.sin(x * p["shared"][name])
                x = x + 1
        return x

    call = _call_of(_source(_written(model, params, ramp(2, 3))), "InnerBlock")
    assert re.findall(r"(w_\d): ", call) == names
