"""Lowered programs of earlier processes, in the user's cache directory.

Lowering takes most of the time of a first conversion: JAX traces and lowers each function that a
pattern proposes, and each equation of a certificate. The result depends on the versions of JAX and
of this package, on JAX's settings, and on the function and its types. All of these are in the key
of an entry, so an entry equals what lowering would give. Only programs for the CPU are stored,
since lowering for other platforms also depends on plugins.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import jax

from invert import _user_cache
from invert._private.jax import eval_closed, explicit_constraints, trace_closed
from invert._private.programs import settings
from invert.ir.encoding import Damaged, NotEncodable, decoded, encoded, key_of
from invert.ir.sizes import DimSize, Shape, is_open
from invert.ir.types import ClosedJaxpr, Value

_T = TypeVar("_T")


@functools.lru_cache(maxsize=64)
def _decoded(text: str) -> Value:
    """The program that a text encodes; often several entries hold the same one."""
    return decoded(json.loads(text))


def called(function: Callable[..., Value], *values: Value, shape: Shape) -> Value:
    """`function(*values, shape)`, perhaps from a program that an earlier process traced.

    The function is a `jax.jit` of this package that depends on types alone, and has one result.
    """
    now = settings()
    if now is None or any(map(is_open, shape)):
        return function(*values, shape)
    types = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values)
    return eval_closed(_traced(function, types, shape, now), values)[0]


@functools.lru_cache(maxsize=64)
def _traced(
    function: Callable[..., Value],
    types: tuple[jax.ShapeDtypeStruct, ...],
    shape: Shape,
    now: str,
) -> ClosedJaxpr:
    entry = Entry("traced", function, types, shape)
    return entry.stored(lambda: trace_closed(lambda *xs: function(*xs, shape), *types))


class Entry:
    """A place in the cache for a program, or for text about one.

    **Arguments:**

    - `kind`: the operation on the parts that makes it.
    - `parts`: what it depends on, besides versions and settings.
    - `sizes`: sizes among the parts, from which its open sizes are made.
    """

    def __init__(
        self, kind: str, *parts: Hashable, platform: str = "cpu", sizes: Iterable[DimSize] = ()
    ) -> None:
        self._size = next(filter(is_open, sizes), None)
        self._key = ""
        if platform != "cpu" or _user_cache.folder() is None or (now := settings()) is None:
            return
        known = () if self._size is None else explicit_constraints(self._size)
        with contextlib.suppress(NotEncodable):
            self._key = json.dumps([kind, key_of(*parts), str(known), now])

    def read(self) -> Value | None:
        """Return the program that an earlier process stored, if any."""
        text = _user_cache.text_of(self._key) if self._key else None
        if text is None:
            return None
        # The text is unchanged, but another program may have written it.
        with contextlib.suppress(Damaged, json.JSONDecodeError, RecursionError):
            # Sizes of different scopes cannot be compared.
            return _decoded(text) if self._size is None else decoded(json.loads(text), self._size)
        return None

    def write(self, value: Value) -> None:
        """Store a value for later processes, if it can be encoded."""
        if self._key:
            with contextlib.suppress(NotEncodable):
                text = json.dumps(encoded(value), separators=(",", ":"))
                _user_cache.keep_text(self._key, text)

    def stored(self, make: Callable[[], _T]) -> _T:
        """Return the stored program; otherwise store and return that of `make`."""
        if (known := self.read()) is not None:
            return known
        if (made := make()) is not None:
            self.write(made)
        return made
