"""Layers that are called several times: in a row, or in turns with others."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from tests.emission.models import ramp
from tests.emission.test_blocks import _classes


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x: Any, memory: Any) -> Any:
        query, key, value = (
            nn.Dense(x.shape[-1], name=name)(y)
            for name, y in (("query", x), ("key", memory), ("value", memory))
        )
        weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) / 2.0)
        return nn.Dense(x.shape[-1], name="out")(weights @ value)


class Cross(nn.Module):
    @nn.compact
    def __call__(self, x: Any, memory: Any) -> Any:
        norm = nn.LayerNorm(name="norm")(x)
        x = x + Attention(name="attention")(norm, nn.LayerNorm(name="norm_memory")(memory))
        return x + nn.Dense(x.shape[-1], name="mlp")(nn.gelu(x))


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, power: float = 1.0) -> Any:
        norm = nn.LayerNorm(name="norm")(x)
        x = x + Attention(name="attention")(norm, norm)
        return x + power * nn.Dense(x.shape[-1], name="mlp")(nn.gelu(x))


class Perceiver(nn.Module):
    """Blocks in turns; `powers` are those of each call of the second one."""

    powers: tuple[float, ...] = (1.0, 1.0, 1.0)
    first: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        latents = self.param("latents", nn.initializers.normal(1.0), (3, 6))
        y = jnp.broadcast_to(latents, (x.shape[0], *latents.shape))
        cross, layer = Cross(name="cross"), Layer(name="layer")
        if self.first:
            y = layer(Cross(name="first")(y, x))
        for power in self.powers:
            y = layer(cross(y, x), power)
        return nn.Dense(2, name="head")(y.mean(1))


class Albert(nn.Module):
    count: int = 4

    @nn.compact
    def __call__(self, x: Any) -> Any:
        layer = Layer(name="layer")
        for _ in range(self.count):
            x = layer(x)
        return nn.Dense(2, name="head")(x[:, 0])


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        rows, state = nn.Dense(6, name="rows"), nn.Dense(6, name="state")
        y = jnp.zeros((x.shape[0], 6))
        for i in range(3):
            y = jnp.tanh(rows(x[:, i]) + state(y))
        return y


class Queried(nn.Module):
    @nn.compact
    def __call__(self, x: Any, memory: Any, query: Any) -> Any:
        y = nn.MultiHeadDotProductAttention(2, name="attention")(x + query, x + query, x)
        x = nn.LayerNorm(name="norm")(x + y)
        return x + Attention(name="cross")(x + query, memory)


class Decoder(nn.Module):
    """Layers of which the first begins with zeros, as in DETR."""

    @nn.compact
    def __call__(self, memory: Any) -> Any:
        query = self.param("query", nn.initializers.normal(1.0), (3, 6))
        x = jnp.zeros((memory.shape[0], 3, 6))
        for i in range(2):
            x = Queried(name=f"layer_{i}")(x, memory, query)
        return nn.Dense(2, name="head")(x)


class Coder(nn.Module):
    """Its layers are called by methods, one of which calls the other."""

    def setup(self) -> None:
        self.up, self.down = nn.Dense(8), nn.Dense(6)
        self.head = nn.Dense(2)

    def encode(self, x: Any) -> Any:
        return self.residual(nn.gelu(self.up(x)), x)

    def residual(self, hidden: Any, x: Any) -> Any:
        return x + self.down(hidden)

    def __call__(self, x: Any) -> Any:
        return self.head(self.encode(x))


def _text(model: nn.Module) -> tuple[invert.Emission, Any, Any]:
    """The text of a model at an open batch and length, its function, and an input."""
    x = ramp(2, 5, 6)
    keys = iter(jax.random.split(jax.random.key(1), 99))
    params = jax.tree.map(
        lambda a: a + 0.1 * jax.random.normal(next(keys), a.shape), model.init(next(keys), x)
    )

    def run(x: Any) -> Any:
        return model.apply(params, x)

    shape = jax.export.symbolic_shape("batch, length, 6")
    exported = jax.export.export(jax.jit(run))(jax.ShapeDtypeStruct(shape, np.float32))
    emission = invert.from_exported(exported).emit(loader=False)
    return emission, run, x


def _compare(emission: invert.Emission, run: Any, x: Any) -> None:
    model: Any = emission.model
    for y in (x, np.concatenate([x, -x])[:, :3]):
        # XLA may fold what a program computes from its weights, where they are constants.
        np.testing.assert_allclose(model(y), jax.jit(run)(y), rtol=2e-5, atol=2e-5)
        gradients = [jax.jit(jax.grad(lambda y, f=f: jnp.sum(f(y) ** 2)))(y) for f in (model, run)]
        np.testing.assert_allclose(*gradients, rtol=1e-3, atol=1e-4)
    rows = jax.vmap(lambda row: model(row[None])[0])(x)
    np.testing.assert_allclose(rows, run(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("first", [False, True])
def test_blocks_in_turns_are_one_layer_each(first: bool) -> None:
    """The keys of the memory are computed once in the program, and in each call of the layer."""
    emission, run, x = _text(Perceiver(first=first))
    _compare(emission, run, x)
    assert not emission.messages
    classes = _classes(emission)
    fields = dict(field.split(": ") for field in classes["Perceiver"])
    assert emission.source.count("self.cross(") == 3
    assert emission.source.count("self.layer(") == 3 + first
    assert emission.source.count("softmax(") == 1
    for name in ("cross", "layer", *(["first"] if first else [])):
        assert "attention: Attention" in classes[fields[name]]


def test_latents_are_broadcast_once() -> None:
    emission, _, _ = _text(Perceiver())
    assert emission.source.count("broadcast_to(") == 1


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_layer_that_runs_in_a_row_keeps_its_layers(count: int) -> None:
    emission, run, x = _text(Albert(count))
    _compare(emission, run, x)
    assert not emission.messages
    assert "layer: Layer" in _classes(emission)["Albert"]
    assert "attention: Attention" in _classes(emission)["Layer"]
    assert "class Cell" not in emission.source
    if count > 2:
        assert f"for _ in range({count}):" in emission.source


def test_calls_that_differ_are_not_one_layer() -> None:
    """The layers inside, of which all calls are the same, still are."""
    emission, run, x = _text(Perceiver(powers=(1.0, 0.5, 1.0)))
    _compare(emission, run, x)
    assert emission.messages == ("the calls of the scope layer differ",)
    assert "0.5" in emission.source
    assert emission.source.count("self.attention(") == 3 + 1  # in `Cross`
    assert emission.source.count("self.cross(") == 3
    assert not any(f.startswith("layer: ") for f in _classes(emission)["Perceiver"])


def test_a_layer_whose_first_call_is_given_zeros() -> None:
    emission, run, x = _text(Recurrent())
    _compare(emission, run, x)


def test_a_list_whose_first_layer_begins_with_zeros() -> None:
    model, x = Decoder(), ramp(2, 5, 6)
    params = model.init(jax.random.key(1), x)
    exported = jax.export.export(jax.jit(model.apply))(params, x)
    module = invert.from_exported(exported, params={"arg0": params})
    written: Any = module.model
    assert "for layer in self.layers:" in module.source
    np.testing.assert_array_equal(written(x), jax.jit(model.apply)(params, x))


def test_methods_of_a_module_are_part_of_it() -> None:
    emission, run, x = _text(Coder())
    _compare(emission, run, x)
    fields = ["up: Linear", "down: Linear", "head: Linear"]
    assert _classes(emission)["Coder"] == fields
    params = Coder().init(jax.random.key(0), x)
    encode = jax.jit(lambda x: Coder().apply(params, x, method="encode"))
    emission = invert.from_exported(jax.export.export(encode)(x)).emit(loader=False)
    assert _classes(emission)["Coder"] == fields[:2]
