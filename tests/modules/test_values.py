"""Arrays by their container names: read, put into another module, assigned to Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
X = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)


def _model() -> Any:
    layers = keras.layers
    keras.utils.set_random_seed(0)
    dense = [layers.Dense(8, "tanh", name=f"dense_{i}") for i in range(3)]
    norm = layers.BatchNormalization(name="norm", momentum=0.5)
    return keras.Sequential(
        [keras.Input((8,)), *dense, norm, layers.Dropout(0.5), layers.Dense(3, name="head")],
        name="net",
    )


def _moved(module: Any) -> Any:
    """The module with other weights."""
    return jax.tree_util.tree_map(lambda x: x * 1.5 + 0.1 if eqx.is_inexact_array(x) else x, module)


def _same(one: Any, two: Any) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)


def test_values_have_the_names_and_shapes_of_the_container() -> None:
    model = _model()
    module = invert.convert(model)
    wanted = {v.path: v.numpy() for v in model.variables if "seed" not in v.path}
    _same(dict(sorted(invert.values(module).items())), dict(sorted(wanted.items())))
    _same(invert.values(module.model), invert.values(module))


@pytest.mark.parametrize("layers", [(), "scan", "equinox", ("scan", "equinox")])
def test_values_survive_every_style(layers: Any) -> None:
    module = invert.convert(_model())
    emission = module.emit(layers=layers)
    net: Any = emission.model
    stacked = any(isinstance(n, tuple) for n in emission.names.values())
    assert stacked == (layers == "scan")  # activations stand between layers of Equinox
    assert ("equinox" in layers) == bool(emission.layouts)
    _same(invert.values(net), invert.values(module))
    moved = invert.values(_moved(module))
    put = invert.with_values(net, moved)
    _same(invert.values(put), moved)
    np.testing.assert_allclose(put(X), _moved(module)(X), rtol=1e-5, atol=1e-5)


def test_from_training_to_inference_and_back_to_keras() -> None:
    model = _model()
    training: Any = invert.convert(model, training=True)
    net = _moved(training.model)
    state = eqx.nn.State(net)
    _, state = net(jnp.asarray(X), state)
    trained = invert.values(net, state)
    assert not np.allclose(trained["net/norm/moving_mean"], 0)
    inference = invert.with_values(invert.convert(model), trained)
    stay = invert.assign(model, trained)
    assert stay == ()
    np.testing.assert_allclose(inference(X), model(X), rtol=1e-5, atol=1e-5)
    # The state of a raw module as well.
    raw = invert.with_values(training, trained)
    _same(invert.values(raw), invert.values(raw.model))
    np.testing.assert_array_equal(
        eqx.nn.State(raw).get(raw.params["net"]["norm"]["moving_mean"]),
        trained["net/norm/moving_mean"],
    )


def test_names_in_a_keras_file_omit_the_model(tmp_path) -> None:
    model = _model()
    model.save(tmp_path / "net.keras")
    moved = invert.values(_moved(invert.load(tmp_path / "net.keras")))
    assert "norm/gamma" in moved
    stay = invert.assign(model, moved)
    assert len(stay) == 1 and "seed" in stay[0]
    np.testing.assert_array_equal(model.get_layer("norm").gamma, moved["norm/gamma"])


def test_mismatches_are_named_and_nothing_is_changed() -> None:
    model = _model()
    module = invert.convert(model)
    values = invert.values(module)
    wrong = values | {"net/head/kernel": np.ones((8, 4)), "net/tail/kernel": np.ones(2)}
    wrong["net/norm/gamma"] = np.full(8, 7.0)
    with pytest.raises(invert.SignatureError) as error:
        invert.assign(model, wrong)
    assert "'net/head/kernel' has the shape [8, 4], expected [8, 3]" in str(error.value)
    assert "there is no variable for 'net/tail/kernel'" in str(error.value)
    np.testing.assert_array_equal(model.get_layer("norm").gamma, np.ones(8))
    few = {"net/head/bias": np.ones(3)}
    for either in (module, module.model):
        with pytest.raises(invert.SignatureError, match=r"'net/head/kernel' is missing"):
            invert.with_values(either, few)
        changed = invert.with_values(either, few, strict=False)
        np.testing.assert_array_equal(invert.values(changed)["net/head/bias"], np.ones(3))
        with pytest.raises(invert.SignatureError, match="none of the names"):
            invert.with_values(either, {"b": np.ones(3)}, strict=False)
        with pytest.raises(invert.SignatureError, match=r"has the shape \[8, 4\]"):
            invert.with_values(either, wrong)


class _Unnamed(tf.Module):
    """Variables that TensorFlow gives one name, and `a`, which the name of no attribute is."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = tf.Variable(np.eye(3, dtype=np.float32)), tf.Variable(np.ones(3, "f4"))
        self._scales = [tf.Variable(1.0), tf.Variable(5.0)]
        self.named = tf.Variable(0.5, name="a")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: Any) -> Any:
        return x @ self.w * self._scales[0] + self._scales[1] * self.b + self.named


@pytest.mark.parametrize("source", ["process", "file"])
def test_unnamed_variables_and_loaded_models(source: str, tmp_path: Path) -> None:
    original = _Unnamed()
    tf.saved_model.save(original, tmp_path)
    module: Any = invert.load(tmp_path)
    if source == "process":
        module = invert.convert(original.__call__, tf.TensorSpec([None, 3], tf.float32))
    values = {n: (i + 2) * np.asarray(x) for i, (n, x) in enumerate(invert.values(module).items())}
    x = np.arange(3, dtype=np.float32)[None]
    wanted = invert.with_values(module, values)(x)
    for target in (original, tf.saved_model.load(tmp_path)):
        assert invert.assign(target, values) == ()
        np.testing.assert_allclose(target(tf.constant(x)), wanted, rtol=1e-6)
    # The names of lists differ between the two kinds of containers.
    again = invert.with_values(invert.load(tmp_path), values)
    np.testing.assert_array_equal(again(x), wanted)


def test_no_array_goes_to_a_variable_of_another_name_or_kind() -> None:
    target = _Unnamed()
    for values, message in (
        ({"other": np.float32(3)}, "there is no variable for 'other'"),
        ({"a": np.complex64(3)}, "'a' has the dtype complex64, expected float32"),
        ({"Variable": np.float32(3)}, "there is more than one for 'Variable'"),
    ):
        with pytest.raises(invert.SignatureError, match=message):
            invert.assign(target, values)
    with pytest.raises(invert.SignatureError, match="object holds no variables"):
        invert.assign(object(), {"a": np.float32(3)})
    stay = invert.assign(target, {"a": np.float64(3)})
    assert set(stay) == {"w", "b", "scales/0", "scales/1"}
    assert target.named == 3


def test_arrays_of_other_libraries() -> None:
    module = invert.convert(_model())
    values = {name: tf.constant(value) * 2 for name, value in invert.values(module).items()}
    for either in (module, module.model):
        changed = invert.with_values(either, values)
        np.testing.assert_array_equal(
            invert.values(changed)["net/head/kernel"], values["net/head/kernel"]
        )
        changed(X)
        with pytest.raises(invert.SignatureError, match="'net/head/bias' holds no numbers"):
            invert.with_values(either, {"net/head/bias": np.array("3")}, strict=False)


def test_foreign_modules_are_refused() -> None:
    with pytest.raises(invert.SignatureError, match="are not known"):
        invert.values(eqx.nn.Linear(2, 3, key=jax.random.key(0)))
    net: Any = invert.convert(_model()).model
    other = eqx.tree_at(lambda m: m.head, net, eqx.nn.MLP(8, 3, 4, 2, key=jax.random.key(0)))
    with pytest.raises(invert.SignatureError, match="different kind"):
        invert.values(other)


def test_a_layer_of_another_width_belongs_in_the_model() -> None:
    module = invert.convert(_model())
    kernel = jnp.ones((8, 5))
    raw = eqx.tree_at(lambda m: m.params["net"]["head"]["kernel"], module, kernel)
    with pytest.raises(
        invert.SignatureError, match=r"'net/head/kernel' has the shape \[8, 5\]"
    ) as error:
        raw(X)
    assert "module.model" in str(error.value)
    net: Any = module.model
    head = (kernel, jnp.ones(5))
    wider = eqx.tree_at(lambda m: (m.head.kernel, m.head.bias), net, head)
    assert wider(X).shape == (6, 5)
    same = eqx.tree_at(lambda m: m.params["net"]["head"]["bias"], module, jnp.ones(3))
    np.testing.assert_allclose(same(X), module(X) + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (jnp.ones(3, jnp.bfloat16), "has the dtype bfloat16, expected float32"),
        (None, "is None, not an array"),
        (1.0, "is a float, not an array"),
    ],
)
def test_an_array_of_another_type_is_named(leaf: object, said: str) -> None:
    module = invert.convert(_model())
    changed = eqx.tree_at(lambda m: m.params["net"]["head"]["bias"], module, leaf)
    with pytest.raises(invert.SignatureError, match=f"'net/head/bias' {said}"):
        changed(X)


def test_a_held_array_of_another_type_is_named() -> None:
    weights = jnp.array([3.0, 1.0, 4.0])
    exported = jax.export.export(jax.jit(lambda x: x + weights))(jnp.ones(3))
    changed = eqx.tree_at(
        lambda m: m.constants, invert.from_exported(exported), (jnp.ones(4, jnp.bfloat16),)
    )
    with pytest.raises(
        invert.SignatureError, match=r"constant 0 has the shape \[4\], expected \[3\]"
    ):
        changed(jnp.ones(3))
