"""Elementwise ops in every dtype: special values, gradients at ties and kinks."""

from __future__ import annotations

import functools

import numpy as np

from tests.tf.ops.raw import Suite, raw
from tests.tf.ops.samples import (
    ALL,
    COMPLEX,
    INTS,
    REAL,
    SIGNED,
    UNSIGNED,
    coarse,
    dtype_of,
    dtypes,
    pairs,
    sample,
    smallest,
    special,
)

# Ops whose result is one of a few representable numbers or correctly rounded: compared bitwise.
EXACT_UNARY = """Abs Ceil ComplexAbs Conj Floor Imag Invert IsFinite IsInf IsNan LogicalNot
    Neg OnesLike PopulationCount Real Rint Round Sign Square ZerosLike Relu Sqrt""".split()
# Units in the last place by which XLA and Eigen differ, which use other polynomials: what was found
# in 600,000 numbers over the range of single precision, and in all of the shorter types.
CLOSE_UNARY = {
    "Acos": 4, "Acosh": 3, "Angle": 1, "Asin": 5, "Asinh": 2, "Atan": 4, "Atanh": 2, "Cos": 2,
    "Exp": 2, "Expm1": 5, "Inv": 2, "Log": 3, "Log1p": 3, "Reciprocal": 2, "Rsqrt": 3,
    "Sigmoid": 4, "Sin": 2, "Tan": 2, "Tanh": 4,
    # XLA takes the exponential of x - log(2), rounded: at 20 that is 8 units.
    "Cosh": 9, "Sinh": 9,
}  # fmt: skip
# The logarithm of 1 + x in XLA, with a step at sqrt(1/2) and sqrt(2).
INEXACT_DOUBLES = {"Atanh": 80, "Log1p": 128}
# Where the derivative is a difference of a rounded result and 1, of which an absolute error stays.
CANCELS = ("Expm1", "Sigmoid", "Tanh")
# Domains where a random argument is of interest, for gradients.
DOMAIN = {
    "Acos": (-1, 1), "Asin": (-1, 1), "Atanh": (-1, 1), "Acosh": (1, 9), "Log": (0, 9),
    "Log1p": (-1, 9), "Sqrt": (0, 9), "Rsqrt": (0, 9),
}  # fmt: skip


def unary_cases(op, ulps):
    found = []
    # TensorFlow 2.21 rounds whole numbers to 0.
    for dtype in {"LogicalNot": ["bool"], "Round": REAL}.get(op) or dtypes(op):
        rtol, atol = ulps, smallest(dtype) if ulps else 0
        if dtype == "float64":
            rtol = INEXACT_DOUBLES.get(op, ulps)
        if dtype in COMPLEX and op not in COMPLEX_EXACT:
            # Parts are products and sums; the logarithm of what is near 1 is small.
            rtol, atol = max(ulps or 0, 3), 1
            if op == "Log" and dtype == "complex128":
                rtol = 32  # by way of the logarithm of 1 + x
        key = {"Relu": "features"}.get(op, "input" if op in COMPLEX_INPUT else "x")
        real = op in ("ComplexAbs", "Real", "Imag", "Angle") and dtype in COMPLEX
        attrs = {"Tout": f"float{dtype_of(dtype).itemsize * 4}"} if real else {}
        slope = {"grad_rtol": 4, "grad_atol": 8 if op in CANCELS else 1}
        if op == "Tan" and dtype in COMPLEX:
            slope["grad_rtol"] = 24  # near its poles: the square of the result
        case = functools.partial(raw, op, attrs=attrs, rtol=rtol, atol=atol, **slope)
        found.append(case({key: special(dtype)}, grad=False))
        found.append(case({key: sample((2, 0), dtype)}, grad=False, label="empty"))
        low, high = DOMAIN.get(op, (-9, 9))
        if dtype in REAL + COMPLEX:
            x = np.linspace(low, high, 24)[1:-1]
            x = np.concatenate([x, [low, 0, high] if op in KINKS and dtype in REAL else []]).astype(
                dtype_of(dtype)
            )
            if dtype in COMPLEX and op not in DOMAIN:
                x = x + sample(x.shape, dtype)
            found.append(case({key: x}, label="gradient"))
    return found


COMPLEX_EXACT = ("Conj", "Imag", "Real", "Neg", "OnesLike", "ZerosLike")
COMPLEX_INPUT = ("Angle", "Conj", "Imag", "Real")
# Functions whose derivative at 0 or at the ends of the domain is of interest.
KINKS = ("Abs", "ComplexAbs", "Relu", "Sign", "Sqrt", "Acos", "Asin", "Floor", "Round")


UNARY_SUITE = Suite(
    [c for op in EXACT_UNARY for c in unary_cases(op, None)]
    + [c for op, ulps in CLOSE_UNARY.items() for c in unary_cases(op, ulps)]
)


def shift_amounts(dtype):
    bits = dtype_of(dtype).itemsize * 8
    return np.resize(np.arange(bits), special(dtype).size ** 2).astype(dtype)


BINARY = {
    # op: tolerance
    **dict.fromkeys(
        """Add AddV2 Sub Mul Div RealDiv TruncateDiv FloorDiv FloorMod TruncateMod Mod DivNoNan
        MulNoNan Maximum Minimum SquaredDifference BitwiseAnd BitwiseOr BitwiseXor LeftShift
        RightShift Greater GreaterEqual Less LessEqual Equal NotEqual LogicalAnd LogicalOr Complex
        NextAfter Xdivy ApproximateEqual""".split()
    ),
    # XLA multiplies by the reciprocal of what is broadcast.
    **dict.fromkeys("Div RealDiv DivNoNan Xdivy".split(), 1),
    # Other polynomials than Eigen's.
    **dict.fromkeys("Atan2 Pow Xlogy Xlog1py".split(), 2),
    # A product of several factors, some of which are added to before they are rounded.
    **dict.fromkeys("InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad".split(), 2),
}
KEYS = {
    **dict.fromkeys("LogicalAnd LogicalOr".split(), ("x", "y")),
    "Complex": ("real", "imag"),
    "Atan2": ("y", "x"),
    "NextAfter": ("x1", "x2"),
    **{op: ("y", "dy") for op in BINARY if op.endswith("Grad")},
}
DIVISIONS = "Div RealDiv TruncateDiv FloorDiv FloorMod TruncateMod Mod".split()


def binary_dtypes(op):
    if op.startswith("Logical"):
        return ["bool"]
    if op in ("RealDiv", "TruncateDiv", "Mod") or ("Bitwise" not in op and "Shift" not in op):
        return dtypes(op)
    return [d for d in dtypes(op) if d in INTS]


def binary_cases(op, rtol):
    found = []
    a, b = KEYS.get(op, ("x", "y"))
    for dtype in binary_dtypes(op):
        attrs = {"Tout": "complex128"} if op == "Complex" and dtype == "float64" else {}
        tolerance = 3 * (rtol or 1) if dtype in COMPLEX and "qual" not in op else rtol
        atol = smallest(dtype) if tolerance else 0
        case = functools.partial(raw, op, attrs=attrs, rtol=tolerance, atol=atol)
        x, y = pairs(dtype)
        if op in DIVISIONS and dtype in INTS:
            # TensorFlow raises on a zero divisor; a quotient that overflows is undefined.
            keep = (y != 0) & ~(y == dtype_of(dtype).type(-1 if dtype in SIGNED else 1))
            x, y = x[keep], y[keep]
        if op == "Pow" and dtype in INTS:
            x, y = coarse((7,), dtype), np.arange(7).astype(dtype)
        if dtype in COMPLEX and op in (*DIVISIONS, "Xdivy", "Pow", "SqrtGrad"):
            keep = (x if op in ("Pow", "SqrtGrad") else y) != 0
            x, y = x[keep], y[keep]  # infinite for XLA, NaN for Eigen
        if "Shift" in op:
            y = shift_amounts(dtype)
        found.append(case({a: x, b: y}, grad=False))
        if dtype in COMPLEX or not op.endswith("Grad"):
            x, y = sample((3, 1, 5), dtype, 0), coarse((4, 1), dtype, 1)
            if op in (*DIVISIONS, "Xdivy", "Pow", "LeftShift", "RightShift"):
                y = np.abs(y) + dtype_of(dtype).type(1)
            if op == "Pow" and dtype in REAL:
                x = np.abs(x)
            grad = dtype not in COMPLEX or op in HOLOMORPHIC
            if not op.endswith("Grad") and op != "ApproximateEqual":
                found.append(case({a: x, b: y}, label="broadcast", grad=grad))
        found.append(case({a: sample((2, 0), dtype), b: sample((2, 0), dtype)}, grad=False))
        if dtype in REAL and op not in GRADIENTS_DIFFER:
            x, y = coarse((40,), dtype, 2), coarse((40,), dtype, 3)
            if op == "SqrtGrad":
                x, y = x[x != 0], y[x != 0]
            found.append(case({a: x, b: y}, label="ties and zeros"))
    return found


# TensorFlow forgets to conjugate in the gradients of the others.
HOLOMORPHIC = "Add AddV2 Sub Mul Div RealDiv".split()
# NaN and 0 in other places where the function has no derivative.
GRADIENTS_DIFFER = "Pow Atan2".split()


BINARY_SUITE = Suite(c for op, rtol in BINARY.items() for c in binary_cases(op, rtol))


test_binary = BINARY_SUITE.test()
test_unary = UNARY_SUITE.test()


def misc_cases():
    for dtype in REAL:
        for n in (-3, -1, -0.5, 0, 0.5, 1, 2, 3):
            y = np.asarray(n).astype(dtype_of(dtype))
            x = np.array([0.5, 2, 3.25]).astype(dtype_of(dtype))
            yield raw("Pow", {"x": x}, {"y": y}, rtol=8, label="constant exponent")
            if n in (2, 3):
                x = np.array([0, -2, np.inf, -np.inf, np.nan]).astype(dtype_of(dtype))
                yield raw("Pow", {"x": x}, {"y": y}, rtol=8, label="constant exponent")
    for source in ALL:
        for target in ALL:
            x = sample((3, 4), source) if source in INTS else sample((3, 4), source, scale=40)
            if source in REAL + COMPLEX and target in UNSIGNED:
                x = np.abs(x).astype(x.dtype)  # undefined for numbers that do not fit
            yield raw("Cast", {"x": x}, {"DstT": target}, grad=source in REAL)
    for source, target in (("float32", "bfloat16"), ("float64", "float32"), ("float32", "float16")):
        x = sample((50,), source)
        yield raw("Cast", {"x": x}, {"DstT": target, "Truncate": True}, grad=False)
    for source in [d for d in ALL if d != "bool"]:
        for target in [d for d in ALL if d != "bool"]:
            a, b = dtype_of(source).itemsize, dtype_of(target).itemsize
            shape = (2, 3, b // a) if b > a else (2, 3)
            x = sample(shape, source)
            yield raw("Bitcast", {"input": x}, {"type": target}, grad=False)
    for dtype in ALL:
        x, y, z = (sample((3, 4), dtype, k) for k in range(3))
        which = sample((3, 4), "bool")
        yield raw("Select", {"condition": which, "x": x, "y": y})
        yield raw("Select", {"condition": which[:, 0], "x": x, "y": y}, label="rows")
        yield raw("Select", {"condition": which[0, 0], "x": x, "y": y}, label="scalar")
        yield raw("SelectV2", {"condition": which[:, :1], "t": x[:1], "e": y}, label="broadcast")
        yield raw("SelectV2", {"condition": which, "t": x[0, 0], "e": y}, label="broadcast")
        yield raw("SelectV2", {"condition": which[0, :0], "t": x[:, :0], "e": y[0, 0]})
        if dtype != "bool":
            yield raw("AddN", {"inputs": [x, y, z]}, rtol=2)
        if dtype in [d for d in dtypes("ClipByValue") if d not in COMPLEX]:
            x = coarse((40,), dtype)
            low, high = (np.asarray(v).astype(dtype_of(dtype)) for v in (0, 1))
            bounds = {"clip_value_min": low, "clip_value_max": high}
            yield raw("ClipByValue", {"t": x, **bounds})
            yield raw("ClipByValue", {"t": special(dtype)}, bounds, grad=False)
        if dtype in dtypes("Cross"):
            a, b = (sample((4, 3), dtype, k) for k in range(2))
            yield raw("Cross", {"a": a, "b": b}, rtol=8, atol=64)
        for op in ("Equal", "NotEqual"):
            yield raw(op, {"x": x[:3], "y": y}, {"incompatible_shape_error": False})
            yield raw(op, {"x": special(dtype), "y": special(dtype)[:1]})


# On both sides of the branch cut.
QUADRANTS = np.array([1 + 2j, -1 + 2j, -1.5 - 1j, 2 - 0.5j], np.complex64)

# Wrap-around of 8-bit numbers.
MISC = Suite(
    [
        *misc_cases(),
        raw("Acosh", {"x": QUADRANTS}, rtol=16, atol=8),
        raw("AddN", {"inputs": [np.full(3, 100, np.int8)] * 3}),
        raw("AddN", {"inputs": [np.full(3, 200, np.uint8)] * 2}),
    ]
)


test_misc = MISC.test()
