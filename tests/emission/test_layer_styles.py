"""Styles of layers: stacks under `lax.scan`, layers of `equinox.nn`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert.emission.equinox_nn.layout import Comparison, flat
from tests.emission.models import ramp, recovered, with_params
from tests.emission.test_modules import in_another_process, lint


class Dense(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.width))
        return x @ kernel + self.param("bias", nn.initializers.normal(), (self.width,))


class Block(nn.Module):
    """A residual layer that takes what all others take too, and gives what it found."""

    gives: bool = False

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        found = jnp.where(mask, Dense(x.shape[-1], name="up")(x), 0.0)
        x = x + Dense(x.shape[-1], name="down")(jnp.tanh(found))
        return (x, jnp.sum(found, axis=-1)) if self.gives else x


class Long(nn.Module):
    """A residual layer of some hundred equations."""

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        y = Dense(x.shape[-1], name="up")(x)
        for _ in range(80):
            y = jnp.where(mask, jnp.sin(y), jnp.tanh(y))
        return x + y


class LongStack(nn.Module):
    depth: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = x[:, :1] > 0
        for i in range(self.depth):
            x = Long(name=f"block_{i}")(x, mask)
        return x


class Stack(nn.Module):
    depth: int = 3
    gives: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = x[:, :1] > 0
        x = Dense(4, name="embed")(x)
        outs = []
        for i in range(self.depth):
            x = Block(self.gives, name=f"block_{i}")(x, mask)
            if self.gives:
                x, found = x
                outs.append(found)
        x = Dense(2, name="head")(x)
        return (x, *outs) if self.gives else x


class TwoStacks(nn.Module):
    """Two runs of layers of other sizes, one of which gives what is between its layers."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = x[:, :1] > 0
        y = Dense(4, name="up")(x)
        hidden = []
        for i in range(3):
            x = Block(name=f"encoder_{i}")(x, mask)
            hidden.append(x)
        for i in range(2):
            y = Block(name=f"decoder_{i}")(y, mask)
        return y, hidden[0], hidden[1], hidden[2]


class Stage(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = x[:, :1] > 0
        for i in range(2):
            x = Block(name=f"block_{i}")(x, mask)
        return Dense(x.shape[-1], name="last")(x)


class Stages(nn.Module):
    """Runs of layers inside of the layers of a run."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for i in range(3):
            x = Stage(name=f"stage_{i}")(x)
        return x


class Unlike(nn.Module):
    """Layers of one name, of which none computes what the one before does."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for i, width in enumerate((4, 3, 4)):
            x = jnp.sin(x) if i % 2 else x
            x = Dense(width, name=f"dense_{i}")(x)
        return x


def module_of(model: nn.Module, x: np.ndarray, batch: str | None = None) -> invert.Module:
    params = model.init(jax.random.key(0), x)
    entry = with_params(model.apply, params, x, batch=batch, name="stack", arg_names=("x",))
    return recovered(entry)


def slope(module: Any, x: Any) -> Any:
    return eqx.filter_grad(lambda m: sum(jnp.sum(jnp.sin(3 * y)) for y in jax.tree.leaves(m(x))))(
        module
    )


def agree(found: Any, wanted: Any) -> None:
    """Equal but for the order in which XLA adds, which may be another inside of a loop."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


CASES = {
    "a mask for all": (Stack(), ["blocks"]),
    "outputs of each layer": (Stack(gives=True), ["blocks"]),
    "two runs": (TwoStacks(), ["encoders", "decoders"]),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if c == "two runs" else pytest.mark.slow) for c in CASES],
)
def test_layers_become_a_stack_that_computes_the_same(case: str, tmp_path: Path) -> None:
    model, fields = CASES[case]
    module = module_of(model, ramp(2, 3), batch="batch")
    emission: Any = module.emit(layers="scan")
    assert emission.source.count("lax.scan") == len(fields)
    assert all(hasattr(emission.model, f) for f in fields)
    assert sum("unrolled, it is the recovered program" in m for m in emission.messages) == len(
        fields
    )
    invert.save(module, tmp_path, layers="scan")
    loaded: Any = invert.load(tmp_path)
    for x in (ramp(2, 3), np.cos(ramp(5, 3) * 40), np.full((1, 3), np.nan, np.float32)):
        agree(emission.model(x), module(x))
        assert eqx.tree_equal(loaded(x), emission.model(x)) or np.isnan(x).any()
    assert (tmp_path / "model.py").read_text() == emission.source


@pytest.mark.slow
def test_gradients_of_a_stack_equal_its_layers() -> None:
    module = module_of(Stack(), ramp(2, 3))
    x = np.cos(ramp(2, 3) * 40)
    scanned, plain = slope(module.emit(layers="scan").model, x), slope(module.model, x)
    for i in range(3):
        one = jax.tree.map(lambda v, i=i: v[i], scanned.blocks)
        agree(one, plain.blocks[i])
    agree((scanned.embed, scanned.head), (plain.embed, plain.head))


def test_only_long_runs_are_stacked_where_that_is_left_to_the_text() -> None:
    x = ramp(2, 3)
    short, long = (module_of(LongStack(depth), x) for depth in (2, 5))
    few = short.emit(layers="auto")
    assert few.source == short.emit().source
    assert any("no layers are stacked: no run of equal layers has" in m for m in few.messages)
    many: Any = long.emit(layers="auto")
    assert many.source == long.emit(layers="scan").source
    assert "lax.scan" in many.source
    agree(many.model(x), long(x))


def test_nested_runs_are_stacked_twice() -> None:
    module = module_of(Stages(), ramp(2, 3))
    emission: Any = module.emit(layers="scan")
    assert emission.model.stages.blocks.up.kernel.shape == (3, 2, 3, 3)
    last = module.params["params"]["stage_2"]["block_1"]["up"]["kernel"]
    assert np.array_equal(emission.model.stages.blocks.up.kernel[2, 1], last)
    x = np.cos(ramp(2, 3) * 40)
    agree(emission.model(x), module(x))


def test_different_layers_are_not_stacked() -> None:
    module = module_of(Unlike(), ramp(2, 4))
    emission: Any = module.emit(layers="scan")
    assert "scan" not in emission.source
    assert any("no layers are stacked" in m for m in emission.messages)
    assert np.array_equal(emission.model(ramp(2, 4)), module(ramp(2, 4)))


def test_frozen_and_trained_layers_are_not_stacked_together() -> None:
    model = Stack(depth=4)
    params = model.init(jax.random.key(0), ramp(2, 3))
    entry = with_params(model.apply, params, ramp(2, 3), name="stack", arg_names=("x",))
    fixed = tuple(dataclasses.replace(p, trainable="block_0" not in p.name) for p in entry.params)
    emission: Any = recovered(dataclasses.replace(entry, params=fixed)).emit(layers="scan")
    assert emission.model.blocks.up.kernel.shape == (3, 4, 4)
    assert emission.model.block_0.up.kernel.shape == (4, 4)


def test_changed_weights_of_the_module_reach_the_stack() -> None:
    module = module_of(Stack(), ramp(2, 3))
    module = eqx.tree_at(
        lambda m: m.params["params"]["block_1"]["up"]["bias"], module, jnp.full(4, 7.0)
    )
    model: Any = module.emit(layers="scan").model
    assert np.array_equal(model.blocks.up.bias[1], np.full(4, 7.0))
    agree(model(ramp(2, 3)), module(ramp(2, 3)))


def test_an_unknown_style_of_layers_is_refused(tmp_path: Path) -> None:
    module = module_of(Stack(), ramp(2, 3))
    with pytest.raises(ValueError, match="layers='loop' is not a style"):
        module.emit(layers="loop")
    with pytest.raises(ValueError, match="is already written"):
        invert.save(module.model, tmp_path, layers="scan")


# Layers of Equinox in other hands: parameters in a dictionary, applied under the name of a layer.
NATIVE = {
    "Linear": (eqx.nn.Linear(3, 5, key=jax.random.key(1)), (2, 4, 3), 2),
    "Linear without a bias": (
        eqx.nn.Linear(3, 5, use_bias=False, key=jax.random.key(1)), (2, 3), 1),
    "LayerNorm": (eqx.nn.LayerNorm(6), (2, 5, 6), 2),
    "LayerNorm of two axes": (eqx.nn.LayerNorm((5, 6), eps=1e-3), (2, 5, 6), 1),
    "LayerNorm without a bias": (eqx.nn.LayerNorm(6, use_bias=False), (2, 6), 1),
    "RMSNorm": (eqx.nn.RMSNorm(6, use_bias=False), (2, 5, 6), 2),
    "GroupNorm": (eqx.nn.GroupNorm(2, 6), (2, 6, 3, 4), 1),
    "Conv1d": (eqx.nn.Conv1d(3, 4, 3, stride=2, key=jax.random.key(1)), (2, 3, 9), 1),
    "Conv2d": (eqx.nn.Conv2d(3, 4, (3, 2), padding=((1, 0), (0, 1)), key=jax.random.key(1)),
               (2, 3, 9, 8), 1),
    "Conv3d": (eqx.nn.Conv3d(2, 3, 2, dilation=2, key=jax.random.key(1)), (2, 2, 4, 5, 6), 1),
    "ConvTranspose2d": (
        eqx.nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1,
                               key=jax.random.key(1)), (2, 3, 4, 5), 1),
    "Embedding": (eqx.nn.Embedding(7, 4, key=jax.random.key(1)), (2, 3), 2),
}  # fmt: skip


QUICK = {"Linear", "LayerNorm", "Embedding"}


def native_case(name: str) -> tuple[Any, dict[str, Any], np.ndarray]:
    layer, shape, maps = NATIVE[name]
    arrays = [f for f in ("weight", "bias") if getattr(layer, f, None) is not None]
    # Norms begin with ones and zeros, which a trained model does not have.
    values = {
        f: getattr(layer, f)
        + 0.1 * jnp.cos(jnp.arange(getattr(layer, f).size)).reshape(getattr(layer, f).shape)
        for f in arrays
    }
    x = np.cos(ramp(*shape) * 40)
    if name == "Embedding":
        x = (np.arange(x.size) % 7).astype(np.int32).reshape(x.shape)

    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("net"):
            with jax.named_scope("inner"):
                own = [params["inner"][f] for f in arrays]
                function = eqx.tree_at(lambda m: [getattr(m, f) for f in arrays], layer, own)
                for _ in range(maps):
                    function = jax.vmap(function)
                y = function(x)
            return jnp.sin(y) * params["gain"]

    return apply, {"gain": jnp.float32(1.5), "inner": values}, x


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NATIVE],
)
def test_layers_of_equinox_are_recovered(name: str) -> None:
    apply, params, x = native_case(name)
    module = recovered(with_params(apply, params, x, name="native", arg_names=("x",)))
    emission: Any = module.emit(layers="equinox")
    kind = name.split()[0]
    assert f"inner: eqx.nn.{kind}" in emission.source, emission.messages
    assert isinstance(emission.model.inner, getattr(eqx.nn, kind))
    agree(emission.model(x), module(x))
    grads, wanted = slope(emission.model, x), jax.grad(
        lambda p: jnp.sum(jnp.sin(3 * apply(p, x)))
    )(params)["inner"]  # fmt: skip
    for field, value in wanted.items():
        agree(getattr(grads.inner, field), value)


class Text(nn.Module):
    """Looked up rows, heads of more than one axis, an activation and a norm that Flax writes."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Embed(7, 8, name="table")(x)
        x = x + nn.SelfAttention(2, name="attention")(x)
        x = nn.LayerNorm(name="norm")(jnp.tanh(nn.Dense(8, name="up")(x)))
        return nn.Dense(3, name="head")(jnp.mean(x, axis=1))


@pytest.mark.slow
def test_layers_of_flax_become_layers_of_equinox(tmp_path: Path) -> None:
    x = (np.arange(10) % 7).astype(np.int32).reshape(2, 5)
    module = module_of(Text(), x, batch="batch")
    emission: Any = module.emit(layers="equinox")
    model = emission.model
    assert all(isinstance(model.attention.__dict__[n], eqx.nn.Linear) for n in ("query", "out"))
    assert isinstance(model.up, eqx.nn.Linear) and isinstance(model.head, eqx.nn.Linear)
    # The sum is `x`, as in the original.
    assert "x = jax.vmap(jax.vmap(self.up))(x + self.attention(x))" in emission.source
    assert "self.norm(jnp.tanh(x))" in emission.source
    # Flax multiplies by the scale first, and takes the variance as a difference.
    assert not isinstance(model.norm, eqx.nn.LayerNorm)
    assert any(
        "Text/norm" in m and "eqx.nn.LayerNorm would be a different program" in m
        for m in emission.messages
    )
    invert.save(module, tmp_path, layers="equinox")
    loaded: Any = invert.load(tmp_path)
    for ids in (x, np.array([[6, 0, 3, -1, 2]], np.int32)):
        agree(model(ids), module(ids))
        assert eqx.tree_equal(loaded(ids), model(ids))
    wanted = module.params["params"]["attention"]["query"]["kernel"].reshape(8, 8).T
    assert np.array_equal(loaded.attention.query.weight, wanted)


class Image(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Conv(4, (3, 3), strides=2, name="first")(x))
        x = nn.Conv(4, (2, 2), feature_group_count=4, use_bias=False, name="depthwise")(x)
        x = nn.ConvTranspose(3, (3, 3), strides=(2, 2), name="wider")(x)
        return nn.Dense(2, name="head")(x.reshape(x.shape[0], -1))


@pytest.mark.slow
def test_convolutions_of_other_layouts_become_layers_of_equinox() -> None:
    x = ramp(2, 8, 8, 3)
    module = module_of(Image(), x, batch="batch")
    emission: Any = module.emit(layers="equinox")
    kinds = {n: type(getattr(emission.model, n)).__name__ for n in ("first", "depthwise", "wider")}
    assert kinds == {"first": "Conv2d", "depthwise": "Conv2d", "wider": "ConvTranspose2d"}
    for value in (x, np.cos(ramp(3, 8, 8, 3) * 40)):
        agree(emission.model(value), module(value))
    grads, plain = slope(emission.model, x), slope(module.model, x)
    agree(grads.first.weight, plain.first.kernel.transpose(3, 2, 0, 1))
    agree(grads.first.bias[:, 0, 0], plain.first.bias)


def test_a_stack_of_layers_of_equinox_runs_alone(tmp_path: Path) -> None:
    module = module_of(Stack(), ramp(2, 3), batch="batch")
    emission: Any = module.emit(layers=("scan", "equinox"))
    assert "eqx.filter_vmap(lambda key: Block(key=key))(jax.random.split(keys[1], 3))" in (
        emission.source
    )
    assert emission.model.blocks.up.weight.shape == (3, 4, 4)
    second = module.params["params"]["block_1"]["up"]["kernel"]
    assert np.array_equal(emission.model.blocks.up.weight[1], second.T)
    invert.save(module, tmp_path, layers=("scan", "equinox"))
    inputs = {"small": ramp(2, 3), "large": np.cos(ramp(5, 3) * 40)}
    found = in_another_process(tmp_path, inputs)
    for name, x in inputs.items():
        assert np.array_equal(found[f"{name}_out"], emission.model(x))
        agree(found[f"{name}_out"], module(x))


def test_the_readme_lists_stacked_and_replaced_layers(tmp_path: Path) -> None:
    module = module_of(Stack(), ramp(2, 3))
    invert.save(module, tmp_path, layers=("scan", "equinox"))
    page = (tmp_path / "README.md").read_text()
    assert "3 layers from block_0 to block_2 are one stack" in page
    assert "8 layers are eqx.nn.Linear" in page
    # Long notes are wrapped, not cut.
    assert "with weights in another layout" in " ".join(page.split())
    assert "`params/block_0/up/kernel` to `params/block_2/up/kernel`, 3 in all" in page


def test_layers_with_other_arithmetic_are_not_replaced() -> None:
    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("net"):
            with jax.named_scope("exact"):
                kernel, bias = params["exact"]["kernel"], params["exact"]["bias"]
                x = jnp.matmul(x, kernel, precision="highest") + bias
            with jax.named_scope("twice"):
                x = x @ params["twice"]["kernel"] + 2 * params["twice"]["bias"]
            with jax.named_scope("swapped"):
                x = params["swapped"]["bias"] - x @ params["swapped"]["kernel"]
            return x * params["gain"]

    names = ("exact", "twice", "swapped")
    params: Any = {n: {"kernel": ramp(4, 4), "bias": ramp(4)} for n in names}
    params["gain"] = np.float32(2)
    x = ramp(2, 4)
    module = recovered(with_params(apply, params, x, name="net", arg_names=("x",)))
    emission: Any = module.emit(layers="equinox")
    assert "eqx.nn" not in emission.source
    assert any("dot_general with a different precision" in m for m in emission.messages)
    assert np.array_equal(emission.model(x), module(x))


W, X = jax.ShapeDtypeStruct((4, 6), jnp.float32), jax.ShapeDtypeStruct((5, 4), jnp.float32)
SAME = {
    "a transposed product": (lambda x, w: x @ w, lambda x, w: (w.T @ x.T).T),
    "another order of factors": (lambda x, w: 2 * jnp.sin(x), lambda x, w: jnp.sin(x) * 2),
    "a sum over a merged axis": (
        lambda x, w: x @ w,
        lambda x, w: jnp.einsum("bij,ijo->bo", x.reshape(5, 2, 2), w.reshape(2, 2, 6)),
    ),
    "a mean of other axes": (
        lambda x, w: x - jnp.mean(x, axis=1, keepdims=True),
        lambda x, w: (x.T - jnp.mean(x.T, axis=0)).T,
    ),
    "rows at indices": (
        lambda x, w: jnp.take(x, jnp.array([1, 0]), axis=0),
        lambda x, w: jax.vmap(lambda i: jnp.take(x, i, axis=0))(jnp.array([1, 0])),
    ),
    "rows at single indices": (
        lambda x, w: x[jnp.int32(w[:3])],
        lambda x, w: jax.vmap(jax.vmap(lambda i: x[i]))(jnp.int32(w[:3])),
    ),
}
OTHER = {
    "a difference the other way": (lambda x, w: x - 2, lambda x, w: 2 - x),
    "a mean over another axis": (lambda x, w: (w @ w.T).mean(0), lambda x, w: (w @ w.T).mean(1)),
    "another element": (lambda x, w: jnp.sort(w @ w.T), lambda x, w: jnp.sort(w @ w.T).T),
    "another number": (lambda x, w: x + 1e-5, lambda x, w: x + 1e-6),
    "a product with itself": (lambda x, w: x * x, lambda x, w: x + x),
    "axes that a reshape mixes": (lambda x, w: w, lambda x, w: w.T.reshape(4, 6)),
    "a product of the other side": (lambda x, w: w @ w.T, lambda x, w: (w @ w.T[::-1])),
}  # fmt: skip


def compared(first: Any, second: Any) -> str | None:
    a, b = (flat(jax.make_jaxpr(f)(X, W)) for f in (first, second))
    pairs = dict(zip(a.jaxpr.invars, b.jaxpr.invars, strict=True))
    return Comparison(a, b, pairs).difference()


@pytest.mark.parametrize("case", SAME)
def test_equal_arithmetic_in_another_layout_is_recognized(case: str) -> None:
    assert compared(*SAME[case]) is None
    x, w = jnp.cos(ramp(5, 4) * 40), jnp.asarray(ramp(4, 6))
    agree(SAME[case][0](x, w), SAME[case][1](x, w))


@pytest.mark.parametrize("case", OTHER)
def test_other_arithmetic_is_refused(case: str) -> None:
    assert compared(*OTHER[case]) is not None


def test_the_layout_of_a_weight_is_inferred() -> None:
    a, b = (
        flat(jax.make_jaxpr(f)(x, w))
        for f, x, w in (
            (
                lambda x, w: jax.vmap(lambda v: w @ v)(x),
                X,
                jax.ShapeDtypeStruct((6, 4), jnp.float32),
            ),
            (lambda x, w: x @ w, X, W),
        )
    )
    pairs = dict(zip(a.jaxpr.invars, b.jaxpr.invars, strict=True))
    comparison = Comparison(a, b, pairs, unknown=a.jaxpr.invars[1:])
    assert comparison.difference() is None
    assert comparison.layouts[a.jaxpr.invars[1]] == ((1, 0), (6, 4))


@pytest.mark.slow
def test_linters_accept_other_styles(tmp_path: Path) -> None:
    for i, model in enumerate((Stack(gives=True), TwoStacks())):
        for k, layers in enumerate(("scan", "equinox", ("scan", "equinox"))):
            source = module_of(model, ramp(2, 3), batch="batch").emit(layers=layers).source
            (tmp_path / f"model_{i}_{k}.py").write_text(source)
    lint(tmp_path)


@pytest.mark.slow
def test_a_stack_of_48_layers_is_compiled_once() -> None:
    x = ramp(2, 3)
    module = module_of(Stack(depth=48), x)
    scanned: Any = module.emit(layers="scan").model
    plain = module.model
    assert scanned.blocks.up.kernel.shape == (48, 4, 4)
    agree(scanned(x), module(x))
    costs = []
    for model in (plain, scanned):
        lowered = jax.jit(lambda m, x: m(x)).lower(model, x)
        costs.append(lowered.as_text().count("stablehlo."))
    # The text of one layer instead of those of 48.
    assert costs[0] > 10 * costs[1]
    one = jax.tree.map(lambda v: v[47], slope(scanned, x).blocks)
    agree(one, slope(plain, x).blocks[47])


@pytest.mark.slow
def test_layers_of_keras_become_layers_of_equinox() -> None:
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    keras.utils.set_random_seed(0)
    layers = keras.layers
    keras_model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", activation="relu", name="first"),
            layers.DepthwiseConv2D(2, padding="same", name="depthwise"),
            layers.Flatten(),
            layers.Dense(5, activation="tanh", name="head"),
        ]
    )
    spec = tf.TensorSpec((None, 8, 8, 3), tf.float32)
    module = invert.convert(tf.function(keras_model, input_signature=[spec]))
    emission: Any = module.emit(layers="equinox")
    assert emission.source.count(": eqx.nn.Conv2d\n") == 2
    assert emission.source.count(": eqx.nn.Linear\n") == 1
    for x in (ramp(2, 8, 8, 3), np.cos(ramp(3, 8, 8, 3) * 40)):
        agree(emission.model(x), module(x))
        agree(emission.model(x), keras_model(x).numpy())
