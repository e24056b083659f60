"""A step of training

The file holds the backward pass as a hundred equations. They are proved to be what JAX traces for
the derivative of the loss, so the text has the loss alone.
"""

import jax
import jax.numpy as jnp

import invert


def cross_entropy(params, x, labels):
    hidden = jax.nn.gelu(x @ params["up"] + params["bias"])
    scores = jax.nn.log_softmax(hidden @ params["down"])
    return -(scores * jax.nn.one_hot(labels, 10)).sum(-1).mean()


@jax.jit
def step(params, x, labels):
    loss, grads = jax.value_and_grad(cross_entropy)(params, x, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


params = {"up": jnp.ones((784, 128)), "bias": jnp.ones(128), "down": jnp.ones((128, 10))}
sizes = jax.tree.map(lambda p: ", ".join(map(str, p.shape)), params), "batch, 784", "batch"
x, labels = jnp.ones((1, 784)), jnp.ones(1, int)
specs = jax.export.symbolic_args_specs((params, x, labels), sizes)
module = invert.from_exported(jax.export.export(step)(*specs).serialize())
