"""What a text costs, in calls of functions, which unlike seconds do not depend on the machine."""

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

import invert
from invert.emission.equinox_nn.weights import Weights

keras = pytest.importorskip("keras")

# Over those of the conversion, by the versions of Python and JAX: 3.4 to 3.6; 4.4 to 4.6 if texts
# of layers are walked for each question about them and the whole is compared under both settings of
# x64, 4.9 to 5.1 if each expression is traced under both and each pass over the sizes copies the
# texts of all layers, 6.3 to 6.6 if it also reads these again.
_MOST_CALLS = 3.65


def _calls(run: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(run)
    stats: Any = pstats.Stats(profile)
    return stats.total_calls


def _unet() -> Any:
    layers = keras.layers

    def twice(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    x = image = keras.Input((32, 32, 3))
    left = []
    for width in (8, 16, 32):
        left.append(x := twice(x, width))
        x = layers.MaxPooling2D()(x)
    x = twice(x, 64)
    for width in (32, 16, 8):
        x = layers.Concatenate()([layers.Conv2DTranspose(width, 2, 2)(x), left.pop()])
        x = twice(x, width)
    return keras.Model(image, layers.Conv2D(1, 1)(x))


def test_a_text_reads_its_layers_once() -> None:
    model = _unet()
    invert.convert(model).emit(loader=False)  # what is traced once in a process
    converted = _calls(lambda: invert.convert(model))
    module = invert.convert(model)
    assert _calls(lambda: module.emit(loader=False)) / converted < _MOST_CALLS


@jax.custom_jvp
def _odd(x: Any) -> Any:
    return jnp.sin(x) * x


@_odd.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _odd(*primals), tangents[0] * jnp.cos(primals[0]) * 3


@pytest.mark.parametrize(("function", "count"), [(lambda x: jax.nn.relu(x) * 2, 1), (_odd, 2)])
def test_texts_are_compared_again_only_for_rules_of_their_own(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], Any], count: int
) -> None:
    compared: list[object] = []
    difference = Weights.difference

    def counted(*args: Any) -> str | None:
        compared.append(args)
        return difference(*args)

    monkeypatch.setattr(Weights, "difference", counted)
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((3,), jnp.float32))
    assert invert.from_exported(exported.serialize(vjp_order=1)).source
    assert len(compared) == count


def _chain(count: int, wide: int = 0) -> Any:
    """Equal layers, and some of another width at the end."""
    layers = keras.layers
    dense = [layers.Dense(8, activation="relu") for _ in range(count)]
    others = [layers.Dense(8 + i, activation="relu") for i in range(wide)]
    return keras.Sequential([keras.Input((8,)), *dense, *others])


def test_equal_layers_are_written_and_traced_once() -> None:
    cost = []
    for model in (_chain(24), _chain(12, 12)):
        invert.convert(model).emit(loader=False)
        module = invert.convert(model)
        cost.append(_calls(lambda module=module: module.emit(loader=False)))
    assert cost[0] < 0.76 * cost[1]  # 0.72; 0.80 if each layer is written and traced
