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
    """

    def __init__(self, function: JaxFunction) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._recordings: Cache[Hashable, Recording | None] = Cache(_MOST_RECORDINGS)

    def __call__(self, *operands: Value, **keywords: Value) -> Value:
        places: dict[int, int] = {}
        traced: list[Value] = []
        for x in operands:
            if is_tracer(x) and id(x) not in places:
                places[id(x)] = len(traced)
                traced.append(x)
        if not traced or (stage := staged(traced)) is None:
            return self._function(*operands, **keywords)
        trace, settings = stage
        try:
            types = [(places[id(x)], x.aval) if id(x) in places else _key(x) for x in operands]
            key = settings, tuple(types), tuple((name, _key(x)) for name, x in keywords.items())
        except _NoKeyError:
            return self._function(*operands, **keywords)
        recordings = self._recordings
        if key not in recordings:
            run = functools.partial(self._function, *operands, **keywords)
            results, made = recorded(run, trace, traced)
            recordings[key] = made
            return results
        if (known := recordings[key]) is None:
            return self._function(*operands, **keywords)
        return known.replay(trace, traced)


class _NoKeyError(Exception):
    """A value that no key describes in full."""


def _key(value: Value) -> Hashable:
    """A key that is equal for values that functions cannot distinguish.

    **Raises:** `_NoKeyError` if there is none.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is list or isinstance(value, tuple):  # also one with names
        return kind, tuple(map(_key, value))
    if kind is jax.ShapeDtypeStruct and value.sharding is None:
        return kind, _key(value.shape), value.dtype, value.weak_type
    if kind is float:
        return kind, value.hex()
    if kind is np.ndarray and value.size <= _LONGEST and value.dtype.kind in "biufc":
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return kind, value.tobytes()
    if isinstance(value, np.dtype):
        return value
    if dataclasses.is_dataclass(kind):
        return kind, tuple(_key(getattr(value, f.name)) for f in dataclasses.fields(kind))
    raise _NoKeyError


_PLAIN = frozenset({int, bool, str, bytes, type(None)})
