"""Models called before a loop and in its body, as samplers of language models do, or repeatedly."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from tests.emission.test_modules import in_another_process
from tests.emission.test_scans import linear, weights

Params = Any
_VOCAB, _DIM, _HEADS, _LONGEST, _GIVEN = 17, 8, 2, 7, 3


def _norm(p: Params, x: Any) -> Any:
    y = x - jnp.mean(x, -1, keepdims=True)
    return y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def _attention(p: Params, x: Any, cache: Any = None, at: Any = 0) -> tuple[Any, Any]:
    batch, length, dim = x.shape
    split = (batch, length, _HEADS, dim // _HEADS)
    query, key, value = (linear(x, p[n]).reshape(split) for n in ("query", "key", "value"))
    if cache is not None:
        key, value = cache = [
            lax.dynamic_update_slice(old, new, (0, at, 0, 0))
            for old, new in zip(cache, (key, value), strict=True)
        ]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(dim // _HEADS)
    seen = jnp.arange(key.shape[1])[None] <= (at + jnp.arange(length))[:, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
    return linear(mixed, p["out"]), cache


def _block(p: Params, x: Any, cache: Any = None, at: Any = 0) -> tuple[Any, Any]:
    y, cache = _attention(p["attn"], _norm(p["norm1"], x), cache, at)
    x = x + y
    y = jax.nn.gelu(linear(_norm(p["norm2"], x), p["up"]))
    return x + linear(y, p["down"]), cache


def _gpt(p: Params, ids: Any, caches: Any, at: Any) -> tuple[Any, Any]:
    x = p["tokens"][ids] + lax.dynamic_slice_in_dim(p["places"], at, ids.shape[1], 0)
    new = []
    for own, cache in zip(p["blocks"], caches, strict=True):
        x, cache = _block(own, x, cache, at)
        new.append(cache)
    return _norm(p["norm"], x) @ p["head"], new


def _params(depth: int) -> Params:
    new = weights(4)

    def one(n: int, m: int) -> Params:
        return {"kernel": new(n, m), "bias": new(m)}

    def norm() -> Params:
        return {"scale": 1 + new(_DIM), "bias": new(_DIM)}

    def block() -> Params:
        heads = {name: one(_DIM, _DIM) for name in ("query", "key", "value", "out")}
        up, down = one(_DIM, 12), one(12, _DIM)
        return {"attn": heads, "norm1": norm(), "norm2": norm(), "up": up, "down": down}

    return {
        "tokens": new(_VOCAB, _DIM), "places": new(_LONGEST, _DIM), "norm": norm(),
        "head": new(_DIM, _VOCAB), "blocks": [block() for _ in range(depth)],
    }  # fmt: skip


def _caches(batch: int, depth: int) -> Any:
    return [(jnp.zeros((batch, _LONGEST, _HEADS, _DIM // _HEADS)),) * 2 for _ in range(depth)]


def _sampled(model: Callable[..., Any], ids: Any, depth: int) -> Any:
    """The tokens that a model continues given ones with, until all sequences have ended."""
    logits, caches = model(ids, _caches(len(ids), depth), 0)
    token = jnp.argmax(logits[:, -1], -1).astype(jnp.int32)
    tokens = jnp.zeros((len(ids), _LONGEST), jnp.int32).at[:, :_GIVEN].set(ids)

    def step(state: Any) -> Any:
        tokens, token, at, caches = state
        tokens = lax.dynamic_update_slice(tokens, token[:, None], (0, at))
        logits, caches = model(token[:, None], caches, at)
        return tokens, jnp.argmax(logits[:, -1], -1).astype(jnp.int32), at + 1, caches

    def goes_on(state: Any) -> Any:
        return (state[2] < _LONGEST) & ~jnp.all(state[1] == 2)

    return lax.while_loop(goes_on, step, (tokens, token, _GIVEN, caches))[0]


def _scored(model: Callable[..., Any], ids: Any, depth: int) -> Any:
    """The scores of all tokens that a model continues given ones with."""
    logits, caches = model(ids, _caches(len(ids), depth), 0)

    def step(state: Any, _: Any) -> Any:
        token, at, caches = state
        logits, caches = model(token[:, None], caches, at)
        last = logits[:, -1]
        return (jnp.argmax(last, -1).astype(jnp.int32), at + 1, caches), last

    first = jnp.argmax(logits[:, -1], -1).astype(jnp.int32)
    return lax.scan(step, (first, _GIVEN, caches), None, length=_LONGEST - _GIVEN)[1]


def _emitted(run: Callable[..., Any], params: Params, *args: Any) -> invert.Module:
    exported = jax.export.export(jax.jit(run))(params, *args)
    return invert.from_exported(exported, params={"arg0": params})


def _ids(batch: int = 2) -> np.ndarray:
    random = np.random.default_rng(1)
    return random.integers(3, _VOCAB, (batch, _GIVEN)).astype(np.int32)


def _calls(source: str) -> list[str]:
    """The calls of modules in the body of the loop of the outermost class."""
    _, _, body = source.rpartition("def step(")
    return re.findall(r"self\.[\w.\[\]]+(?=\()", body)


@pytest.mark.parametrize("sampled", [_sampled, _scored])
def test_the_body_of_a_loop_calls_the_blocks_of_the_model(
    sampled: Callable[..., Any], tmp_path: Path
) -> None:
    depth, params, ids = 3, _params(3), _ids()

    def run(p: Params, ids: Any) -> Any:
        return sampled(lambda *args: _gpt(p, *args), ids, depth)

    module = _emitted(run, params, ids)
    source = module.source
    assert not module.emit().messages
    assert _calls(source) == [*(f"self.blocks[{i}].step" for i in range(depth)), "self.norm"]
    # Each layer has one method, but those with a cache.
    assert source.count("    def step(self") + source.count("    def step(\n        self") == 2
    want = np.asarray(jax.jit(run)(params, ids))
    invert.save(module, tmp_path)
    found = in_another_process(tmp_path, {"ids": ids})
    np.testing.assert_array_equal(found["ids_out"], want)
    both = jax.vmap(module.model)(jnp.stack([ids, ids[::-1]]))
    np.testing.assert_allclose(both[0], want, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_model_in_a_loop_are_those_of_the_program() -> None:
    params, ids = _params(2), _ids()

    def run(p: Params, ids: Any) -> Any:
        return _scored(lambda *args: _gpt(p, *args), ids, 2)

    def size(x: Any) -> Any:
        return jnp.sum(jnp.sin(x))

    model: Any = _emitted(run, params, ids).model
    own = eqx.filter_jit(eqx.filter_grad(lambda m: size(m(ids))))(model)
    want = jax.jit(jax.grad(lambda p: size(run(p, ids))))(params)
    pairs = [
        (own.tokens, want["tokens"]),
        (own.head, want["head"]),
        (own.blocks[0].attn.query.kernel, want["blocks"][0]["attn"]["query"]["kernel"]),
        (own.blocks[1].up.bias, want["blocks"][1]["up"]["bias"]),
        (own.norm.scale, want["norm"]["scale"]),
    ]
    for one, other in pairs:
        assert np.any(other)
        # The gradients of the steps are added in another order.
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_modules_of_a_library_are_called_in_a_loop() -> None:
    hk = pytest.importorskip("haiku")

    class Block(hk.Module):
        def __call__(self, x: Any) -> Any:
            y = hk.LayerNorm(-1, True, True, name="norm")(x)
            y = jax.nn.gelu(hk.Linear(12, name="up")(y))
            return x + hk.Linear(_DIM, name="down")(y)

    class Net(hk.Module):
        def __call__(self, x: Any) -> Any:
            return Block(name="second")(Block(name="first")(x))

    net = hk.without_apply_rng(hk.transform(lambda x: Net(name="net")(x)))
    x = np.linspace(-1, 1, 2 * _DIM, dtype=np.float32).reshape(2, _DIM)
    params = net.init(jax.random.key(0), x)

    def run(p: Params, x: Any) -> Any:
        def step(state: Any) -> Any:
            y, i = state
            return net.apply(p, y) / 2, i + 1

        first = net.apply(p, x)
        return lax.while_loop(lambda s: jnp.max(s[0]) > s[1], step, (first, 0.0))[0]

    module = _emitted(run, params, x)
    assert _calls(module.source) == ["self.net"]
    assert "def step(self" not in module.source
    np.testing.assert_array_equal(module.model(x), jax.jit(run)(params, x))  # pyright: ignore


def test_a_program_whose_loop_uses_a_parameter_elsewhere_is_spelled_out() -> None:
    new = weights(5)
    params = {"cell": {"kernel": new(4, 4), "bias": new(4)}}
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)

    def run(p: Params, x: Any) -> Any:
        def step(i: Any, y: Any) -> Any:
            return jnp.tanh(linear(y, p["cell"])) @ p["cell"]["kernel"].T

        return lax.fori_loop(0, 3, step, x * p["cell"]["bias"])

    module = _emitted(run, params, x)
    np.testing.assert_array_equal(module.model(x), jax.jit(run)(params, x))  # pyright: ignore


def test_parameters_that_only_the_program_around_the_loop_uses_are_fields() -> None:
    new = weights(5)
    params = {"cell": {"kernel": new(4, 4), "bias": new(4)}, "first": new(1, 4), "scale": new(4)}
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)

    def run(p: Params, x: Any) -> Any:
        def step(i: Any, y: Any) -> Any:
            return jnp.tanh(linear(y, p["cell"]))

        start = jnp.where(x > 0, p["first"], step(0, jnp.broadcast_to(p["first"], x.shape)))
        return lax.fori_loop(0, 3, step, start) * p["scale"]

    module = _emitted(run, params, x)
    assert _calls(module.source) == ["self.cell"]
    assert "self.first" in module.source
    np.testing.assert_array_equal(module.model(x), jax.jit(run)(params, x))  # pyright: ignore


def test_a_layer_that_is_applied_over_and_over_is_called_in_a_loop() -> None:
    new = weights(6)
    params = {
        "embed": {"kernel": new(5, _DIM), "bias": new(_DIM)},
        "layer": _params(1)["blocks"][0],
        "head": {"kernel": new(_DIM, 3), "bias": new(3)},
    }
    x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(2, 4, 5)

    def run(p: Params, x: Any) -> Any:
        x = linear(x, p["embed"])
        for _ in range(4):
            x, _ = _block(p["layer"], x)
        return linear(jnp.mean(x, 1), p["head"])

    module = _emitted(run, params, x)
    assert "for _ in range(4):\n            x = self.cell(x)\n" in module.source
    classes = re.findall(r"^class (\w+)", module.source, re.MULTILINE)
    assert module.source.count("    def __call__(") == len(classes)
    model: Any = module.model
    np.testing.assert_array_equal(model(x), jax.jit(run)(params, x))
    own = eqx.filter_grad(lambda m: jnp.sum(m(x) ** 2))(model).layer.cell.attn.query.kernel
    want = jax.grad(lambda p: jnp.sum(run(p, x) ** 2))(params)["layer"]["attn"]["query"]["kernel"]
    np.testing.assert_allclose(own, want, rtol=1e-4, atol=1e-6)
