"""Spectrograms and cepstral coefficients of sound.

Kernels: tensorflow/core/kernels/spectrogram.cc, mfcc.cc, mfcc_mel_filterbank.cc and mfcc_dct.cc,
TensorFlow 2.21, which compute in double precision.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, Int, rule

_F64 = np.dtype(np.float64)


@rule("AudioSpectrogram")
def _spectrogram(
    samples: Array, *, window_size: int, stride: int, magnitude_squared: bool
) -> Array:
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
    upper_frequency_limit: float,
    lower_frequency_limit: float,
    filterbank_channel_count: int,
    dct_coefficient_count: int,
) -> Array:
    channels, count = filterbank_channel_count, dct_coefficient_count
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
