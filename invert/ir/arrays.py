"""Container arrays as JAX arrays, sharing memory where possible."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def device_array(value: Any) -> Array | np.ndarray:
    """A device array; a NumPy array where JAX would narrow its dtype.

    Read-only memory is shared where the device allows it. Other memory is copied, since its holder
    may write to it.
    """
    if jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
        return value
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return jax.device_put(value, may_alias=True)
    return jnp.asarray(value)
