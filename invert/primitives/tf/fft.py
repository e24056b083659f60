"""Fourier transforms over the last axes, or over given axes."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.sizes import DimSize, is_open
from invert.tf.interpreter.registry import Array, Ints, rules
from invert.tf.values.dynamic_size import int_min

# Number of transformed axes, by suffix of the op.
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


def _along(kind: str, transform: Callable[..., Array]) -> Callable[..., Array]:
    """A transform at lengths that may be open, which `jax.numpy` does not accept."""

    def run(x: Array, lengths: Ints | None, axes: Ints) -> Array:
        if lengths is None or not any(map(is_open, lengths)):
            return transform(x, lengths, axes)
        last = range(x.ndim - len(lengths), x.ndim)
        y = jnp.moveaxis(x, axes, last)
        # The input size for a real result of this length.
        sizes = [*lengths[:-1], lengths[-1] // 2 + 1] if kind == "IRFFT" else lengths
        for axis, size in zip(last, sizes, strict=True):
            y = _fitted(y, axis, size)
        return jnp.moveaxis(lax.fft(y, kind, lengths), last, axes)

    return run


def _fitted(x: Array, axis: int, size: DimSize) -> Array:
    """An axis cut to a size, or padded with zeros."""
    x = lax.slice_in_dim(x, 0, int_min(size, x.shape[axis]), axis=axis)
    widths = [(0, 0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis], 0)
    return lax.pad(x, np.zeros((), x.dtype), widths)


_TRANSFORMS: dict[str, Callable[..., Array]] = {
    "FFT": jnp.fft.fftn,
    "IFFT": jnp.fft.ifftn,
    "RFFT": jnp.fft.rfftn,
    "IRFFT": jnp.fft.irfftn,
}

for _kind, _function in _TRANSFORMS.items():
    _transform = _along(_kind, _function)
    for _end, _rank in _RANKS.items():
        _names = [f"{_kind}{_end}", f"Batch{_kind}{_end}"][: 1 if "R" in _kind else 2]
        rules(dict.fromkeys(_names, _over_last_axes(_transform, _rank)))
    rules({f"{_kind}ND": _over_axes(_transform)})
