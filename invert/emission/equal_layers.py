"""Traces equal layers of a text once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import equinox as eqx
import jax

from invert._private.staging import tell_origin
from invert.emission.emitted import is_index
from invert.primitives.recorded import Recorded

_CALL = "__call__"


@contextlib.contextmanager
def traced_once(namespace: ModuleType, outermost: str) -> Iterator[None]:
    """Within the `with` statement, trace a text's layers once for equal fields and arguments.

    What follows from the same class, static fields, and types of arrays is the same equations. A
    layer is made and called anew where it takes or holds anything but traced arrays, plain values
    and functions, or if its equations have an effect.

    **Arguments:**

    - `outermost`: the class of the whole model, which is made once.
    """
    space = vars(namespace)
    layers = {
        name: cls
        for name, cls in space.items()
        if isinstance(cls, type)
        and issubclass(cls, eqx.Module)
        and cls.__module__ == namespace.__name__
        and name != outermost
    }
    methods = {cls: vars(cls)[_CALL] for cls in layers.values() if _CALL in vars(cls)}
    for cls, method in methods.items():
        if isinstance(method, FunctionType):
            setattr(cls, _CALL, _repeating(method))
    space.update({name: _Making(cls) for name, cls in layers.items()})
    try:
        yield
    finally:
        space.update(layers)
        for cls, method in methods.items():
            setattr(cls, _CALL, method)


def _repeating(method: Any) -> Any:
    known = Recorded(method, for_text=True)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return known(*args, **kwargs)

    return call


class _Making:
    """Stands for a class whose equal instances are traced once."""

    def __init__(self, cls: type[eqx.Module]):
        self._cls = cls
        self._known = Recorded(self._made, for_text=True)

    def _made(self, *args: Any, **kwargs: Any) -> Any:
        made = self._cls(*args, **kwargs)
        if any(map(is_index, jax.tree_util.tree_leaves(made, is_leaf=is_index))):
            tell_origin()  # each instance has places of its own in the state
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._known(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cls, name)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._cls)
