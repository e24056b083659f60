"""Special functions and simulated quantization against TensorFlow."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.ops.driver import conversion
from tests.tf.ops.raw import Suite, raw
from tests.tf.ops.samples import REAL, dtype_of, dtypes, sample, special

# TensorFlow gives 1 as the derivative of I1 at 0, which is 1/2, so the grid leaves out 0.
# op: (domain, tolerance, absolute tolerance, tolerance of the gradient), in machine epsilons.
UNARY = {
    "BesselI0": ((-6, 6), 32, 8, 64), "BesselI0e": ((-9, 9), 32, 8, 64),
    "BesselI1": ((-6, 6.1), 32, 8, 64), "BesselI1e": ((-9, 9), 32, 8, 64),
    "BesselJ0": ((-20, 30), 64, 64, 64), "BesselJ1": ((-20, 30), 64, 64, 64),
    "BesselK0": ((0.05, 9), 64, 8, 64), "BesselK0e": ((0.05, 9), 64, 8, 512),
    "BesselK1": ((0.05, 9), 64, 8, 64), "BesselK1e": ((0.05, 9), 64, 8, 512),
    "BesselY0": ((0.05, 30), 64, 64, 64), "BesselY1": ((0.05, 30), 64, 64, 64),
    "Dawsn": ((-9, 9), 64, 8, 128), "Digamma": ((-4.6, 9), 256, 64, 512),
    "Erf": ((-4, 4), 16, 8, 32), "Erfc": ((-4, 4), 64, 8, 64),
    "Erfinv": ((-0.99, 0.99), 64, 8, 128),
    "Expint": ((0.1, 9), 64, 8, 128), "FresnelCos": ((-6, 6), 128, 32, 128),
    "FresnelSin": ((-6, 6), 128, 32, 128), "Lgamma": ((-4.6, 9), 128, 64, 512),
    "Ndtri": ((0.01, 0.99), 64, 8, 128), "Spence": ((0.05, 9), 64, 16, 256),
}  # fmt: skip


def special_cases():
    for op, ((low, high), rtol, atol, grad_rtol) in UNARY.items():
        for dtype in dtypes(op):
            x = np.linspace(low, high, 31).astype(dtype_of(dtype))
            yield raw(op, {"x": x}, rtol=rtol, atol=atol, grad_rtol=grad_rtol)
            yield raw(op, {"x": sample((0, 2), dtype)}, grad=False)
    bessel = [op for op in UNARY if op.startswith("Bessel") and op[6:] not in ("I0", "I1", "Y1")]
    for op in ("Erf", "Erfc", "Erfinv", "Lgamma", "Ndtri", *bessel):
        for dtype in dtypes(op):
            # TensorFlow's Y1 of 0 is NaN in single precision, and the pole in double precision.
            # TensorFlow's erf of an infinity is NaN in double precision.
            x = special(dtype, finite=op == "Erf" and dtype == "float64")
            yield raw(op, {"x": x}, rtol=64, atol=16, grad=False, label="special")
    for dtype in dtypes("Igamma"):
        a = np.array([0.1, 0.5, 1, 2.5, 8])[:, None].astype(dtype_of(dtype))
        x = np.array([0.01, 0.4, 1, 3, 9, 20]).astype(dtype_of(dtype))
        for op in ("Igamma", "Igammac"):
            yield raw(op, {"a": a, "x": x}, rtol=256, atol=64, grad_rtol=2000, grad=True)
        if dtype in dtypes("IgammaGradA"):
            yield raw("IgammaGradA", {"a": a, "x": x}, rtol=2000, atol=64, grad=False)
    for dtype in dtypes("Betainc"):
        a, b = (np.array(v)[:, None].astype(dtype) for v in ([0.5, 1, 3, 7], [2, 0.7, 4, 1]))
        x = np.array([0, 0.1, 0.5, 0.9, 1]).astype(dtype)
        yield raw(
            "Betainc",
            {"a": a + 0 * x, "b": b + 0 * x, "x": x + 0 * a},
            rtol=2000,
            atol=64,
            grad=False,
        )
        inner = x[1:-1] + 0 * a
        yield raw(
            "Betainc",
            {"a": a + 0 * inner, "b": b + 0 * inner, "x": inner},
            rtol=2000,
            atol=64,
            grad_rtol=2000,
        )
    for dtype in dtypes("Zeta"):
        x = np.array([1.5, 2, 4, 9])[:, None].astype(dtype)
        q = np.array([0.5, 1, 3, 8.5]).astype(dtype)
        yield raw("Zeta", {"x": x, "q": q}, rtol=256, atol=64, grad=False)
        yield raw("Zeta", {"q": q}, {"x": x}, rtol=256, atol=64, grad_rtol=512)
        n = np.array([0, 1, 2, 4])[:, None].astype(dtype)
        yield raw("Polygamma", {"a": n, "x": q}, rtol=512, atol=64, grad=False)
        yield raw("Polygamma", {"x": q}, {"a": n}, rtol=512, atol=64, grad_rtol=1024)


SPECIAL = Suite(special_cases())


def fake_quant_cases():
    x = np.concatenate([np.linspace(-9.013, 8.97, 41), [0, -6, 6, -6.02, 6.02]]).astype(np.float32)
    g = sample(x.shape, "float32", 4)
    ranges = [(-6, 6), (0, 1), (-3, 0), (0.5, 4), (-4, -1), (-0.1, 7.7)]
    for low, high in ranges:
        for bits in (8, 4, 2):
            for narrow in (False, True):
                attrs = {"num_bits": bits, "narrow_range": narrow}
                how = {"rtol": None, "grad_rtol": 64}
                fixed = {"min": float(low), "max": float(high), **attrs}
                yield raw("FakeQuantWithMinMaxArgs", {"inputs": x}, fixed, **how)
                yield raw(
                    "FakeQuantWithMinMaxArgsGradient", {"gradients": g, "inputs": x}, fixed, **how
                )
                bounds = {"min": np.float32(low), "max": np.float32(high)}
                yield raw("FakeQuantWithMinMaxVars", {"inputs": x, **bounds}, attrs, **how)
                yield raw(
                    "FakeQuantWithMinMaxVarsGradient",
                    {"gradients": g, "inputs": x, **bounds},
                    attrs,
                    rtol=4,  # sums in another order
                    atol=8,
                    grad=False,
                )
    zero = {"min": np.float32(0), "max": np.float32(0)}
    yield raw("FakeQuantWithMinMaxVars", {"inputs": x, **zero})
    lows, highs = (np.array(v, np.float32) for v in zip(*ranges, strict=True))
    wide = np.stack([x] * 6, -1).reshape(2, -1, 6)
    bounds = {"min": lows, "max": highs}
    yield raw("FakeQuantWithMinMaxVarsPerChannel", {"inputs": wide, **bounds}, grad_rtol=64)
    grads = {"gradients": sample(wide.shape, "float32"), "inputs": wide}
    yield raw(
        "FakeQuantWithMinMaxVarsPerChannelGradient",
        {**grads, **bounds},
        rtol=64,
        atol=64,
        grad=False,
    )


HALF_STEPS = [(-6, 6, 8, False), (-6, 6, 8, True), (-1, 1, 4, False), (-0.7, 2.3, 8, False),
              (-3.1, 1.2, 10, True), (0.5, 4, 8, False)]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "bits", "narrow"), HALF_STEPS)
def test_fake_quant_halfway_between_levels(low, high, bits, narrow):
    """Bitwise, where each rounding matters: at half steps, and at the zero of a range."""
    count = 2**bits - 1 - narrow
    halves = np.arange(-count, count + 0.5, 0.5) * (high - low) / count
    x = np.concatenate([sample((500,), "float32", 1), halves, [np.inf, -np.inf, np.nan]])
    inputs = x.astype(np.float32), np.float32(low), np.float32(high)
    one = tf.quantization.fake_quant_with_min_max_vars
    several = tf.quantization.fake_quant_with_min_max_vars_per_channel
    fixed = tf.quantization.fake_quant_with_min_max_args

    def fn(x, low_, high_):
        twice = tf.stack([x, x], -1)
        found = [fixed(x, low, high, bits, narrow)] if low <= 0 <= high else []
        return [
            *found,
            one(x, low, high, bits, narrow),
            one(x, low_, high_, bits, narrow),
            several(twice, [low] * 2, [high] * 2, bits, narrow),
            several(twice, tf.stack([low_] * 2), tf.stack([high_] * 2), bits, narrow),
        ]

    with jax.enable_x64(True):
        got = jax.jit(
            conversion(fn, [tf.TensorSpec(v.shape, v.dtype) for v in inputs], module=True)
        )(*inputs)
    for g, w in zip(got, fn(*(tf.convert_to_tensor(v) for v in inputs)), strict=True):
        np.testing.assert_array_equal(g, w)


def quantize_cases():
    for dtype in [d for d in dtypes("QuantizeAndDequantizeV2") if d in REAL]:
        x = sample((2, 3, 7), dtype)
        kind = dtype_of(dtype).type
        for low, high in ((-4, 2), (-1, 5), (0, 3)):
            for signed in (True, False):
                for narrow in (False, True):
                    for given in (True, False):
                        if not signed and low < 0:
                            continue
                        attrs = {
                            "signed_input": signed,
                            "num_bits": 4,
                            "range_given": given,
                            "narrow_range": narrow,
                        }
                        inputs = {"input": x, "input_min": kind(low), "input_max": kind(high)}
                        for mode in ("HALF_TO_EVEN", "HALF_UP"):
                            yield raw(
                                "QuantizeAndDequantizeV2",
                                inputs,
                                {**attrs, "round_mode": mode},
                                rtol=4,
                                atol=8,
                            )
                        yield raw(
                            "QuantizeAndDequantizeV4",
                            inputs,
                            attrs,
                            rtol=4,
                            atol=8,
                            grad=given,
                            grad_rtol=64,
                        )
                        fixed = {k: v for k, v in attrs.items() if k != "num_bits"}
                        yield raw(
                            "QuantizeAndDequantizeV3",
                            inputs,
                            {**fixed, "num_bits": np.int32(5)},
                            rtol=4,
                            atol=8,
                        )
        rows = {
            "input_min": np.array([-1, -2, -4]).astype(dtype_of(dtype)),
            "input_max": np.array([2, 1, 8]).astype(dtype_of(dtype)),
        }
        yield raw("QuantizeAndDequantizeV2", {"input": x, **rows}, {"axis": 1}, rtol=4, atol=8)
        grads = {"gradients": sample(x.shape, dtype), "input": x}
        yield raw(
            "QuantizeAndDequantizeV4Grad",
            {**grads, **rows},
            {"axis": 1},
            rtol=64,
            atol=64,
            grad=False,
        )
        yield raw(
            "QuantizeAndDequantizeV4Grad",
            {**grads, "input_min": kind(-2), "input_max": kind(1)},
            rtol=64,
            atol=64,
            grad=False,
        )


QUANTIZE = Suite([*fake_quant_cases(), *quantize_cases()])


test_special = pytest.mark.drawn(12)(SPECIAL.test())
test_quantize = QUANTIZE.test()


def test_expint_outside_its_domain():
    x = np.array([-np.inf, -2.0, -0.5, -0.0, 0.0, 0.5, np.inf, np.nan], np.float32)
    spec = tf.TensorSpec(x.shape, x.dtype)
    fn = tf.function(tf.math.special.expint, autograph=False).get_concrete_function(spec)
    want = tf.math.special.expint(x).numpy()
    np.testing.assert_allclose(invert.convert(fn)(x), want, rtol=1e-5, atol=1e-6)
