"""Programs that lower alike have one form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.lowered_form import lowered_form
from invert.ir.match import difference


def test_a_broadcast_of_a_broadcast_is_one() -> None:
    def twice(x: jax.Array) -> jax.Array:
        rows = lax.broadcast_in_dim(x, (1, 2), (1,))
        return lax.broadcast_in_dim(rows, (3, 1, 2, 4), (1, 2)) + jnp.zeros(4)

    def once(x: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(x, (3, 1, 2, 4), (2,)) + jnp.zeros(4)

    def other(x: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(x, (3, 1, 4, 2), (3,)).swapaxes(2, 3) + jnp.zeros(4)

    forms = [lowered_form(jax.make_jaxpr(f)(np.ones(2, np.float32))) for f in (twice, once, other)]
    assert difference(forms[0], forms[1]) is None
    assert difference(forms[0], forms[2]) is not None
