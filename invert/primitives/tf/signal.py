"""Fourier transforms, spectrograms and cepstral coefficients."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.sizes import DimSize, is_open
from invert.tf.fallback.eager import check_bytes
from invert.tf.interpreter.registry import Array, Int, Ints, rule, rules
from invert.tf.ops.node import Node
from invert.tf.values.dynamic_size import int_min

# Number of transformed axes, by suffix of the op.
_RANKS = {"": 1, "2D": 2, "3D": 3}


def _typed(y: Array, real: np.dtype | None, complex_: np.dtype | None) -> Array:
    """The result in the declared type: `jnp` computes half precision in single."""
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


# -- spectrograms and cepstral coefficients of sound
#
# Kernels: tensorflow/core/kernels/spectrogram.cc, mfcc.cc, mfcc_mel_filterbank.cc and
# mfcc_dct.cc, TensorFlow 2.21, which compute in double precision.

_F64 = np.dtype(np.float64)


@rule("AudioSpectrogram")
def _spectrogram(
    samples: Array, *, node: Node, window_size: int, stride: int, magnitude_squared: bool
) -> Array:
    check_bytes(node, "a table of its window", window_size * _F64.itemsize)
    signal = lax.transpose(samples, (1, 0)).astype(_F64)
    length = signal.shape[1]
    too_short = isinstance(length, int) and length < window_size
    count = 0 if too_short else (length - window_size) // stride + 1
    start = lax.broadcasted_iota(np.int32, (count, window_size), 0) * np.int32(stride)
    frames = signal[:, start + lax.broadcasted_iota(np.int32, (count, window_size), 1)]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_size) / window_size)
    spectrum = jnp.fft.rfft(frames * hann, n=1 << (window_size - 1).bit_length())
    power = (jnp.square(lax.real(spectrum)) + jnp.square(lax.imag(spectrum))).astype(np.float32)
    return power if magnitude_squared else lax.sqrt(power)


@rule("Mfcc")
def _mfcc(
    power: Array,
    sample_rate: Int,
    *,
    node: Node,
    upper_frequency_limit: float,
    lower_frequency_limit: float,
    filterbank_channel_count: int,
    dct_coefficient_count: int,
) -> Array:
    channels, count = filterbank_channel_count, dct_coefficient_count
    entries = (power.shape[2] + count) * channels + count
    check_bytes(node, "tables of its filters", entries * _F64.itemsize)
    limits = lower_frequency_limit, upper_frequency_limit
    weights = _mel_weights(power.shape[2], sample_rate, channels, *limits)
    if weights is None:
        return lax.full((*power.shape[:2], count), 0, power.dtype)
    energy = lax.sqrt(power.astype(_F64)) @ weights
    angle = np.arange(count)[:, None] * (np.arange(channels) + 0.5)
    cosines = np.sqrt(2 / channels) * np.cos(np.pi / channels * angle)
    return (jnp.log(jnp.maximum(energy, 1e-12)) @ cosines.T).astype(power.dtype)


def _mel(frequency: Array) -> Array:
    return 1127.0 * np.log1p(frequency / 700.0)


def _mel_weights(bins: int, rate: int, channels: int, low: float, high: float) -> np.ndarray | None:
    """The weight of each frequency in each channel: triangles evenly spaced in mel.

    **Returns:** `float64[bins, channels]`; `None` if the limit is above all frequencies, where
    the kernel returns zeros.
    """
    width = 0.5 * rate / (bins - 1)
    first, last = int(1.5 + low / width), int(high / width)
    if last >= bins:
        return None
    edges = np.linspace(_mel(low), _mel(high), channels + 2)
    mel = _mel(np.arange(bins) * width)
    used = (np.arange(bins) >= first) & (np.arange(bins) <= last)
    rising = (mel[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mel[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(np.minimum(rising, falling), 0) * used[:, None]
