"""Runs raw TensorFlow ops and their conversions side by side, many cases in one program.

A family of cases is one `tf.function`, converted and compiled once: a program for each case would
spend all its time in compilers. TensorFlow's own result comes from running the op eagerly.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import invert
from invert._config import Config

COMMON = ("float32", "int32", "bool")
PLAIN = Config(patterns=False, verify=False)

REAL = "float16 bfloat16 float32 float64".split()
COMPLEX = ["complex64", "complex128"]
SIGNED = "int8 int16 int32 int64".split()
UNSIGNED = "uint8 uint16 uint32 uint64".split()
INTS = SIGNED + UNSIGNED
MOVED = "float16 bfloat16 float32 float64 complex64 complex128 int8 int64 uint8 int32 bool".split()
ALL = [*REAL, *COMPLEX, *INTS, "bool"]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One call of a raw op.

    **Arguments:**

    - `op`: name in `tf.raw_ops`.
    - `inputs`: arrays that become arguments of the function; a list for an op that takes one.
    - `attrs`: attributes, and inputs that are constants in the graph.
    - `rtol`: how far values may be apart, in units of the machine epsilon of the dtype; `None`:
        bitwise (but for the sign of zeros). `atol`: the same, absolute.
    - `grad`: whether gradients are compared, in all floating inputs.
    - `grad_rtol`, `grad_atol`: as `rtol` and `atol`, for gradients.
    - `reference`: takes the place of TensorFlow, where the behaviour wanted is another one.
    - `label`: told in messages.
    """

    op: str
    inputs: Mapping[str, Any]
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rtol: float | None = None
    atol: float = 0.0
    grad: bool = True
    grad_rtol: float = 32.0
    grad_atol: float | None = None
    reference: Callable[..., Sequence[np.ndarray]] | None = None
    label: str = ""

    def flat(self) -> list[np.ndarray]:
        return tf.nest.flatten(dict(self.inputs))

    def dtype(self) -> str:
        """The widest kind among the inputs: that of the data, where indices are inputs too."""
        names = [x.dtype.name for x in self.flat()] or ["float32"]
        return max(names, key=lambda n: ("int" not in n, n))

    def call(self, flat: Sequence[Any]) -> list[Any]:
        inputs = tf.nest.pack_sequence_as(dict(self.inputs), list(flat))
        attrs = {k: constants(v) for k, v in self.attrs.items()}
        out = getattr(tf.raw_ops, self.op)(**inputs, **attrs)
        return [t for t in tf.nest.flatten(out) if t is not None]

    def describe(self) -> str:
        shapes = ", ".join(f"{k}={_short(v)}" for k, v in self.inputs.items())
        attrs = ", ".join(f"{k}={_text(v)}" for k, v in self.attrs.items())
        return f"{self.op}({shapes}; {attrs}) {self.label}"


def constants(value: Any) -> Any:
    """Arrays as tensors of their own dtype: eager ops would take 64-bit integers for 32-bit."""
    if isinstance(value, np.ndarray | np.generic):
        return tf.constant(value)
    return [constants(v) for v in value] if isinstance(value, list) else value


def _short(v: Any) -> str:
    return f"{v.dtype}{v.shape}" if hasattr(v, "dtype") else str([_short(x) for x in v])


def _text(v: Any) -> str:
    return str(v).replace("\n", " ")[:60]


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def dtypes(op: str, attr: str = "T") -> list[str]:
    """Names of the numeric dtypes that the definition of an op allows."""
    definition = op_def_registry.get(op)
    assert definition is not None, op
    for a in definition.attr:
        if a.name == attr:
            allowed = [tf.dtypes.as_dtype(e).name for e in a.allowed_values.list.type]
            return [d for d in ALL if d in allowed] if allowed else ALL
    raise KeyError(f"{op} has no attribute {attr}")


def rng(*key: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def sample(shape: Sequence[int], dtype: str, key: Any = 0, *, scale: float = 3.0) -> np.ndarray:
    """Random numbers that `dtype` holds exactly; integers are small."""
    r, kind = rng(tuple(shape), dtype, key), dtype_of(dtype)
    if dtype == "bool":
        return np.asarray(r.random(shape) > 0.5)
    if dtype in COMPLEX:
        return np.asarray(r.normal(size=shape) + 1j * r.normal(size=shape)).astype(kind)
    if dtype in INTS:
        return np.asarray(r.integers(0 if dtype in UNSIGNED else -9, 9, shape)).astype(kind)
    return np.asarray(r.normal(size=shape) * scale).astype(kind)


def coarse(shape: Sequence[int], dtype: str, key: Any = 0) -> np.ndarray:
    """Small whole numbers, so that there are ties and zeros, in any dtype."""
    x = rng(tuple(shape), dtype, key, "coarse").integers(
        -2 if dtype not in UNSIGNED else 0, 3, shape
    )
    return np.asarray(x).astype(dtype_of(dtype))


def special(dtype: str, *, finite: bool = False) -> np.ndarray:
    """Zeros, ones, halves, large and small numbers, infinities and NaN."""
    kind = dtype_of(dtype)
    if dtype == "bool":
        return np.array([True, False])
    if dtype in INTS:
        info = np.iinfo(kind)
        values = [0, 1, 2, 3, 7, info.max, info.min, info.max - 1]
        return np.array(values + ([-1, -2, -5] if dtype in SIGNED else []), kind)
    values = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3, -7, 0.1, 10.25, -20.5]
    if not finite:
        values += [np.inf, -np.inf, np.nan]
    if dtype in COMPLEX:
        values = [complex(a, b) for a in (0, 1, -2.5) for b in (0, 0.5, -3)]
    return np.array(values).astype(kind)


def pairs(dtype: str, *, finite: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of the special values."""
    a = special(dtype, finite=finite)
    x, y = np.meshgrid(a, a)
    return x.ravel(), y.ravel()


def eps(dtype: Any) -> float:
    kind = np.dtype(dtype)
    if kind.kind == "c":
        kind = np.dtype(np.float32 if kind.itemsize == 8 else np.float64)
    return float(ml_dtypes.finfo(kind).eps)


def smallest(dtype: str) -> float:
    """The smallest normal number, in units of the machine epsilon: XLA takes less for zero."""
    kind = dtype_of(dtype)
    return float(ml_dtypes.finfo(kind).tiny) / eps(kind) if dtype in REAL else 0.0


def is_float(x: Any) -> bool:
    return np.dtype(x.dtype).kind in "fc" or np.dtype(x.dtype) == ml_dtypes.bfloat16


def difference(got: Any, want: Any, rtol: float | None, atol: float) -> str | None:
    """Says how two arrays differ; `None` where they agree."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if not is_float(want):
        where = got != want
    else:
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        g, w, unit = got.astype(wide), want.astype(wide), eps(want.dtype)
        with np.errstate(invalid="ignore"):
            close = np.isclose(g, w, rtol=(rtol or 0.0) * unit, atol=atol * unit, equal_nan=True)
            where = ~(close | (g == w) | (np.isnan(g) & np.isnan(w)))
    if not where.any():
        return None
    index = tuple(int(i[0]) for i in np.nonzero(where)) if where.ndim else ()
    return f"{int(where.sum())} of {where.size} differ; at {index} {got[index]} != {want[index]}"


class Family:
    """Cases that are converted together, and what each gave."""

    def __init__(self, cases: Sequence[Case]):
        self.absent: list[str] = []  # TensorFlow has no kernel for these
        self.refused: list[tuple[str, str]] = []
        self.cases: list[Case] = []
        self.want: list[Sequence[np.ndarray]] = []
        self.want_grads: list[list[Any] | None] = []
        self.cotangents: list[list[np.ndarray]] = []
        for case in cases:
            self._reference(case)
        self.errors: dict[int, str] = {}
        self.got, self.got_grads = self._convert()

    def _reference(self, case: Case) -> None:
        flat = [tf.constant(x) for x in case.flat()]
        if case.reference is not None:
            self.cases.append(case)
            self.want.append(case.reference(**case.inputs, **case.attrs))
            self.want_grads.append(None)
            self.cotangents.append([])
            return
        try:
            outputs = case.call(flat)
        except (tf.errors.NotFoundError, tf.errors.UnimplementedError) as e:
            self.absent.append(f"{case.describe()}: {type(e).__name__}")
            return
        except tf.errors.InvalidArgumentError as e:
            if "No OpKernel" not in str(e) and "Could not find device" not in str(e):
                self.refused.append((case.op, f"{case.describe()}: TensorFlow refuses: {e}"[:500]))
                return
            self.absent.append(f"{case.describe()}: {type(e).__name__}")
            return
        self.cases.append(case)
        self.want.append([t.numpy() for t in outputs])
        self.cotangents.append([cotangent(i, t) for i, t in enumerate(outputs)])
        grads = tf_gradients(case, flat, self.cotangents[-1]) if case.grad else None
        self.want_grads.append(grads)

    def _convert(self) -> tuple[list[Any], list[Any]]:
        try:
            return self._run(range(len(self.cases)))
        except Exception:  # one case spoils the program of all: find it
            count = len(self.cases)
            got, grads = [None] * count, [None] * count
            for i, case in enumerate(self.cases):
                try:
                    (got[i],), (grads[i],) = self._run([i])
                except Exception as e:  # noqa: BLE001
                    self.errors[i] = f"{case.describe()}: {type(e).__name__}: {e}"[:700]
            if not self.errors:
                raise
            return got, grads

    def _run(self, chosen: Sequence[int]) -> tuple[list[Any], list[Any]]:
        cases = [self.cases[i] for i in chosen]
        counts = [len(c.flat()) for c in cases]
        arrays = [x for c in cases for x in c.flat()]

        def program(*flat: Any) -> list[Any]:
            return [c.call(part) for c, part in zip(cases, split(flat, counts), strict=True)]

        with jax.enable_x64(True):
            module = convert(program, arrays)
            got = jax.jit(lambda *a: module(*a))(*arrays)
            wanted = [self.want_grads[i] is not None for i in chosen]
            mask = [is_float(x) and w for c, w in zip(cases, wanted, strict=True) for x in c.flat()]
            if not any(mask):
                return [list(g) for g in got], [None] * len(cases)
            cotangents = [
                [c for c in self.cotangents[i] if is_float(c)] if w else []
                for i, w in zip(chosen, wanted, strict=True)
            ]
            grads = gradients(module, arrays, mask, wanted, cotangents)
            return [list(g) for g in got], split(grads, counts)

    def check(self, op: str) -> None:
        """Fails with everything that is wrong with the cases of `op`."""
        wrong = [e for i, e in self.errors.items() if self.cases[i].op == op]
        wrong += [text for name, text in self.refused if name == op]
        count = 0
        for i, case in enumerate(self.cases):
            if case.op != op or i in self.errors:
                continue
            count += 1
            for k, (g, w) in enumerate(zip(self.got[i], self.want[i], strict=True)):
                text = difference(g, w, case.rtol, case.atol)
                wrong += [f"{case.describe()}: result {k}: {text}"] if text else []
            atol = max(case.atol, 8.0) if case.grad_atol is None else case.grad_atol
            for k, (g, w) in enumerate(
                zip(self.got_grads[i] or (), self.want_grads[i] or (), strict=False)
            ):
                known = g is not None and w is not None
                text = known and difference(g, w, case.grad_rtol, atol)
                wrong += [f"{case.describe()}: gradient {k}: {text}"] if text else []
        assert not wrong, f"{len(wrong)} wrong, {count} cases:\n" + "\n".join(wrong[:10])
        assert count, f"TensorFlow ran no case of {op}: {self.absent[:5]}"


class Suite:
    """Cases of one family of ops: a few of the usual dtypes run always, the others are slow."""

    def __init__(self, cases: Iterable[Case], few: int = 3):
        self.cases: dict[str, list[Case]] = {"common": [], "others": []}
        by_op: dict[str, list[Case]] = {}
        for case in cases:
            by_op.setdefault(case.op, []).append(case)
        for found in by_op.values():
            usual = [c for c in found if c.dtype() in COMMON] or found
            chosen = usual[:: -(-len(usual) // few)]
            self.cases["common"] += chosen
            self.cases["others"] += [c for c in found if c not in chosen]
        self.families: dict[str, Family] = {}

    def family(self, part: str) -> Family:
        if part not in self.families:
            self.families[part] = Family(self.cases[part])
        return self.families[part]

    def params(self) -> list[Any]:
        marks = {"common": (), "others": pytest.mark.slow}
        return [
            pytest.param(part, op, marks=marks[part])
            for part, cases in self.cases.items()
            for op in dict.fromkeys(c.op for c in cases)
        ]

    def check(self, part: str, op: str) -> None:
        family = self.family(part)
        if part == "others" and all(c.op != op for c in family.cases):
            pytest.skip("TensorFlow has no kernel for these dtypes")
        family.check(op)


def gradients(
    module: Any, arrays: list[Any], mask: list[bool], wanted: list[bool], cotangents: list[Any]
) -> list[Any]:
    """Reverse mode through the module, with TensorFlow's convention for complex numbers."""

    def run(moving: list[Any]) -> list[Any]:
        values = iter(moving)
        out = module(*(next(values) if m else x for x, m in zip(arrays, mask, strict=True)))
        return [
            [y for y in ys if is_float(y)] if w else [] for ys, w in zip(out, wanted, strict=True)
        ]

    def pull(moving: list[Any], cotangents: list[Any]) -> list[Any]:
        flip = jax.tree_util.Partial(jax.tree_util.tree_map, jax.numpy.conj)
        return flip(jax.vjp(run, moving)[1](flip(cotangents))[0])

    found = iter(jax.jit(pull)([x for x, m in zip(arrays, mask, strict=True) if m], cotangents))
    return [next(found) if m else None for m in mask]


def split(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    ends = np.cumsum(counts)
    return [list(values[e - n : e]) for e, n in zip(ends, counts, strict=True)]


def convert(program: Any, arrays: Sequence[Any], config: Config = PLAIN) -> Any:
    specs = [tf.TensorSpec(np.shape(x), np.asarray(x).dtype) for x in arrays]
    concrete = tf.function(program, autograph=False).get_concrete_function(*specs)
    return invert.convert(concrete, config=config)


def cotangent(i: int, t: Any) -> np.ndarray:
    value = t.numpy()
    return sample(value.shape, t.dtype.name, ("cotangent", i)) if is_float(value) else value


def tf_gradients(case: Case, flat: Sequence[Any], cotangents: Sequence[Any]) -> list[Any] | None:
    """TensorFlow's gradients in the floating inputs; `None` where it has none."""
    moving = [x for x in flat if is_float(x.numpy())]
    if not moving:
        return None
    with tf.GradientTape() as tape:
        for x in moving:
            tape.watch(x)
        outputs = case.call(flat)
    chosen = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if is_float(c)]
    if not chosen:
        return None
    try:
        grads = tape.gradient(
            [y for y, _ in chosen], moving, output_gradients=[tf.constant(c) for _, c in chosen]
        )
    except (LookupError, NotImplementedError, TypeError, tf.errors.OpError):
        return None
    found = iter(grads)
    dense = [next(found) if is_float(x.numpy()) else None for x in flat]
    return [None if g is None else tf.convert_to_tensor(g).numpy() for g in dense]
