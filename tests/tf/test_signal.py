"""Functions of `tf.signal`: values, gradients, and batches of any size."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert

tf = pytest.importorskip("tensorflow")
signal = tf.signal

PLAIN = invert.Config(patterns=False, verify=False)
RNG = np.random.default_rng(0)
WAVE = RNG.normal(size=(2, 24)).astype(np.float32)
IMAGE = RNG.normal(size=(2, 4, 6)).astype(np.float32)
CUBE = RNG.normal(size=(2, 4, 3, 6)).astype(np.float32)
# Transforms of some dozens of numbers by different algorithms, in single precision.
CLOSE = {"rtol": 2e-4, "atol": 5e-5}


def complexes(x: Any) -> Any:
    return tf.complex(x, 0.5 * x + 1.0)


def mel(spectra: Any) -> Any:
    matrix = signal.linear_to_mel_weight_matrix(4, 9, 8000, 125.0, 3800.0)
    return tf.math.log(tf.matmul(tf.abs(spectra), matrix) + 1e-3)


CASES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "stft": (lambda x: signal.stft(x, 16, 4), WAVE),
    "stft, padded, longer, without a window": (
        lambda x: signal.stft(x, 10, 3, fft_length=16, window_fn=None, pad_end=True),
        WAVE,
    ),
    "inverse_stft": (
        lambda x: signal.inverse_stft(
            signal.stft(x, 16, 4), 16, 4, window_fn=signal.inverse_stft_window_fn(4)
        ),
        WAVE,
    ),
    "frame": (lambda x: signal.frame(x, 7, 3), WAVE),
    "frame, padded": (lambda x: signal.frame(x, 7, 3, pad_end=True, pad_value=1.5), WAVE),
    "frame, of another axis": (lambda x: signal.frame(x, 2, 1, axis=1), IMAGE),
    "overlap_and_add": (lambda x: signal.overlap_and_add(x, 2), IMAGE),
    "mel spectrogram": (lambda x: mel(signal.stft(x, 16, 4)), WAVE),
    "mfccs": (
        lambda x: signal.mfccs_from_log_mel_spectrograms(mel(signal.stft(x, 16, 4))),
        WAVE,
    ),
    **{
        f"{name}, type {kind}, norm {norm}": (
            lambda x, name=name, kind=kind, norm=norm: getattr(signal, name)(
                x, type=kind, norm=norm
            ),
            WAVE,
        )
        for name in ("dct", "idct")
        for kind, norm in ((1, None), (2, None), (2, "ortho"), (3, None), (3, "ortho"), (4, None))
    },
    "dct of more numbers": (lambda x: signal.dct(x, n=30), WAVE),
    "dct of fewer numbers": (lambda x: signal.dct(x, n=11), WAVE),
    "mdct": (lambda x: signal.mdct(x, 8), WAVE),
    "mdct and back": (
        lambda x: signal.inverse_mdct(signal.mdct(x, 8, norm="ortho"), norm="ortho"),
        WAVE,
    ),
    "fft": (lambda x: signal.fft(complexes(x)), WAVE),
    "ifft": (lambda x: signal.ifft(complexes(x)), WAVE),
    "fft2d": (lambda x: signal.fft2d(complexes(x)), IMAGE),
    "ifft2d": (lambda x: signal.ifft2d(complexes(x)), IMAGE),
    "fft3d": (lambda x: signal.fft3d(complexes(x)), CUBE),
    "ifft3d": (lambda x: signal.ifft3d(complexes(x)), CUBE),
    "rfft, longer": (lambda x: signal.rfft(x, [32]), WAVE),
    "irfft": (lambda x: signal.irfft(signal.rfft(x)), WAVE),
    "irfft, shorter": (lambda x: signal.irfft(signal.rfft(x), [15]), WAVE),
    "rfft2d": (lambda x: signal.rfft2d(x), IMAGE),
    "irfft2d": (lambda x: signal.irfft2d(signal.rfft2d(x), [4, 5]), IMAGE),
    "rfft3d": (lambda x: signal.rfft3d(x), CUBE),
    "irfft3d": (lambda x: signal.irfft3d(signal.rfft3d(x)), CUBE),
    "fftshift": (lambda x: signal.fftshift(x), IMAGE),
    "fftshift of one axis": (lambda x: signal.fftshift(x, axes=[-1]), IMAGE),
    "ifftshift": (lambda x: signal.ifftshift(x, axes=1), IMAGE),
}
# Functions of the whole array, which treat the batch as another axis.
NO_OPEN_BATCH = {"fftshift"}
# TensorFlow has no gradient of the first two; that of odd lengths fails in TensorFlow.
NO_GRADIENT = {"rfft3d", "irfft3d", "irfft, shorter", "irfft2d"}
# Cases like another one that is fast already.
_SIMILAR = re.compile("ortho|idct|3d|ifft|longer|numbers|another")


def energy(y: Any) -> Any:
    """A real number computed from real or complex results, with a different weight for each."""
    size = int(np.prod(y.shape))
    weights = np.linspace(0.5, 1.5, size, dtype=np.float32).reshape(y.shape)
    lib: Any = tf if isinstance(y, tf.Tensor) else jnp
    total = tf.reduce_sum if isinstance(y, tf.Tensor) else jnp.sum
    real, imag = (tf.math.real, tf.math.imag) if lib is tf else (jnp.real, jnp.imag)
    return total(weights * (lib.sin(real(y)) + real(y) * imag(y)))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if _SIMILAR.search(n) else n for n in CASES],
)
@pytest.mark.drawn(6)
def test_values_and_gradients_of_open_batches(name: str) -> None:
    fn, x = CASES[name]
    open_ = (None if name not in NO_OPEN_BATCH else 2, *x.shape[1:])
    spec = tf.TensorSpec(open_, tf.float32)
    module = invert.convert(tf.function(fn, autograph=False), spec, config=PLAIN)
    for batch in (x, x[:1]) if name not in NO_OPEN_BATCH else (x,):
        ours, theirs = module(batch), fn(tf.constant(batch)).numpy()
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    if name in NO_GRADIENT:
        return
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        loss = energy(fn(given))
    wanted = tape.gradient(loss, given).numpy()
    np.testing.assert_allclose(jax.grad(lambda x: energy(module(x)))(x), wanted, **CLOSE)


@pytest.mark.parametrize("name", ["hann", "hamming", "vorbis", "kaiser", "kaiser_bessel_derived"])
@pytest.mark.parametrize("size", [1, 7, 8])
def test_windows(name: str, size: int) -> None:
    size = 2 * size if name in ("vorbis", "kaiser_bessel_derived") else size
    window = getattr(signal, f"{name}_window")
    fn = tf.function(lambda x: x * window(size), autograph=False)
    x = np.ones(size, np.float32)
    ours = invert.convert(fn, x, config=PLAIN)(x)
    np.testing.assert_allclose(ours, fn(tf.constant(x)).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["FFTND", "IFFTND", "RFFTND", "IRFFTND"])
def test_transforms_over_any_axes(name: str) -> None:
    # TensorFlow has these ops on other devices than the CPU only.
    given = IMAGE if name == "RFFTND" else (IMAGE + 1j * IMAGE[::-1]).astype(np.complex64)
    lengths, axes = [2, 6], [0, 2]
    transform = getattr(np.fft, name.removesuffix("ND").lower() + "n")
    wanted = transform(given, lengths, axes)

    def fn(x: Any) -> Any:
        return getattr(tf.raw_ops, name)(input=x, fft_length=lengths, axes=axes)

    ours = invert.convert(tf.function(fn, autograph=False), given, config=PLAIN)(given)
    np.testing.assert_allclose(ours, wanted, **CLOSE)


@pytest.mark.parametrize(("size", "stride"), [(400, 160), (64, 7), (2, 1), (2000, 3)])
@pytest.mark.parametrize("squared", [True, False])
def test_audio_spectrograms(size: int, stride: int, squared: bool) -> None:
    def fn(x: Any) -> Any:
        return tf.raw_ops.AudioSpectrogram(
            input=x, window_size=size, stride=stride, magnitude_squared=squared
        )

    x = RNG.normal(size=(1600, 2)).astype(np.float32)
    module = invert.convert(tf.function(fn, autograph=False), x, config=PLAIN)
    # Both compute in double precision, and round once or twice.
    np.testing.assert_allclose(module(x), fn(x), rtol=1.3e-7)


def test_cepstral_coefficients_of_a_spectrogram() -> None:
    def fn(x: Any) -> Any:
        mfcc = tf.raw_ops.Mfcc
        wide = {"dct_coefficient_count": 26, "filterbank_channel_count": 30}
        limits = {"upper_frequency_limit": 7600.0, "lower_frequency_limit": 80.0}
        return [
            mfcc(spectrogram=x, sample_rate=16000),
            mfcc(spectrogram=x, sample_rate=16000, **wide, **limits),
            mfcc(spectrogram=x, sample_rate=7000),  # a limit above all frequencies: zeros
        ]

    x = RNG.normal(size=(2, 8, 257)).astype(np.float32) ** 2
    module = invert.convert(tf.function(fn, autograph=False), x, config=PLAIN)
    for got, want in zip(module(x), fn(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1.3e-7, atol=1e-6)
