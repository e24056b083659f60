"""Calls of public functions, written as in a program, with placeholders for random arguments."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from invert import Config

FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
INTS = ("int32", "int64")
NUMBERS = (*FLOATS, "int32", "complex64")

# Loops that are counted become `scan`, which differentiates.
_LOOPS = ("scan",)
PLAIN = Config(patterns=_LOOPS, verify=False)
PADDED = Config(patterns=_LOOPS, verify=False, dynamic_sizes="pad")

# Stands for the size that the signature leaves open.
B = "b"
# Sizes that it takes: of the call with gradients, of the call of the program with an open size.
FIRST, SECOND = 3, 2


@dataclasses.dataclass(frozen=True)
class Arg:
    """An argument that is drawn.

    **Arguments:**

    - `shape`: `B` stands for the open size.
    - `dtype`: where it is not that of the call.
    - `make`: makes the values from a generator and the shape; normal numbers by default.
    """

    shape: tuple[Any, ...]
    dtype: str | None = None
    make: Callable[[np.random.Generator, tuple[int, ...]], Any] | None = None

    def spec(self, dtype: str) -> tuple[tuple[int | None, ...], np.dtype]:
        return tuple(None if n == B else n for n in self.shape), self._dtype(dtype)

    def draw(self, g: np.random.Generator, size: int, dtype: str) -> np.ndarray:
        shape = tuple(size if n == B else n for n in self.shape)
        kind = self._dtype(dtype)
        if self.make is not None:
            return np.asarray(self.make(g, shape), kind)
        if kind.kind == "c":
            return (g.normal(size=shape) + 1j * g.normal(size=shape)).astype(kind)
        if kind.kind == "b":
            return g.integers(0, 2, shape).astype(bool)
        if kind.kind in "iu":
            return g.integers(1 if kind.kind == "u" else -4, 7, shape).astype(kind)
        return g.normal(size=shape).astype(kind)

    def _dtype(self, dtype: str) -> np.dtype:
        return np.dtype(jax.numpy.dtype(self.dtype or dtype))


def F(*shape: Any, dtype: str | None = None) -> Arg:
    """Normal numbers; for integer dtypes, small ones of both signs."""
    return Arg(shape, dtype)


def U(low: float, high: float, *shape: Any, dtype: str | None = None) -> Arg:
    """Numbers between two bounds."""
    return Arg(shape, dtype, lambda g, s: g.uniform(low, high, s))


def I(low: int, high: int, *shape: Any, dtype: str = "int32") -> Arg:  # noqa: E743
    """Integers from `low`, below `high`."""
    return Arg(shape, dtype, lambda g, s: g.integers(low, high, s))


def BOOL(*shape: Any) -> Arg:
    return Arg(shape, "bool")


def Z(*shape: Any) -> Arg:
    """Complex numbers."""
    return Arg(shape, "complex64")


def V(values: Any, dtype: str | None = None) -> Arg:
    """The given values, as an argument of the function."""
    array = np.asarray(values)
    kind = dtype or (None if array.dtype.kind == "f" else str(array.dtype))
    return Arg(array.shape, kind, lambda g, s: array)


def SPD(*shape: Any) -> Arg:
    """Positive definite matrices."""

    def make(g: np.random.Generator, s: tuple[int, ...]) -> Any:
        a = g.normal(size=s)
        return a @ np.swapaxes(a, -1, -2) + s[-1] * np.eye(s[-1])

    return Arg(shape, None, make)


def WELL(*shape: Any) -> Arg:
    """Square matrices that are far from singular."""
    return Arg(shape, None, lambda g, s: g.normal(size=s) + 2 * s[-1] * np.eye(s[-1]))


def TRI(*shape: Any) -> Arg:
    """Lower triangular matrices that are far from singular."""
    return Arg(shape, None, lambda g, s: np.tril(g.normal(size=s)) + 2 * s[-1] * np.eye(s[-1]))


def DISTINCT(*shape: Any) -> Arg:
    """Numbers no two of which are close."""

    def make(g: np.random.Generator, s: tuple[int, ...]) -> Any:
        return (g.permutation(int(np.prod(s))).reshape(s) - np.prod(s) // 2) * 0.25 + 0.125

    return Arg(shape, None, make)


def PROBS(*shape: Any) -> Arg:
    """Positive numbers that sum to one over the last axis."""

    def make(g: np.random.Generator, s: tuple[int, ...]) -> Any:
        p = g.uniform(0.1, 1, s)
        return p / p.sum(-1, keepdims=True)

    return Arg(shape, None, make)


@dataclasses.dataclass(frozen=True)
class Call:
    """One way to call a function.

    **Arguments:**

    - `args`, `kwargs`: those of the function, with `Arg` anywhere inside.
    - `function`: what is called instead of the function of the table.
    - `dtypes`: the first one is compared in all aspects, the others in values only.
    - `special`: also compares the values for infinities, NaN and zeros.
    - `tolerance`: a factor for the tolerance.
    - `without`: aspects that are not compared (`"value"`, `"gradient"`, `"open"`, `"vmap"`), with
        the reason.
    - `config`: options of the conversion.
    - `error`: a part of the error that the conversion is to raise, where no array of a fixed size
        holds what TensorFlow makes. Nothing else is compared.
    - `made`: makes an object with state and gives the function that is called. Several calls of it
        one after another are compared, and nothing else.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    function: Callable[..., Any] | None = None
    dtypes: tuple[str, ...] = FLOATS
    special: bool = False
    tolerance: float = 1.0
    without: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: types.MappingProxyType({})
    )
    config: Config = PLAIN
    error: str = ""
    made: Callable[[], Callable[..., Any]] | None = None

    def but(self, **without: str) -> Call:
        """The call without some aspects."""
        return dataclasses.replace(self, without={**self.without, **without})

    def of(self, dtypes: str) -> Call:
        """The call in other dtypes."""
        return dataclasses.replace(self, dtypes=tuple(dtypes.split()))

    def near(self, tolerance: float) -> Call:
        """The call with a multiple of the usual tolerance."""
        return dataclasses.replace(self, tolerance=tolerance)

    def specials(self) -> Call:
        """The call with special values as well."""
        return dataclasses.replace(self, special=True)

    def padded(self) -> Call:
        """The call with results of data-dependent size padded."""
        return dataclasses.replace(self, config=PADDED)

    def refused(self, error: str) -> Call:
        """The call whose conversion raises an error that contains a text."""
        return dataclasses.replace(self, error=error)

    def closed(self) -> Call:
        """The call at fixed sizes only."""
        return self.but(open="", vmap="")

    @property
    def arguments(self) -> list[Arg]:
        leaves = jax.tree_util.tree_leaves((self.args, dict(self.kwargs)), is_leaf=_is_none)
        return [leaf for leaf in leaves if isinstance(leaf, Arg)]

    @property
    def is_open(self) -> bool:
        return any(B in a.shape for a in self.arguments)

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The call as a function of the random arguments."""
        function = self.function or function
        leaves, tree = jax.tree_util.tree_flatten((self.args, dict(self.kwargs)), is_leaf=_is_none)

        def call(*values: Any) -> Any:
            given = iter(values)
            full = [next(given) if isinstance(leaf, Arg) else leaf for leaf in leaves]
            args, kwargs = jax.tree_util.tree_unflatten(tree, full)
            return function(*args, **kwargs)

        return call


def _is_none(x: Any) -> bool:
    return x is None


def call(*args: Any, **kwargs: Any) -> Call:
    """A call of the function of the table."""
    return Call(args, kwargs)


def of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    """A call of a function that calls that of the table."""
    return Call(args, kwargs, function)


def made(make: Callable[[], Callable[..., Any]], *args: Any) -> Call:
    """Calls of a stateful function, in single precision."""
    return Call(args, {}, dtypes=("float32",), made=make)


# What a table holds for a name: calls, or the reason why there are none.
Entry = Sequence[Call] | str
Table = Mapping[str, Entry]


def each(names: str, *calls: Call) -> dict[str, Entry]:
    """The same calls for each of several functions."""
    return dict.fromkeys(names.split(), calls)


def left_out(reason: str, names: str) -> dict[str, Entry]:
    """Functions without calls, and the reason."""
    return dict.fromkeys(names.split(), reason)
