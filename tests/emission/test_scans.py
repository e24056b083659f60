"""Loops over stacked parameters: the step is a class, and the stack one module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from tests.emission.models import ramp
from tests.emission.test_modules import in_another_process

Case = tuple[Callable[..., Any], Any, tuple[Any, ...], str]


def weights(seed: int) -> Callable[..., jax.Array]:
    keys = iter(jax.random.split(jax.random.key(seed), 80))
    return lambda *shape: 0.4 * jax.random.normal(next(keys), shape)


def linear(x: Any, p: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def attention(x: Any, memory: Any, p: Any) -> Any:
    query, key, value = (linear(y, p[n]) for y, n in
                         ((x, "query"), (memory, "key"), (memory, "value")))  # fmt: skip
    scores = jnp.einsum("bqd,bkd->bqk", query, key) / 2.0
    return linear(jax.nn.softmax(scores) @ value, p["out"])


def block(x: Any, p: Any, memory: Any = None) -> Any:
    x = x + attention(x, x, p["attention"])
    x = x if memory is None else x + attention(x, memory, p["cross"])
    return x + linear(jnp.tanh(linear(x, p["up"])), p["down"])


def stack_of(new: Callable[..., Any], *count: int, cross: bool = False) -> Any:
    def one(n: int, m: int) -> Any:
        return {"kernel": new(*count, n, m), "bias": new(*count, m)}

    def heads() -> Any:
        return {name: one(6, 6) for name in ("query", "key", "value", "out")}

    more = {"cross": heads()} if cross else {}
    return {"attention": heads(), "up": one(6, 8), "down": one(8, 6), **more}


def two_stacks() -> Case:
    new = weights(1)
    params = {
        "encoder": {"layers": stack_of(new, 3), "gain": new(6)},
        "decoder": {"layers": stack_of(new, 2, cross=True), "gain": new(6)},
    }

    def apply(p: Any, x: Any) -> Any:
        def encode(x: Any, q: Any) -> Any:
            return block(x, q), None

        memory, _ = jax.lax.scan(encode, x, p["encoder"]["layers"])
        memory = memory * p["encoder"]["gain"]

        def decode(x: Any, q: Any) -> Any:
            return block(x, q, memory), None

        y, _ = jax.lax.scan(decode, jnp.sin(x), p["decoder"]["layers"])
        return y * p["decoder"]["gain"]

    return apply, params, (ramp(2, 4, 6),), "b, t, 6"


def with_rows_and_shared() -> Case:
    """Rows of other arrays, a layer that all steps share, results of steps, from the end."""
    new = weights(2)
    shared = {"kernel": new(6, 6), "bias": new(6)}
    params = {"blocks": stack_of(new, 4), "shared": shared}

    def apply(p: Any, x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            (x, i), (q, flag) = carry, row
            y = jnp.where(flag, linear(x, p["shared"]), block(x, q))
            return (y, i + 1), jnp.sum(x, 1) * i

        rows = p["blocks"], jnp.array([True, False, False, True])
        return jax.lax.scan(step, (x, jnp.float32(0)), rows, reverse=True, unroll=2)

    return apply, params, (ramp(2, 4, 6),), "b, t, 6"


def nested() -> Case:
    new = weights(3)
    params = {"stages": {"blocks": stack_of(new, 2, 3), "last": new(2, 6, 6)}, "head": new(6, 2)}

    def apply(p: Any, x: Any) -> Any:
        def inner(x: Any, q: Any) -> Any:
            return block(x, q), None

        def outer(x: Any, q: Any) -> Any:
            x, _ = jax.lax.scan(inner, x, q["blocks"])
            return jnp.sin(x @ q["last"]), None

        x, _ = jax.lax.scan(outer, x, p["stages"])
        return x @ p["head"]

    return apply, params, (ramp(2, 4, 6),), "b, t, 6"


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        y = nn.Dense(8, name="up")(nn.LayerNorm()(x))
        return x + nn.Dense(6, name="down")(nn.gelu(y)), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        lifted = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 3}
        x, _ = nn.scan(Layer, **lifted)()(x, None)
        return nn.Dense(2, name="head")(x)


def flax() -> Case:
    x = ramp(5, 6)
    return Scanned().apply, Scanned().init(jax.random.key(0), x), (x,), "b, 6"


CASES: dict[str, tuple[Callable[[], Case], dict[str, int]]] = {
    "two stacks": (two_stacks, {"encoder.layers": 1, "decoder.layers": 1}),
    "rows and shared": (with_rows_and_shared, {"blocks": 1}),
    "nested": (nested, {"stages": 1, "stages.blocks": 2}),
    "flax": (flax, {"layers": 1}),
}


def recovered(case: Case, vjp_order: int = 0) -> invert.Module:
    apply, params, (x,), shape = case
    sizes = jax.export.symbolic_shape(shape)
    spec = jax.ShapeDtypeStruct(sizes, x.dtype)
    types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    exported: Any = jax.export.export(jax.jit(apply))(types, spec)
    if vjp_order:
        exported = exported.serialize(vjp_order=vjp_order)
    return invert.from_exported(exported, params={"arg0": params})


def loss(outputs: Any) -> Any:
    return sum(jnp.sum(jnp.sin(3 * y)) for y in jax.tree.leaves(outputs))


def at(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name)
    return model


@pytest.mark.parametrize("name", CASES)
def test_steps_of_a_loop_over_stacked_parameters_are_a_class(name: str) -> None:
    make, fields = CASES[name]
    apply, params, (x,), _ = case = make()
    emission = recovered(case).emit()
    assert not emission.messages
    model: Any = emission.model
    for path, depth in fields.items():
        assert callable(at(model, path))
        assert all(a.ndim > depth for a in jax.tree.leaves(at(model, path)))
    for inputs in (x, np.cos(np.concatenate([x, x, 40 * x])), np.full_like(x, np.nan)):
        for a, b in zip(
            jax.tree.leaves(model(inputs)),
            jax.tree.leaves(jax.jit(apply)(params, inputs)),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)
    found = eqx.filter_grad(lambda m: loss(m(x)))(model)
    wanted = jax.jit(jax.grad(lambda p: loss(apply(p, x))))(params)
    sums = [sorted(float(jnp.sum(jnp.abs(a))) for a in jax.tree.leaves(t)) for t in (found, wanted)]
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-4, atol=1e-4)  # biases of keys have none


def test_the_text_of_a_stack_calls_its_block() -> None:
    source = recovered(flax()).emit().source
    assert "layers: Layer\n" in source
    assert "return layer(x), None" in source
    assert "lax.scan(step, x, self.layers)" in source
    assert "eqx.filter_vmap(lambda key: Layer(dim, hidden, key=key))" in source


def test_a_checkpoint_of_a_step_stays_around_its_block() -> None:
    _, params, (x,), shape = two_stacks()

    def checkpointed(p: Any, x: Any) -> Any:
        @jax.checkpoint
        def step(x: Any, q: Any) -> Any:
            return block(x, q), None

        return jax.lax.scan(step, x, p["encoder"]["layers"])[0] * p["encoder"]["gain"]

    own = {"encoder": params["encoder"]}
    emission = recovered((checkpointed, own, (x,), shape), vjp_order=1).emit()
    assert "lax.scan(jax.checkpoint(step), x, self" in emission.source, emission.source
    model: Any = emission.model
    np.testing.assert_array_equal(model(x), jax.jit(checkpointed)(own, x))


def test_a_table_with_a_row_for_each_step_is_no_stack_of_blocks() -> None:
    new = weights(4)
    params = {"table": new(4, 6), "cell": {"w": new(6, 6), "u": new(6, 6)}}

    def apply(p: Any, x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            here, y = row
            return jnp.tanh((y + here) @ p["cell"]["w"] + h @ p["cell"]["u"]), h

        start = jnp.zeros((x.shape[0], 6))
        return jax.lax.scan(step, start, (p["table"], x.transpose(1, 0, 2)))

    emission = recovered((apply, params, (ramp(2, 4, 6),), "b, 4, 6")).emit()
    assert not emission.messages
    assert "filter_vmap" not in emission.source
    model: Any = emission.model
    assert model.table.shape == (4, 6)


def test_a_saved_stack_runs_in_another_process(tmp_path: Path) -> None:
    apply, params, (x,), _ = case = flax()
    invert.save(recovered(case), tmp_path)
    found = in_another_process(tmp_path, {"x": x})
    np.testing.assert_array_equal(found["x_out"], jax.jit(apply)(params, x))
