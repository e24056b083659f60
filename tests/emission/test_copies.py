"""Parts of a program that are computed several times with the same parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.emission.models import ramp, recovered, with_params
from tests.emission.test_blocks import _arrays, _classes, _emitted


def _tower(x: Any, w: Any, b: Any, v: Any) -> Any:
    x = jax.nn.relu(x @ w + b) @ v
    return x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-3)


_SHAPES = (6, 8), (8,), (8, 5), (8,)


def test_a_tower_is_a_layer_with_two_calls() -> None:
    def run(w: Any, b: Any, v: Any, c: Any, x: Any) -> Any:
        del c
        one, other = _tower(x[:, 0], w, b, v), _tower(x[:, 1], w, b, v)
        return jnp.abs(one - other), one

    w, b, v, c, x = _arrays(*_SHAPES, (3, 2, 6))
    emission = _emitted(lambda *args: run(*args)[0], [w, b, v, c], x)
    assert _classes(emission)["Tower"] == ["linear_1: Linear", "linear_2: Linear"]
    assert emission.source.count("self.tower(") == 2
    assert emission.source.count("jnp.sqrt(") == 1


@pytest.mark.parametrize("kind", ["bias", "end", "chain"])
def test_only_copies_are_shared(kind: str) -> None:
    def run(w: Any, b: Any, v: Any, c: Any, x: Any) -> Any:
        one, other = x[:, 0], x[:, 1]
        if kind == "bias":  # another one in the second tower
            return _tower(one, w, b, v) - _tower(other, w, c, v)
        if kind == "end":
            return _tower(one, w, b, v) + jnp.sin(jax.nn.relu(other @ w + b) @ v)
        return _tower(one + _tower(other, w, b, v) @ v.T @ w.T, w, b, v) * c[:5]

    *arrays, x = _arrays(*_SHAPES, (3, 2, 6))
    source = _emitted(run, arrays, x).source
    assert source.count("relu(") == (1 if kind == "end" else 2)
    assert source.count("jnp.sqrt(") == (2 if kind == "chain" else 1)


def test_names_of_parameters_name_the_layer() -> None:
    def run(params: Any, x: Any) -> Any:
        found = [
            jnp.tanh(part @ params["encoder"]["dense"]["w"] + params["encoder"]["dense"]["b"])
            @ params["encoder"]["out"]["w"]
            for part in (x[:, 0], x[:, 1], x[:, 2])
        ]
        distances = [jnp.sum((found[0] - f) ** 2, -1) for f in found[1:]]
        return jnp.maximum(distances[0] - distances[1] + params["margin"], 0.0)

    w, b, v, margin = _arrays((4, 7), (7,), (7, 3), ())
    params = {"encoder": {"dense": {"w": w, "b": b}, "out": {"w": v}}, "margin": margin}
    x = ramp(2, 3, 4)
    emission = recovered(with_params(run, params, x, batch="b"), x).emit()
    assert not emission.messages
    assert emission.source.count("self.encoder(") == 3
    assert [f for f in _classes(emission)["Model"] if "ncoder" in f] == ["encoder: Encoder"]
    model: Any = emission.model
    for batch in (x, np.concatenate([x, x - 1])):
        np.testing.assert_array_equal(model(batch), jax.jit(run)(params, batch))


def _attention(p: Any, x: Any, memory: Any) -> Any:
    query, key, value = x @ p["query"]["w"], memory @ p["key"]["w"], memory @ p["value"]["w"]
    return jax.nn.softmax(query @ key.swapaxes(-1, -2)) @ value @ p["out"]["w"]


def test_lists_of_decoders_read_the_result_of_the_encoders() -> None:
    """What only makes keys and values is the memory, also in the layer around an attention."""

    def run(params: Any, x: Any, y: Any) -> Any:
        for i in range(2):
            p = params[f"encoder_{i}"]
            x = x + _attention(p["attention"], jnp.tanh(x), jnp.tanh(x))
            x = x + jnp.tanh(x) @ p["mlp"]["w"]
        for i in range(2):
            p = params[f"decoder_{i}"]
            y = y + _attention(p["cross"], jnp.tanh(y), x)
            y = y + jnp.tanh(y) @ p["mlp"]["w"]
        return y @ params["head"]["w"]

    names = ("query", "key", "value", "out")
    weights = iter(_arrays(*[(6, 6)] * 40))
    params: dict[str, Any] = {"head": {"w": next(weights)}}
    for kind, inner in (("encoder", "attention"), ("decoder", "cross")):
        for i in range(2):
            attention = {n: {"w": next(weights)} for n in names}
            params[f"{kind}_{i}"] = {inner: attention, "mlp": {"w": next(weights)}}
    x, y = ramp(2, 5, 6), ramp(2, 4, 6)
    emission = recovered(with_params(run, params, x, y), x, y).emit()
    assert not emission.messages
    assert "encoders: tuple[Encoder, ...]" in emission.source
    assert "decoders: tuple[Decoder, ...]" in emission.source
    assert emission.source.count(", memory: Float[") == 2
    model: Any = emission.model
    np.testing.assert_array_equal(model(x, y), jax.jit(run)(params, x, y))
