"""What a text costs, in calls of functions, which unlike seconds do not depend on the machine."""

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from invert.emission import classes
from invert.emission.classes import Classes
from invert.emission.equinox_nn.weights import Weights
from invert.gradients import pullbacks
from invert.ir.graph import Graph, computed_from

keras = pytest.importorskip("keras")

# Over those of the conversion: 3.2; 3.4 to 3.6, by the versions of Python and JAX, if layers that
# differ in sizes only are all written; 4.4 to 4.6 if texts of layers are walked for each question
# about them and the whole is compared under both settings of x64, 4.9 to 5.1 if each expression is
# traced under both and each pass over the sizes copies the texts of all layers, 6.3 to 6.6 if it
# also reads these again.
_MOST_CALLS = 3.45


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


@pytest.mark.parametrize(
    ("function", "count"),
    # The indices of `tril` have 64 bits under x64.
    [(lambda x: jax.nn.relu(x) * 2, 1), (jnp.tril, 1), (_odd, 2)],
)
def test_texts_are_compared_again_only_for_rules_of_their_own(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], Any], count: int
) -> None:
    compared: list[object] = []
    difference = Weights.difference

    def counted(*args: Any) -> str | None:
        compared.append(args)
        return difference(*args)

    monkeypatch.setattr(Weights, "difference", counted)
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((3, 3), jnp.float32))
    assert invert.from_exported(exported.serialize(vjp_order=1)).source
    assert len(compared) == count


def _chain(count: int, wide: int = 0) -> Any:
    """Equal layers, and some of another width at the end."""
    layers = keras.layers
    dense = [layers.Dense(8, activation="relu") for _ in range(count)]
    others = [layers.Dense(8 + i, activation="relu") for i in range(wide)]
    return keras.Sequential([keras.Input((8,)), *dense, *others])


def test_equal_layers_are_traced_once() -> None:
    cost = []
    for model in (_chain(24), _chain(12, 12)):
        invert.convert(model).emit(loader=False)
        module = invert.convert(model)
        cost.append(_calls(lambda module=module: module.emit(loader=False)))
    assert cost[0] < 0.85 * cost[1]  # 0.82; 0.88 if each layer is traced


def _written(monkeypatch: pytest.MonkeyPatch, module: Any, *, once: bool) -> tuple[str, int]:
    """The text of a module, and the number of methods that are written for it, copies left out."""
    with monkeypatch.context() as patch:
        written = []
        new = Classes._new

        def counted(self: Classes, *args: Any) -> Any:
            written.append(args)
            return new(self, *args)

        patch.setattr(Classes, "_new", counted)
        if not once:
            patch.setattr(classes, "key_of", lambda *args: None)
        return module.emit(loader=False).source, len(written)


def _same_text(monkeypatch: pytest.MonkeyPatch, model: Any, most: int) -> None:
    """Assert that the text is that of layers that are all written, of which there are `most`."""
    text, count = _written(monkeypatch, model(), once=True)
    other, every = _written(monkeypatch, model(), once=False)
    assert text == other
    assert count <= most < every


def test_layers_of_other_sizes_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, unet = _chain(12, 12), _unet()
    _same_text(monkeypatch, lambda: invert.convert(chain), 3)
    _same_text(monkeypatch, lambda: invert.convert(unet), 40)


def _scoped(*widths: int, layer: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """A module whose layers have scopes of their own and other widths."""
    keys = jax.random.split(jax.random.key(0), len(widths))
    weights = {
        f"{chr(97 + i)}_part": {"w": jax.random.normal(key, (n, m))}
        for i, (key, n, m) in enumerate(zip(keys, widths, widths[1:], strict=False))
    }

    def apply(params: Any, x: Any) -> Any:
        for name, own in params.items():
            with jax.named_scope(name):
                x = layer(x, own["w"])
        return x

    args = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), weights)
    like = jax.ShapeDtypeStruct((3, widths[0]), jnp.float32)
    exported = jax.export.export(jax.jit(apply))(args, like)
    return lambda: invert.from_exported(exported, params={"params": weights})


def _plain(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) * 3


def _mean(x: Any, w: Any) -> Any:
    """A mean only where the width is 16."""
    y = x @ w
    return y - jnp.sum(y * y, axis=-1, keepdims=True) / 16


def _root(x: Any, w: Any) -> Any:
    """Divided by the root of the width only where that is 16."""
    return x @ w / 4


def _halves(x: Any, w: Any) -> Any:
    y = x @ w
    half = y.shape[-1] // 2
    return jnp.concatenate([y[:, half:], -y[:, :half]], axis=-1)


def _columns(x: Any, w: Any) -> Any:
    y = (x @ w).reshape(x.shape[0], -1, 4)
    return jnp.sum(y, axis=2, keepdims=True).repeat(4, 2).reshape(x.shape[0], -1)


def _named(x: Any, w: Any) -> Any:
    with jax.named_scope(f"width_{w.shape[1]}"):
        y = jnp.sin(x @ w)
    return y * y + jnp.cos(y)


@pytest.mark.parametrize(
    ("layer", "fewer"),
    [(_plain, True), (_mean, False), (_root, False), (_halves, False), (_columns, False),
     (_named, False)],
)  # fmt: skip
def test_texts_do_not_depend_on_what_is_copied(
    monkeypatch: pytest.MonkeyPatch, layer: Any, fewer: bool
) -> None:
    model = _scoped(12, 16, 16, 32, 100, 16, layer=layer)
    text, count = _written(monkeypatch, model(), once=True)
    other, every = _written(monkeypatch, model(), once=False)
    assert text == other
    assert not fewer or count < every
    x = jnp.ones((3, 12)) / 7
    module = model()
    assert jnp.array_equal(eqx.filter_jit(module.model)(x), eqx.filter_jit(module)(x))


def test_forbidden_derivatives_are_not_looked_up_on_disk() -> None:
    forbidding = jax2tf.convert(lambda x: [jnp.sin(x), jnp.cos(x)], with_gradient=False)
    module = invert.convert(tf.function(forbidding, autograph=False), jnp.ones(3))
    profile = cProfile.Profile()
    assert "forbids the derivative" in profile.runcall(module.emit).source
    stats: Any = pstats.Stats(profile)
    assert "filter_traceback" not in {name for _, _, name in stats.stats}


def test_starts_of_backward_passes_are_linear_in_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that share an input are no sign of a backward pass; each walk is over all of it."""
    walks: list[int] = []

    def walked(values: Any, eqns: Any) -> Any:
        walks.append(len(eqns))
        return computed_from(values, eqns)

    monkeypatch.setattr(pullbacks, "computed_from", walked)

    def branches(x: Any, *kernels: Any) -> Any:
        return sum(jnp.tanh(x @ kernel) for kernel in kernels)

    program: Any = jax.make_jaxpr(branches)(jnp.ones((2, 4)), *[jnp.ones((4, 4))] * 9)
    assert not [*pullbacks.starts(Graph(program))]
    assert not walks
