"""JAX's own test cases of its primitives, and comparisons with recovered functions.

The cases ship in the jax wheel (`jax._src.internal_test_util.test_harnesses`).
"""

from __future__ import annotations

import functools
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

import invert

# dtype -> relative and absolute tolerance; the absolute one grows with the largest value, since
# sums and products of other entries are what limits the accuracy of one entry. Equal programs can
# still be fused differently under `jit`. Everything that is not listed must be equal.
TOLERANCES = {
    "float64": (1e-10, 1e-12),
    "complex128": (1e-10, 1e-12),
    "float32": (1e-4, 2e-6),
    "complex64": (1e-4, 2e-6),
    "float16": (1e-2, 2e-3),
    "bfloat16": (5e-2, 2e-2),
}


def difference(got: Any, want: Any, factor: float = 1.0) -> str | None:
    """The difference between two pytrees of arrays, or `None`.

    **Arguments:**

    - `factor`: multiplies the tolerances of `TOLERANCES`.
    """
    got_leaves, got_tree = jax.tree_util.tree_flatten(got)
    want_leaves, want_tree = jax.tree_util.tree_flatten(want)
    if got_tree != want_tree:
        return f"structure {got_tree}, not {want_tree}"
    found = []
    for i, (a, b) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        if (text := _array_difference(np.asarray(a), np.asarray(b), factor)) is not None:
            found.append(f"array {i}: {text}")
    return "; ".join(found) or None


def _array_difference(got: np.ndarray, want: np.ndarray, factor: float) -> str | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    if got.dtype == jax.dtypes.float0:
        return None
    name = str(want.dtype)
    if name not in TOLERANCES:
        # Sub-byte and 8-bit types have no equality of their own in every NumPy.
        same = got.tobytes() == want.tobytes() or np.array_equal(got, want)
        return None if same else f"values of type {name} differ:\n{got}\n{want}"
    relative, absolute = TOLERANCES[name]
    parts = [np.real, np.imag] if want.dtype.kind == "c" else [np.asarray]
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    for part in parts:
        a, b = part(got.astype(wide)), part(want.astype(wide))
        largest = np.max(np.abs(b), where=np.isfinite(b), initial=1.0)
        close = np.isclose(
            a, b, rtol=factor * relative, atol=factor * absolute * largest, equal_nan=True
        )
        if not close.all():
            with np.errstate(invalid="ignore", over="ignore"):
                worst = np.abs(a - b)[~close].max()
            return (
                f"{np.count_nonzero(~close)} of {close.size} values of type {name} differ by up to "
                f"{worst:.3g} where the largest is {largest:.3g}"
            )
    return None


def assert_same(got: Any, want: Any, factor: float = 1.0) -> None:
    text = difference(got, want, factor)
    assert text is None, text


def is_inexact(value: Any) -> bool:
    return jax.dtypes.issubdtype(value.dtype, np.inexact)


def noise_like(value: Any, seed: int) -> np.ndarray:
    """Normally distributed values of the same shape and type."""
    rng = np.random.RandomState(seed % 2**31)
    drawn = rng.standard_normal(value.shape)
    if jax.dtypes.issubdtype(value.dtype, np.complexfloating):
        drawn = drawn + 1j * rng.standard_normal(value.shape)
    return np.asarray(drawn).astype(value.dtype)


class Transforms:
    """The transformations of `fn(*flat arrays) -> list of arrays` at one point, as thunks.

    **Arguments:**

    - `args`: the point.
    - `outs`: types of the results; only the inexact ones are differentiated.
    - `batches`: a list of points, stacked for `vmap`.
    """

    def __init__(
        self,
        fn: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        outs: Sequence[Any],
        batches: Sequence[Sequence[Any]] = (),
        seed: int = 0,
    ):
        self.fn, self.args, self.batches = fn, list(args), batches
        self.inexact = [i for i, a in enumerate(self.args) if is_inexact(a)]
        self.smooth = [i for i, o in enumerate(outs) if is_inexact(o)]
        self.tangents = tuple(noise_like(self.args[i], seed + i) for i in self.inexact)
        self.cotangents = [noise_like(outs[i], seed + 100 + i) for i in self.smooth]

    def names(self) -> list[str]:
        smooth = ["jvp", "vjp"] if self.inexact and self.smooth else []
        return ["forward", "jit"] + (["vmap"] if self.batches and self.args else []) + smooth

    def run(self, name: str) -> list[Any]:
        return getattr(self, name)()

    def forward(self) -> list[Any]:
        return list(self.fn(*self.args))

    def jit(self) -> list[Any]:
        return list(jax.jit(self.fn)(*self.args))

    def vmap(self) -> list[Any]:
        stacked = [np.stack(column) for column in zip(*self.batches, strict=True)]
        return list(jax.jit(jax.vmap(self.fn))(*stacked))

    def _of_inexact(self, *values: Any) -> list[Any]:
        args = list(self.args)
        for i, value in zip(self.inexact, values, strict=True):
            args[i] = value
        outs = self.fn(*args)
        return [outs[i] for i in self.smooth]

    @property
    def primals(self) -> tuple[Any, ...]:
        return tuple(self.args[i] for i in self.inexact)

    def jvp(self) -> list[Any]:
        @jax.jit
        def run(primals: Any, tangents: Any) -> Any:
            return jax.jvp(self._of_inexact, primals, tangents)

        return jax.tree_util.tree_leaves(run(self.primals, self.tangents))

    def vjp(self) -> list[Any]:
        @jax.jit
        def run(primals: Any, cotangents: Any) -> Any:
            return jax.vjp(self._of_inexact, *primals)[1](cotangents)

        return jax.tree_util.tree_leaves(run(self.primals, self.cotangents))


@functools.cache
def harnesses() -> dict[str, Any]:
    """The cases that JAX itself supports on the CPU, by name."""
    np.random.seed(0)  # some cases draw constants when the module is imported
    from jax._src.internal_test_util import test_harnesses

    return {h.fullname: h for h in test_harnesses.all_harnesses if h.filter("cpu")}


def sample(size: int) -> list[str]:
    """A fixed sample of the cases, from each group in turn.

    Within a group, cases are ordered by a hash of the name. So a case added or removed by another
    release of JAX changes little.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(harnesses(), key=lambda n: zlib.crc32(n.encode())):
        groups[harnesses()[name].group_name].append(name)
    chosen: list[str] = []
    rank = 0
    while len(chosen) < min(size, len(harnesses())):
        chosen += [g[rank] for _, g in sorted(groups.items()) if rank < len(g)]
        rank += 1
    return sorted(chosen[:size])


class Case:
    """One of JAX's cases as a function of flat arrays, with arguments drawn from a fixed seed."""

    def __init__(self, name: str):
        self.harness = harnesses()[name]
        self.seed = zlib.crc32(name.encode()) % 2**31
        self.args, self._tree = self._draw(0)

    def _draw(self, i: int) -> tuple[list[np.ndarray], Any]:
        args = self.harness.dyn_args_maker(np.random.RandomState((self.seed + i) % 2**31))
        leaves, tree = jax.tree_util.tree_flatten(list(args))
        return [np.asarray(jax.numpy.asarray(x)) for x in leaves], tree

    def batches(self, n: int = 3) -> list[list[np.ndarray]]:
        return [self._draw(i)[0] for i in range(n)]

    def __call__(self, *leaves: Any) -> list[Any]:
        args = jax.tree_util.tree_unflatten(self._tree, leaves)
        return jax.tree_util.tree_leaves(self.harness.dyn_fun(*args))

    def export(self) -> jax.export.Exported:
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.args]
        return jax.export.export(jax.jit(self))(*specs)


def compare(
    original: Callable[..., Sequence[Any]],
    recovered: Callable[..., Sequence[Any]],
    args: Sequence[Any],
    batches: Sequence[Sequence[Any]] = (),
    *,
    names: Iterable[str] | None = None,
    seed: int = 0,
    factor: float = 1.0,
) -> dict[str, str]:
    """Compare two functions under every transformation that the original allows.

    **Returns:** the failures, by name of the transformation.
    """
    outs = jax.eval_shape(original, *args)
    want = Transforms(original, args, outs, batches, seed)
    got = Transforms(recovered, args, outs, batches, seed)
    failures = {}
    reference: dict[str, Any] = {}
    for name in want.names() if names is None else [n for n in names if n in want.names()]:
        # For the original, both are the same.
        key = "jit" if name == "forward" else name
        if key not in reference:
            reference[key] = _attempt(want, key)
        expected, error = reference[key]
        if error is not None:
            continue
        found, error = _attempt(got, name)
        # Derivatives multiply the rounding errors of several steps.
        loosened = factor * (3.0 if name in ("jvp", "vjp") else 1.0)
        text = error or difference(found, expected, loosened)
        if text:
            failures[name] = text
    return failures


def _attempt(transforms: Transforms, name: str) -> tuple[list[Any] | None, str | None]:
    try:
        return [np.asarray(x) for x in transforms.run(name)], None
    except Exception as error:  # noqa: BLE001  what fails here is the result that is compared
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return None, text[:400]


def recover(case: Case) -> Callable[..., list[Any]]:
    """The case, exported and recovered."""
    module = invert.from_exported(case.export())
    return lambda *args: jax.tree_util.tree_leaves(module(*args))
