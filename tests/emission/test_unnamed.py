"""Layers of programs whose weights have no names, as those that a function closes over."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert

_GENERATOR = np.random.default_rng(0)


def _random(*shape: int) -> jax.Array:
    return jnp.asarray(_GENERATOR.normal(size=shape), jnp.float32)


def _emitted(f: Callable[..., Any], *args: Any) -> str:
    """The text of a function, whose values and gradient are those of the function."""
    exported = jax.export.export(jax.jit(f))(*args)
    emission = invert.from_exported(exported.serialize()).emit(loader=False)
    model: Any = emission.model
    np.testing.assert_allclose(model(*args), jax.jit(f)(*args), rtol=1e-5, atol=1e-5)

    def total(f: Any) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(f(x, *args[1:])))))

    np.testing.assert_allclose(total(model)(args[0]), total(f)(args[0]), rtol=1e-5, atol=1e-6)
    return emission.source


def _fields(source: str, name: str) -> list[str]:
    """The fields of a class."""
    body = source[source.index(f"class {name}(") :]
    return re.findall(r"^    (\w+): ", body[: body.index("def __init__")], re.MULTILINE)


def _group_norm(x: Any, scale: Any, bias: Any) -> Any:
    groups = x.reshape(*x.shape[:-1], 2, -1)
    mean = groups.mean((1, 2, 4))
    var = jnp.maximum(0.0, jnp.square(groups).mean((1, 2, 4)) - jnp.square(mean))
    mean, var = (jnp.repeat(v, x.shape[-1] // 2, -1)[:, None, None] for v in (mean, var))
    return (x - mean) * (lax.rsqrt(var + 1e-6) * scale) + bias


def test_a_normalization_holds_its_bias() -> None:
    weights = [(_random(8), _random(8), _random(8, 8) / 3) for _ in range(2)]

    def f(x: Any) -> Any:
        for scale, bias, kernel in weights:
            x = jax.nn.silu(_group_norm(x, scale, bias)) @ kernel
        return x

    source = _emitted(f, _random(2, 4, 4, 8))
    assert _fields(source, "GroupNorm") == ["scale", "bias"], source


def test_a_normalization_over_several_axes_holds_its_bias() -> None:
    weights = [(_random(4, 6), _random(4, 6), _random(6, 6) / 3) for _ in range(2)]

    def f(x: Any) -> Any:
        for scale, bias, kernel in weights:
            centered = x - x.mean((1, 2), keepdims=True)
            inverse = lax.rsqrt(jnp.square(centered).mean((1, 2), keepdims=True) + 1e-5)
            x = (scale * (centered * inverse) + bias) @ kernel
        return x

    source = _emitted(f, _random(3, 4, 6))
    assert _fields(source, "Norm") == ["scale", "bias"], source


def test_what_scales_a_normalized_value_again_is_not_part_of_it() -> None:
    scale, bias, mix = _random(8), _random(8), [_random(8), _random(8)]
    first, second = _random(8, 8) / 3, _random(8, 8) / 2

    def f(x: Any, before: Any) -> Any:
        x = (x - jnp.mean(x)) / jnp.sqrt(jnp.var(x) + 1e-5) * scale + bias
        one, other = (x * m + before * (1 - m) for m in mix)
        return (first @ one) * jax.nn.sigmoid(second @ other)

    source = _emitted(f, _random(8), _random(8) * 2)
    assert _fields(source, "Norm") == ["scale", "bias"], source
    # As in PyTorch, the rows are the outputs.
    assert 'weight: Float[Array, "n_out n_in"]' in source
    assert "return self.weight @ x" in source


def test_statistics_of_a_batch_normalization_are_named() -> None:
    mean, scale, bias, var = _random(5), _random(5), _random(5), jnp.exp(_random(5))

    def f(x: Any) -> Any:
        with jax.named_scope("norm"):
            return (x - mean) * (lax.rsqrt(var + 1e-5) * scale) + bias

    source = _emitted(f, _random(3, 5))
    assert _fields(source, "Norm") == ["mean", "var", "scale", "bias"], source
    assert re.search(r"self\.var = jnp\.ones", source)


def test_a_product_takes_one_array() -> None:
    """What prepares its input from many values, as a sum over the edges of a graph, is outside."""
    kernels = _random(5, 8) / 3, _random(8, 3) / 3
    scale = _random(8)

    def f(x: Any, senders: Any, receivers: Any) -> Any:
        hidden = x @ kernels[0]
        logits = jnp.sum(hidden * scale, -1)[senders]
        largest = jax.ops.segment_max(logits, receivers, 4)[receivers]
        weights = jnp.exp(logits - largest)
        sums = jax.ops.segment_sum(weights[:, None] * hidden[senders], receivers, 4)
        return jax.nn.elu(sums) @ kernels[1]

    edges = np.array([0, 1, 2, 3, 0], np.int32), np.array([1, 1, 0, 2, 3], np.int32)
    source = _emitted(f, _random(4, 5), *edges)
    assert len(re.findall(r"^class ", source, re.MULTILINE)) == 2, source
    assert re.search(r"class Linear\b(.*\n)+?    def __call__\(self, x: \S+ \S+ \S+\) -> ", source)


def test_a_loop_that_only_reads_a_table_has_no_cell() -> None:
    table = jnp.asarray(np.arange(12).reshape(3, 4) % 5, jnp.int32)

    def f(x: Any) -> Any:
        def step(h: Any, i: Any) -> Any:
            h = jnp.tanh(h @ h.T @ h) + table[i]
            return h, None

        return lax.scan(step, x, jnp.arange(3))[0]

    source = _emitted(f, _random(4, 4))
    assert len(re.findall(r"^class ", source, re.MULTILINE)) == 1, source


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda x: lax.linalg.cholesky(x @ x.T + 9 * jnp.eye(4)), "lax.linalg.cholesky("),
        (lambda x: jnp.repeat(x[:1], 3, axis=0) * 2, "jnp.repeat(x[:1], 3, axis=0)"),
    ],
    ids=["cholesky", "repeat"],
)
def test_functions_by_name(f: Any, text: str) -> None:
    source = _emitted(f, _random(4, 4))
    assert text in source, source


def test_constants_are_named_by_their_use_in_a_loop_or_branch() -> None:
    kernel, table = _random(4, 4) / 3, _random(5, 4)

    def f(x: Any) -> Any:
        def body(state: Any) -> Any:
            i, x = state
            return i + 1, jnp.tanh(x @ kernel) + lax.dynamic_index_in_dim(table, i)

        return lax.while_loop(lambda state: jnp.sum(state[1]) + state[0] < 4, body, (0, x))[1]

    exported = jax.export.export(jax.jit(f))(x := _random(3, 4))
    module = invert.from_exported(exported)
    names = re.findall(r'^    (\w+): Float\[Array, "', module.source, re.MULTILINE)
    assert sorted(names) == ["table", "weight"], module.source
    np.testing.assert_allclose(module.model(x), f(x), rtol=1e-5, atol=1e-5)
