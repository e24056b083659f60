"""Spectrograms and cepstral coefficients of sound.

Kernels: tensorflow/core/kernels/spectrogram.cc, mfcc.cc, mfcc_mel_filterbank.cc and mfcc_dct.cc,
TensorFlow 2.21, which compute in double precision.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static

_F64 = np.dtype(np.float64)


@raises_tf("AudioSpectrogram")
def _spectrogram(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    size, stride = node.attr("window_size"), node.attr("stride")
    signal = lax.transpose(array(values[0]), (1, 0)).astype(_F64)
    samples = signal.shape[1]
    count = 0 if isinstance(samples, int) and samples < size else (samples - size) // stride + 1
    start = lax.broadcasted_iota(np.int32, (count, size), 0) * np.int32(stride)
    frames = signal[:, start + lax.broadcasted_iota(np.int32, (count, size), 1)]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    spectrum = jnp.fft.rfft(frames * hann, n=1 << (size - 1).bit_length())
    power = (jnp.square(lax.real(spectrum)) + jnp.square(lax.imag(spectrum))).astype(np.float32)
    return [power if node.attr("magnitude_squared", False) else lax.sqrt(power)]


@raises_tf("Mfcc")
def _mfcc(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    power, (rate,) = array(values[0]), ints(static(node, values, 1))
    channels, count = (
        node.attr("filterbank_channel_count", 40),
        node.attr("dct_coefficient_count", 13),
    )
    limits = node.attr("lower_frequency_limit", 20.0), node.attr("upper_frequency_limit", 4000.0)
    weights = _mel_weights(power.shape[2], rate, channels, *limits)
    if weights is None:
        return [lax.full((*power.shape[:2], count), 0, power.dtype)]
    energy = lax.sqrt(power.astype(_F64)) @ weights
    place = np.arange(count)[:, None] * (np.arange(channels) + 0.5)
    cosines = np.sqrt(2 / channels) * np.cos(np.pi / channels * place)
    return [(jnp.log(jnp.maximum(energy, 1e-12)) @ cosines.T).astype(power.dtype)]


def _mel(frequency: Any) -> Any:
    return 1127.0 * np.log1p(frequency / 700.0)


def _mel_weights(bins: int, rate: int, channels: int, low: float, high: float) -> np.ndarray | None:
    """How much of each frequency goes into each channel: triangles that are even in mel.

    **Returns:** `float64[bins, channels]`; `None` where the limit is above all frequencies, for
        which the kernel gives zeros.
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
