"""Elementwise ops at the edges of their dtypes: infinities, signed zeros, subnormals, NaN.

A result is right if it equals that of TensorFlow's kernel or of TensorFlow compiled with XLA; those
differ at many of these values.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from invert.primitives.tf import elementwise, nn, special
from tests.tf.ops.cases import Drawn, case, dtypes_of, recipes_of
from tests.tf.ops.driver import FAILURES, TOLERANCE, by_xla, converted_together, run_tensorflow
from tests.tf.ops.exceptions import DIFFERENCES
from tests.tf.ops.table import TABLE

_TABLES = (
    elementwise.UNARY, elementwise.BINARY, special.FUNCTIONS, nn.ACTIVATIONS, nn.GRADIENTS
)  # fmt: skip
_MORE = ("Equal", "LeakyRelu", "LeakyReluGrad", "NotEqual", "Pow")
# Not elementwise, of three arguments, or without values to compare.
_OTHERS = ("Betainc", "L2Loss", "OnesLike", "ToBool", "ZerosLike")
OPS = tuple(sorted({*_MORE, *itertools.chain(*_TABLES)} - set(_OTHERS)))

# Where `a` and `x` are huge, XLA's loop adds up terms that stay equal: for seconds, or for hours.
_ENDLESS = {("Igamma", "float32"), ("Igamma", "float64")}


def _numbers(dtype: np.dtype, few: bool = False) -> np.ndarray:
    """The edges of a dtype of real numbers."""
    if dtype == np.bool_:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = (info.min, info.min + 1, *((-3, -2, -1) if info.min else ()))
        return np.array([*low, 0, 1, 2, 3, info.max - 1, info.max], dtype)
    info = jnp.finfo(dtype)
    between = (info.smallest_subnormal, info.tiny, info.eps, 0.5, 1, 1.5, 3, 100, info.max)
    above = np.array([0, 1, np.inf] if few else [0, *map(float, between), np.inf])
    return np.concatenate([above, -above, [np.nan]]).astype(dtype)


def _edges(dtype: np.dtype, few: bool) -> np.ndarray:
    if dtype.kind != "c":
        return _numbers(dtype)
    parts = _numbers(np.dtype(f"float{dtype.itemsize * 4}"), few)
    # Not a sum, which has NaN for an infinity times the unit.
    return np.array(list(itertools.product(parts, parts))).view(dtype).reshape(-1)


def edge_case(op: str, dtype: str) -> Drawn:
    """The first recipe of an op, with all combinations of edges as inputs."""
    one = case(op, 0, recipes_of(op, TABLE)[0], dtype)
    edges = [_edges(v.dtype, few=len(one.inputs) > 1) for v in one.inputs]
    inputs = [v.reshape(-1) for v in np.meshgrid(*edges, indexing="ij")]
    if ("Div" in op or "Mod" in op) and inputs[1].dtype.kind in "iu":
        inputs = [v[inputs[1] != 0] for v in inputs]  # which is an error in TensorFlow
    if op == "Pow" and inputs[1].dtype.kind in "iu":
        inputs = [v[inputs[1] >= 0] for v in inputs]  # as well
    return dataclasses.replace(one, inputs=tuple(inputs))


def edge_cases(op: str) -> list[Drawn]:
    """The edges of an op in all dtypes."""
    known = DIFFERENCES.get(op, {})
    dtypes = dtypes_of(op, recipes_of(op, TABLE)[0])
    return [edge_case(op, dtype) for dtype in dtypes if f"values {dtype}" not in known]


@dataclasses.dataclass(frozen=True)
class Excuse:
    """A known difference from both of TensorFlow's results.

    **Arguments:**

    - `where`: whether the inputs are of those that are excused.
    - `signs`: whether it is the sign of a zero alone that may differ.
    - `always`: whether every version of JAX needs it.
    """

    reason: str
    where: Callable[..., Any]
    signs: bool = False
    always: bool = True


def _is_complex(x: Any, *rest: Any) -> Any:
    return x.dtype.kind == "c"


def _smallest(x: Any, *rest: Any) -> Any:
    """Whether a part is zero, or at most the smallest normal number."""
    if x.dtype.kind == "c":
        return _smallest(x.real) | _smallest(x.imag)
    return np.abs(x.astype(np.float64)) <= float(jnp.finfo(x.dtype).tiny)


def _largest(x: Any, *rest: Any) -> Any:
    return np.isfinite(x) & (np.abs(x).astype(np.float64) > float(jnp.finfo(x.dtype).max) / 2)


_ODD = Excuse(
    "odd functions keep the sign of zero, which TensorFlow's kernel drops",
    lambda x: x <= 0,
    signs=True,
)
_PHASE = Excuse("the phase of a number this large is lost in rounding", _largest)
_LAX = Excuse(
    "TensorFlow's lowering to XLA is the primitive of `lax` as well, and versions of XLA differ",
    _is_complex,
    always=False,
)
_POLE = Excuse(
    "the primitive of `lax` has minus infinity for NaN at the pole in newer versions of JAX",
    lambda *operands: np.logical_and.reduce([_smallest(x) for x in operands]),
    always=False,
)
_MAXIMUM = Excuse(
    "XLA leaves it open which zero is the larger one", lambda x: x.dtype.itemsize == 2, signs=True
)
_COTANGENT = (
    Excuse(
        "a zero cotangent gives a zero of the formula's sign; TensorFlow's has none",
        lambda y, dy: _smallest(dy),
        signs=True,
    ),
    Excuse(
        "the sign of a zero part of a complex product depends on the order of factors",
        _is_complex,
        signs=True,
    ),
)
_HALF = Excuse(
    "TensorFlow has no kernel in half precision, and what XLA gives for such numbers is neither "
    "this nor what its kernels give in other precisions",
    lambda a, x: (x.dtype.itemsize == 2) & ~((a > 0) & (a <= 100) & (x > 0)),
)
_EQUAL = Excuse(
    "TensorFlow's loop gives up for equal numbers this large, and for the smallest number",
    lambda a, x: ((a == x) & (_largest(a) | np.isinf(a))) | ((a > 0) & _smallest(a)),
)

EXCUSES: dict[str, tuple[Excuse, ...]] = {
    "BesselI1": (_ODD,),
    "BesselJ0": (_PHASE,),
    "BesselJ1": (_PHASE,),
    "BesselY0": (_PHASE,),
    "BesselY1": (
        _PHASE,
        Excuse("TensorFlow has the pole in double precision, and NaN in others", _smallest),
    ),
    "Dawsn": (_ODD,),
    **dict.fromkeys("ComplexAbs Cos Log Log1p Sign Sin Sqrt Square".split(), (_LAX,)),
    "Digamma": (_POLE,),
    "Igamma": (_HALF, _EQUAL),
    "Igammac": (_HALF, _EQUAL),
    "InvGrad": (
        *_COTANGENT,
        Excuse("the square overflows, as where XLA compiles ReciprocalGrad", _largest),
    ),
    "MulNoNan": (
        Excuse("a product with zero has the sign of a product; TensorFlow's has none",
               lambda x, y: _smallest(y), signs=True),
    ),
    "Ndtri": (
        Excuse("TensorFlow takes the negative number nearest to zero for zero",
               lambda x: (x < 0) & _smallest(x)),
    ),
    "Polygamma": (
        _POLE,
        Excuse("the factorial overflows, of which TensorFlow's kernel and XLA give either infinity",
               _largest),
        Excuse("the limit is zero, which TensorFlow multiplies with an infinite factorial",
               lambda n, x: x == np.inf),
    ),
    **dict.fromkeys("ReciprocalGrad RsqrtGrad SqrtGrad".split(), _COTANGENT),
    "Relu": (_MAXIMUM,),
    "Relu6": (_MAXIMUM,),
}  # fmt: skip


def _parts(x: Any) -> list[Any]:
    return [x.real, x.imag] if x.dtype.kind == "c" else [x]


def differing(got: Any, want: Any, names: Sequence[str], signs: bool = True) -> np.ndarray:
    """Where results differ: in NaN, infinities or values, or in the signs of zeros."""
    if not jnp.issubdtype(want.dtype, jnp.inexact):
        return got != want
    rtol = max(TOLERANCE.get(n, 0.0) for n in names)
    out = np.zeros(want.shape, bool)
    with np.errstate(all="ignore"):
        margin = rtol * np.abs(want).astype(np.float64)
        for g, w in zip(_parts(got), _parts(want), strict=True):
            tiny = float(jnp.finfo(w.dtype).tiny)
            g, w = g.astype(np.float64), w.astype(np.float64)
            same = (g == w) | (np.abs(g - w) <= margin)
            # Whether subnormals are numbers or zeros is up to the processor's settings.
            same |= (np.abs(g) <= tiny) & (np.abs(w) <= tiny)
            if signs:
                same &= (np.signbit(g) == np.signbit(w)) | (np.maximum(np.abs(g), np.abs(w)) > tiny)
            out |= ~(same | (np.isnan(g) & np.isnan(w)))
    return out


def _flushed(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c" or not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    small = np.abs(x.astype(np.float64)) < float(jnp.finfo(x.dtype).tiny)
    return np.where(small, np.copysign(np.zeros((), x.dtype), x), x)


def _by_kernel(one: Drawn) -> list[list[np.ndarray]]:
    """Results of TensorFlow's kernel, if any, with subnormals and with them flushed to zero.

    Whether the kernel flushes them depends on the thread that runs it.
    """
    flushed = dataclasses.replace(one, inputs=tuple(map(_flushed, one.inputs)))
    try:
        return [run_tensorflow(c, c.function, "eager") for c in (one, flushed)]
    except FAILURES:
        return []


def check_edges(cases: Sequence[Drawn]) -> tuple[list[str], set[tuple[str, int]]]:
    """Differences from both of TensorFlow's results, and the numbers of the excuses needed."""
    short = [c for c in cases if (c.op, c.dtype) not in _ENDLESS]
    compiled = dict(zip(map(id, short), by_xla(short), strict=True))
    ran: list[tuple[Drawn, list[list[np.ndarray]]]] = []
    for one in cases:
        wants = [compiled.get(id(one)), *_by_kernel(one)]
        known = [w for w in wants if w is not None]
        if known:
            ran.append((one, known))
    wrong: list[str] = []
    needed: set[tuple[str, int]] = set()
    if not ran:
        return wrong, needed
    with jax.enable_x64(True):
        program = converted_together([(one, one.function) for one, _ in ran])
        results = program(*(x for one, _ in ran for x in one.inputs))
    for (one, wants), result in zip(ran, results, strict=True):
        got, known = np.asarray(result), [want for (want,) in wants]
        names = [str(v.dtype) for v in (*one.inputs, got)]
        assert all(got.dtype == w.dtype and got.shape == w.shape for w in known), one.name
        differs, but_for_signs = (
            np.logical_and.reduce([differing(got, w, names, signs) for w in known])
            for signs in (True, False)
        )
        left = differs.copy()
        for number, excuse in enumerate(EXCUSES.get(one.op, ())):
            with np.errstate(all="ignore"):
                holds = differs & excuse.where(*one.inputs)
            if excuse.signs:
                holds &= ~but_for_signs
            left &= ~holds
            if holds.any():
                needed.add((one.op, number))
        for at in np.flatnonzero(left):
            given = ", ".join(str(v[at]) for v in one.inputs)
            expected = " or ".join(str(w[at]) for w in known)
            wrong.append(f"{one.name}({given}): {got[at]}, not {expected}")
    return wrong, needed
