"""Arrays of a container as arrays of JAX, without a second copy where memory may be shared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def device_array(value: Any) -> Array | np.ndarray:
    """A device array; a NumPy array where JAX would narrow its dtype.

    Memory that is read-only is shared where the device allows it; any other is copied, since
    whoever holds it may write to it.
    """
    if jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
        return value
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return jax.device_put(value, may_alias=True)
    return jnp.asarray(value)
