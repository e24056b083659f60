"""Functions whose equations are recorded once for operands of equal types."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable

import jax
import numpy as np

from invert._cache import Cache
from invert._private.jax import is_tracer
from invert._private.staging import Recording, recorded, staged
from invert.ir.types import JaxFunction, Value

# The oldest are evicted first.
_MOST_RECORDINGS = 512
# Longer arrays are not compared.
_LONGEST = 64


class Recorded:
    """A function run once for equal types of traced values and equal static ones.

    Its equations are then repeated like those of an inlined `jax.jit`, but without a separate
    trace. The function must depend on nothing else. If it asks how a value was made, or if an
    equation has an effect, it runs each time.

    **Arguments:**

    - `for_text`: whether it only serves to trace one text. Operands may then be layers with traced
        arrays and functions inside, and sizes may be open.
    """

    def __init__(self, function: JaxFunction, *, for_text: bool = False) -> None:
        functools.update_wrapper(self, function)
        self._function, self._for_text = function, for_text
        self._recordings: Cache[Hashable, Recording | None] = Cache(_MOST_RECORDINGS)

    def __call__(self, *operands: Value, **keywords: Value) -> Value:
        traced: dict[int, tuple[int, Value]] = {}
        try:
            if not self._for_text and not any(map(is_tracer, operands)):
                raise _NoKeyError
            types = tuple([self._key(x, traced) for x in operands])
            named = tuple([(name, self._key(x, traced)) for name, x in keywords.items()])
        except _NoKeyError:
            return self._function(*operands, **keywords)
        values = [x for _, x in traced.values()]
        if (stage := staged(values, open_sizes=self._for_text)) is None:
            return self._function(*operands, **keywords)
        trace, settings = stage
        key, recordings = (settings, types, named), self._recordings
        if key not in recordings:
            run = functools.partial(self._function, *operands, **keywords)
            results, made = recorded(run, trace, values)
            recordings[key] = made
            return results
        if (known := recordings[key]) is None:
            return self._function(*operands, **keywords)
        return known.replay(trace, values)

    def _key(self, value: Value, traced: dict[int, tuple[int, Value]]) -> Hashable:
        """A key that is equal for values that functions cannot distinguish.

        **Arguments:**

        - `traced`: receives the traced values and their places, by their `id`.

        **Raises:** `_NoKeyError` if there is none.
        """
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if is_tracer(value):
            place, _ = traced.setdefault(id(value), (len(traced), value))
            return place, value.aval
        if kind is list or isinstance(value, tuple):  # also one with names
            return kind, tuple([self._key(x, traced) for x in value])
        if kind is jax.ShapeDtypeStruct and value.sharding is None:
            return kind, self._key(value.shape, traced), value.dtype, value.weak_type
        if kind is float:
            return kind, value.hex()
        if kind is np.ndarray and value.size <= _LONGEST and value.dtype.kind in "biufc":
            return value.dtype, value.shape, value.tobytes()
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return kind, value.tobytes()
        if isinstance(value, np.dtype):
            return value
        if dataclasses.is_dataclass(kind):
            return kind, tuple(
                [self._key(getattr(value, n), traced) for n in kind.__dataclass_fields__]
            )
        if self._for_text and callable(value):  # itself, which the key keeps
            return kind, value
        raise _NoKeyError


class _NoKeyError(Exception):
    """A value that no key describes in full."""


_PLAIN = frozenset({int, bool, str, bytes, type(None)})
