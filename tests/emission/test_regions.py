"""Layers of programs without name scopes, by the names of their parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import invert
from tests.emission.models import assert_computes, ramp, recovered, with_params


def _weights(shapes: Any) -> Any:
    random = np.random.default_rng(0)
    is_shape = lambda s: isinstance(s, tuple)  # noqa: E731
    draw = lambda s: (random.normal(size=s) / 3).astype(np.float32)  # noqa: E731
    return jax.tree_util.tree_map(draw, shapes, is_leaf=is_shape)


def _emitted(apply: Callable[..., Any], weights: Any, x: np.ndarray) -> str:
    """The text of a function at an open batch, without the reader of weights.

    Values and gradients equal those of the function at two sizes.
    """
    (size,) = jax.export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
    exported = jax.export.export(jax.jit(lambda weights, x: apply(weights, x)))(weights, spec)
    module: Any = invert.from_exported(exported.serialize(), params={"weights": weights})
    emission = module.emit(loader=False)
    assert not emission.messages
    original = jax.tree_util.Partial(jax.jit(apply), weights)
    assert_computes(emission.model, original, x, np.concatenate([x, x + 1]))
    return emission.source


def _normed(x: Any, p: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["scale"] + p["bias"]


def test_positions_are_added_in_the_blocks_that_need_them() -> None:
    """Queries and keys have positions, values and residuals have none; a table makes these."""
    norm = {"scale": (8,), "bias": (8,)}
    attention = {n: {"kernel": (8, 8)} for n in ("query", "key", "value", "out")}
    block = {"norm": norm, "attention": attention}
    weights = _weights(
        {"rows": (5, 4), "encoder": dict.fromkeys("01", block), "head": {"kernel": (8, 3)}}
    )

    def apply(p: Any, x: Any) -> Any:
        rows = p["rows"]
        positions = jnp.concatenate([rows, 2.0 * rows], axis=-1)[None]
        for i in "01":
            b, placed = p["encoder"][i]["attention"], x + positions
            query, key = placed @ b["query"]["kernel"], placed @ b["key"]["kernel"]
            scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", query, key))
            mixed = jnp.einsum("bqk,bkd->bqd", scores, x @ b["value"]["kernel"])
            x = _normed(x + mixed @ b["out"]["kernel"], p["encoder"][i]["norm"])
        return x @ p["head"]["kernel"]

    source = _emitted(apply, weights, np.random.default_rng(1).normal(size=(2, 5, 8)).astype("f"))
    calls = re.findall(r"for (\w+) in self\.\w+:\n +(\w+) = \1\(\2, \w+\)\n", source)
    assert len(calls) == 1, source  # each takes the result of the one before, and the positions


def test_blocks_that_return_more_than_their_sum() -> None:
    """The sum is computed before the further result, from an input that is padded first."""
    block = {"conv": {"kernel": (2, 6, 12)}, "res": {"kernel": (6, 6)}, "skip": {"kernel": (6, 4)}}
    weights = _weights({"layers": dict.fromkeys("0123", block), "head": {"kernel": (10, 3)}})

    def apply(p: Any, x: Any) -> Any:
        total = 0.0
        for i in "0123":
            b = p["layers"][i]
            padded = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))
            y = jax.lax.conv_general_dilated(
                padded, b["conv"]["kernel"], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
            )
            y, gate = jnp.split(y, 2, axis=-1)
            y = jnp.tanh(y) * jax.nn.sigmoid(gate)
            x, skip = x + y @ b["res"]["kernel"], y @ b["skip"]["kernel"]
            total = total + skip
        return jnp.concatenate([total, x], axis=-1) @ p["head"]["kernel"]

    source = _emitted(apply, weights, np.random.default_rng(1).normal(size=(2, 7, 6)).astype("f"))
    (main,) = re.findall(r"@eqx\.filter_jit.*", source, re.DOTALL)
    assert "pad" not in main and source.count("jnp.pad(") == 1
    assert "jnp.tanh" not in main and re.search(r"    x, skip = block\(x\)|for \w+ in", main), main


def test_gates_are_not_in_the_layer_behind_them() -> None:
    """Both products of a gated layer are of one class."""
    part = {"up": {"kernel": (6, 16), "bias": (16,)}, "down": {"kernel": (8, 6), "bias": (6,)}}
    weights = _weights({"first": part, "second": part})

    def apply(p: Any, x: Any) -> Any:
        for name in ("first", "second"):
            b = p[name]
            y, gate = jnp.split(x @ b["up"]["kernel"] + b["up"]["bias"], 2, axis=-1)
            x = (y * jax.nn.gelu(gate)) @ b["down"]["kernel"] + b["down"]["bias"]
        return x

    source = _emitted(apply, weights, np.random.default_rng(1).normal(size=(3, 6)).astype("f"))
    assert re.findall(r"^class (\w+)", source, re.MULTILINE)[0] == "Linear"
    assert source.count("self.kernel + self.bias") == 1  # the only class with a product


def test_calls_in_one_scope_with_nothing_in_common_are_told_apart() -> None:
    """Long ones are calls of one function, short ones are written where they are used."""
    params = {"head": {"w": ramp(4, 5)}}

    def law(x: Any) -> Any:
        x = jnp.sign(x) * (jnp.log1p(255 * jnp.abs(x)) / 5.5)
        x = jnp.tanh(x - jnp.mean(x, -1, keepdims=True))
        return jnp.clip(x / (1 + jnp.max(x, -1, keepdims=True)), -1, 1)

    def model(params: Any, x: Any, y: Any) -> Any:
        with jax.named_scope("law"):
            x, y = law(x), law(y)
        with jax.named_scope("short"):
            x, y = jnp.sin(x) * jnp.cos(x), jnp.sin(y) * jnp.cos(y)
        with jax.named_scope("head"):
            return (x + y[:, :4]) @ params["head"]["w"]

    args = ramp(3, 4), ramp(3, 6)
    module = recovered(with_params(model, params, *args))
    source = module.emit(loader=False).source
    assert len(re.findall(r"def \w*law\(x: [^,]*,?[^,]*\) -> ", source)) == 1
    assert source.count("jnp.log1p(") == 1 and source.count("law(") == 3
    assert "def short" not in source and source.count("jnp.sin(") == 2
    model_: Any = module.model
    np.testing.assert_array_equal(model_(*args), module(*args))


def test_blocks_of_products_that_attend_are_named_so() -> None:
    own = {"q": ramp(4, 4), "k": ramp(4, 4), "v": ramp(4, 4), "norm": 1 + ramp(4)}
    params = {name: {n: {"kernel": w} for n, w in own.items()} for name in ("first", "other")}

    def attend(p: Any, x: Any) -> Any:
        made = {}
        for name in "qkv":
            with jax.named_scope(name):
                made[name] = x @ p[name]["kernel"]
        weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", made["q"], made["k"]))
        x = jnp.einsum("bqk,bkd->bqd", weights, made["v"])
        with jax.named_scope("norm"):
            scale = jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5)
            return x * scale * p["norm"]["kernel"]

    def model(params: Any, x: Any) -> Any:
        for name, p in params.items():
            with jax.named_scope(name):
                x = attend(p, x)
        return x

    x = ramp(2, 3, 4)
    source = recovered(with_params(model, params, x)).emit(loader=False).source
    assert "class AttentionBlock(eqx.Module):" in source
