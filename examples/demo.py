"""A JAX model goes through jax2tf and a SavedModel on disk, and comes back as JAX.

Prints the recovered program, then compares values and derivatives of the recovered module with
those of the model it came from. Exits with 1 if any of them differs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf

import invert

BATCH, STEPS, FEATURES, WIDTH = 3, 6, 5, 8
Params = dict[str, dict[str, Any]]
Fn = Callable[[jax.Array], jax.Array]


def init(key: jax.Array) -> Params:
    """Weights of the model, as nested dictionaries of arrays."""

    def dense(key: jax.Array, n_in: int, n_out: int) -> dict[str, jax.Array]:
        scale = n_in**-0.5
        return {"kernel": scale * jax.random.normal(key, (n_in, n_out)), "bias": jnp.zeros(n_out)}

    keys = iter(jax.random.split(key, 6))
    return {
        "embed": dense(next(keys), FEATURES, WIDTH),
        "query": dense(next(keys), WIDTH, WIDTH),
        "key": dense(next(keys), WIDTH, WIDTH),
        "value": dense(next(keys), WIDTH, WIDTH),
        "cell": dense(next(keys), 2 * WIDTH, WIDTH),
        "head": dense(next(keys), WIDTH, 1),
    }


def model(params: Params, x: jax.Array) -> jax.Array:
    """Dense layers, a running sum, softmax attention and a recurrence: `(b, t, f) -> (b,)`."""

    def dense(name: str, h: jax.Array) -> jax.Array:
        return h @ params[name]["kernel"] + params[name]["bias"]

    h = jnp.tanh(dense("embed", x))
    h = jnp.cumsum(h, axis=1) / STEPS
    scores = jnp.einsum("btw,bsw->bts", dense("query", h), dense("key", h)) / WIDTH**0.5
    h = h + jnp.einsum("bts,bsw->btw", jax.nn.softmax(scores), dense("value", h))

    def cell(carry: jax.Array, h_t: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(dense("cell", jnp.concatenate([carry, h_t], axis=-1))), None

    last, _ = jax.lax.scan(cell, jnp.zeros_like(h[:, 0]), jnp.swapaxes(h, 0, 1))
    return dense("head", last)[:, 0]


def save(params: Params, directory: str) -> None:
    """Write `model` as a SavedModel whose weights are variables, as a serving team would."""
    variables = tf.nest.map_structure(tf.Variable, params)
    converted = jax2tf.convert(model)
    exported: Any = tf.Module()
    exported.params = variables
    exported.predict = tf.function(
        lambda x: converted(variables, x),
        autograph=False,
        jit_compile=True,
        input_signature=[tf.TensorSpec((BATCH, STEPS, FEATURES), tf.float32, name="x")],
    )
    tf.saved_model.save(exported, directory)


def checks(original: Fn, recovered: Fn, key: jax.Array) -> bool:
    """Print one line for each transformation; return whether all agree."""
    k_x, k_v, k_many = jax.random.split(key, 3)
    x = jax.random.normal(k_x, (BATCH, STEPS, FEATURES))
    v = jax.random.normal(k_v, x.shape)
    many = jax.random.normal(k_many, (4, *x.shape))

    def along(f: Fn, t: jax.Array) -> jax.Array:
        """The model on a line through `x`: a function of one number, easy to differentiate."""
        return jnp.sum(f(x + t * v) ** 2)

    def of_one_row(f: Fn, row: jax.Array) -> jax.Array:
        return jnp.sum(f(x.at[0, 0].set(row)) ** 2)

    transformations: dict[str, Callable[[Fn], Any]] = {
        "forward": lambda f: f(x),
        "jit": lambda f: eqx.filter_jit(f)(x),
        "vmap": lambda f: jax.vmap(f)(many),
        "jvp": lambda f: jax.jvp(f, (x,), (v,)),
        "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x) ** 2))(x),
        "grad(grad)": lambda f: jax.grad(jax.grad(lambda t: along(f, t)))(0.5),
        "hessian": lambda f: jax.hessian(lambda row: of_one_row(f, row))(x[0, 0]),
    }
    ok = True
    for name, transform in transformations.items():
        want = jax.tree.leaves(transform(original))
        try:
            got = jax.tree.leaves(transform(recovered))
        except Exception as error:  # noqa: BLE001  # a demo shows each failure and goes on
            print(f"  {name:<11} FAILS: {type(error).__name__}: {str(error).splitlines()[0]}")
            ok = False
            continue
        pairs = list(zip(got, want, strict=True))
        worst = max(float(np.max(np.abs(np.subtract(g, w)))) for g, w in pairs)
        # float32; the two programs may be fused differently.
        agrees = all(np.allclose(g, w, rtol=1e-4, atol=1e-5) for g, w in pairs)
        print(f"  {name:<11} {'equal' if agrees else 'DIFFERS'}, largest difference {worst:.1e}")
        ok = ok and agrees
    return ok


def main() -> int:
    key_params, key_checks = jax.random.split(jax.random.key(0))
    params = init(key_params)

    with tempfile.TemporaryDirectory() as directory:
        save(params, directory)
        module = invert.load(directory)

    print("Recovered program:\n")
    print(module.jaxpr)
    print("\nReport:\n")
    print(module.report)
    print("\nRecovered against original:\n")
    return 0 if checks(lambda x: model(params, x), module, key_checks) else 1


if __name__ == "__main__":
    sys.exit(main())
