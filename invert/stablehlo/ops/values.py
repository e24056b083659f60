"""Values known while a module is raised: constants, sizes, shapes."""

from __future__ import annotations

import numpy as np
from jax.typing import DTypeLike

from invert._errors import InvertError
from invert.ir.size_algebra import Sizes
from invert.ir.sizes import DimSize
from invert.ir.types import Value as Value


class KnownSize(np.ndarray):
    """A number known at conversion: a size, or the index of the platform.

    Values computed only from such numbers are known too, also inside called functions. Arrays with
    open sizes are `Sizes` instead.
    """

    __slots__ = ()

    @classmethod
    def of(cls, value: object, dtype: DTypeLike = np.int32) -> KnownSize:
        return np.array(value, dtype).view(cls)


def data(value: Value) -> Value:
    """A value as a JAX operand: open sizes become traced integers."""
    return value.value() if isinstance(value, Sizes) else value


def plain(value: Value) -> Value:
    """A value as a JAX operand, no longer known as a size."""
    if isinstance(value, KnownSize):
        return value.view(np.ndarray)
    return value.value() if isinstance(value, Sizes) else value


def is_splat(value: Value) -> bool:
    """Return whether a value is a splat constant."""
    array = isinstance(value, np.ndarray) and value.ndim > 0 and value.size > 0
    return array and not any(value.strides)


def is_constant(value: Value) -> bool:
    """Return whether a value is known at conversion."""
    return isinstance(value, (np.ndarray, np.generic))


def are_known(value: Value) -> bool:
    """Return whether a value holds sizes: numbers, or expressions of open ones."""
    return is_constant(value) or (isinstance(value, Sizes) and value.sizes() is not None)


def sizes(value: Value, name: str) -> tuple[DimSize, ...]:
    """The sizes in an array, an operand of the op `name`.

    **Raises:** `InvertError` if they are computed from data.
    """
    if isinstance(value, Sizes):
        if (found := value.sizes()) is None:
            raise InvertError(f"{name}: a size cannot be expressed in the open dimensions")
        return found
    if not is_constant(value):
        raise InvertError(
            f"{name}: a size is computed from data; only sizes that depend on the shapes of "
            "the arguments can be compiled"
        )
    return tuple(int(v) for v in np.asarray(value).reshape(-1))
