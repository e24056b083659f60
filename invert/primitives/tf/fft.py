"""Fourier transforms over the last axes, or over given axes."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, Ints, rules

# Number of transformed axes, by the ending of the op.
_RANKS = {"": 1, "2D": 2, "3D": 3}


def _typed(y: Array, real: np.dtype | None, complex_: np.dtype | None) -> Array:
    """The result in the type that the op declares; `jnp` computes half precision in single."""
    dtype = real if jnp.issubdtype(y.dtype, jnp.floating) else complex_
    return y if dtype is None or y.dtype == dtype else lax.convert_element_type(y, dtype)


def _over_last_axes(transform: Callable[..., Array], rank: int) -> Callable[..., Array]:
    axes = tuple(range(-rank, 0))

    def rule(
        x: Array,
        lengths: Ints | None = None,
        *,
        Treal: np.dtype | None = None,
        Tcomplex: np.dtype | None = None,
    ) -> Array:
        return _typed(transform(x, lengths, axes), Treal, Tcomplex)

    return rule


def _over_axes(transform: Callable[..., Array]) -> Callable[..., Array]:
    def rule(
        x: Array,
        lengths: Ints,
        axes: Ints,
        *,
        Treal: np.dtype | None = None,
        Tcomplex: np.dtype | None = None,
    ) -> Array:
        return _typed(transform(x, lengths, axes), Treal, Tcomplex)

    return rule


_TRANSFORMS: dict[str, Callable[..., Array]] = {
    "FFT": jnp.fft.fftn,
    "IFFT": jnp.fft.ifftn,
    "RFFT": jnp.fft.rfftn,
    "IRFFT": jnp.fft.irfftn,
}

for _kind, _transform in _TRANSFORMS.items():
    for _end, _rank in _RANKS.items():
        _names = [f"{_kind}{_end}", f"Batch{_kind}{_end}"][: 1 if "R" in _kind else 2]
        rules(dict.fromkeys(_names, _over_last_axes(_transform, _rank)))
    rules({f"{_kind}ND": _over_axes(_transform)})
