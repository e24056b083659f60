"""Small models, each parallel in one common way, on a mesh of `data` and `model`.

A case is a function of a mesh. It returns a function of parameters and an input, these two, and the
specs of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Case = tuple[Callable[..., Any], Any, Any, Any, Any]


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape, scale=0.3).astype(np.float32)


def flax_transformer(mesh: Mesh) -> Case:
    """Data and tensor parallelism by sharding constraints."""

    def lie(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            h = nn.LayerNorm()(x)
            q, k, v = (nn.DenseGeneral((4, 4), name=n)(h) for n in "qkv")
            q = lie(q, "data", None, "model", None)
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0)
            a = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
            x = x + nn.DenseGeneral(16, axis=(-2, -1), name="o")(
                lie(a, "data", None, "model", None)
            )
            h = lie(nn.gelu(nn.Dense(32, name="up")(nn.LayerNorm()(x))), "data", None, "model")
            return lie(x + nn.Dense(16, name="down")(h), "data", None, None)

    model, x = Block(), _numbers(4, 8, 16)
    variables = model.init(jax.random.key(0), x)
    cut = {"q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model")}
    cut |= {"o": P("model"), "up": P(None, "model"), "down": P("model", None)}

    def spec(path: Any, leaf: Any) -> P:
        names = [p.key for p in path]
        return cut.get(names[-2], P()) if names[-1] == "kernel" else P()

    specs = jax.tree_util.tree_map_with_path(spec, variables)
    return model.apply, variables, x, specs, P("data")


def equinox_transformer(mesh: Mesh) -> Case:
    """Sequence parallelism by constraints: norms and residuals on parts of the sequence."""

    def lie(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    class Block(eqx.Module):
        norm: eqx.nn.LayerNorm
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __call__(self, x: Any) -> Any:
            h = lie(jax.vmap(jax.vmap(self.norm))(x), "data", "model", None)
            h = lie(jax.vmap(jax.vmap(self.up))(lie(h, "data", None, None)), "data", None, "model")
            h = jax.vmap(jax.vmap(self.down))(jax.nn.silu(h))
            return lie(x + h, "data", "model", None)

    keys = jax.random.split(jax.random.key(0), 2)
    block = Block(
        eqx.nn.LayerNorm(16),
        eqx.nn.Linear(16, 32, key=keys[0]),
        eqx.nn.Linear(32, 16, key=keys[1]),
    )
    arrays, static = eqx.partition(block, eqx.is_array)
    leaves, tree = jax.tree_util.tree_flatten(arrays)

    def run(leaves: Any, x: Any) -> Any:
        return eqx.combine(jax.tree_util.tree_unflatten(tree, leaves), static)(x)

    specs = [P() if leaf.ndim < 2 else P("model") for leaf in leaves]
    return run, leaves, _numbers(4, 8, 16), specs, P("data")


def experts(mesh: Mesh) -> Case:
    """A mixture of experts: tokens travel to their expert's device and back."""
    count = mesh.shape["model"]

    def layer(p: Any, x: Any) -> Any:
        def on_shards(gate: Any, w: Any, x: Any) -> Any:
            chosen = jax.nn.softmax(x @ gate)
            sent = jnp.einsum("te,td->etd", chosen, x)
            there = lax.all_to_all(sent, "model", 0, 0, tiled=True)
            made = jax.nn.relu(jnp.einsum("etd,df->etf", there, w[0]))
            return lax.all_to_all(made, "model", 0, 0, tiled=True).sum(0)

        specs = P(), P("model"), P(("data", "model"))
        return jax.shard_map(on_shards, mesh=mesh, in_specs=specs, out_specs=P(("data", "model")))(
            p["gate"], p["w"], x
        )

    p = {"gate": _numbers(8, count), "w": _numbers(count, 8, 8, seed=1)}
    return layer, p, _numbers(16, 8, seed=2), {"gate": P(), "w": P("model")}, P(("data", "model"))


def pipeline(mesh: Mesh) -> Case:
    """Pipeline stages along `model`; microbatches move from one to the next."""
    count = mesh.shape["model"]
    perm = [(i, (i + 1) % count) for i in range(count)]

    def run(w: Any, x: Any) -> Any:
        def on_shards(w: Any, x: Any) -> Any:
            stage = lax.axis_index("model")

            def step(state: Any, i: Any) -> Any:
                fresh = lax.dynamic_index_in_dim(x, jnp.minimum(i, len(x) - 1), keepdims=False)
                out = jnp.tanh(jnp.where(stage == 0, fresh, state) @ w[0])
                return lax.ppermute(out, "model", perm), out

            init = lax.pcast(jnp.zeros_like(x[0]), ("model",), to="varying")
            _, outs = lax.scan(step, init, jnp.arange(len(x) + count - 1))
            last = jnp.where(stage == count - 1, outs[count - 1 :], 0.0)
            return lax.psum(last, "model")

        specs = P("model"), P(None, "data")
        return jax.shard_map(on_shards, mesh=mesh, in_specs=specs, out_specs=P(None, "data"))(w, x)

    return run, _numbers(count, 8, 8), _numbers(6, 4, 8, seed=1), P("model"), P(None, "data")


def ring_attention(mesh: Mesh) -> Case:
    """Keys and values travel around a ring; the softmax is accumulated."""
    count = mesh.shape["model"]
    perm = [(i, (i + 1) % count) for i in range(count)]

    def run(p: Any, x: Any) -> Any:
        def on_shards(p: Any, x: Any) -> Any:
            q, k, v = (x @ w for w in p)

            def step(carry: Any, _: Any) -> Any:
                k, v, top, total, out = carry
                scores = jnp.einsum("bqd,bkd->bqk", q, k)
                new = jnp.maximum(top, scores.max(-1))
                weights = jnp.exp(scores - new[..., None])
                scale = jnp.exp(top - new)
                total = total * scale + weights.sum(-1)
                out = out * scale[..., None] + jnp.einsum("bqk,bkd->bqd", weights, v)
                k, v = (lax.ppermute(a, "model", perm) for a in (k, v))
                return (k, v, new, total, out), None

            start = q[..., 0] * 0.0
            init = k, v, start - 1e30, start, q * 0.0
            _, _, _, total, out = lax.scan(step, init, None, length=count)[0]
            return out / total[..., None]

        spec = P("data", "model")
        return jax.shard_map(on_shards, mesh=mesh, in_specs=(P(), spec), out_specs=spec)(p, x)

    return run, _numbers(3, 8, 8), _numbers(2, 16, 8, seed=1), P(), P("data", "model")


def fsdp(mesh: Mesh) -> Case:
    """Sharded weights, gathered where they are used; gradients are scattered again."""

    def run(p: Any, x: Any) -> Any:
        def on_shards(p: Any, x: Any) -> Any:
            for w in p:
                x = jnp.tanh(x @ lax.all_gather(w, ("data", "model"), tiled=True))
            return x

        cut = P(("data", "model"))
        return jax.shard_map(on_shards, mesh=mesh, in_specs=(cut, cut), out_specs=cut)(p, x)

    p = [_numbers(16, 16), _numbers(16, 16, seed=1)]
    cut = P(("data", "model"))
    return run, p, _numbers(8, 16, seed=2), [cut, cut], cut


CASES: dict[str, Callable[[Mesh], Case]] = {
    case.__name__: case
    for case in (
        flax_transformer,
        equinox_transformer,
        experts,
        pipeline,
        ring_attention,
        fsdp,
    )
}
