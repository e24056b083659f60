"""Names of a Python function's variables, from where it holds them.

`tf.nest.map_structure(tf.Variable, params)`, the idiom for jax2tf, names all of them `Variable`.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import cast

from invert._private.tensorflow import TfObject, tf_restored_class
from invert.tf.ops.node import import_tensorflow

# TensorFlow's name for an unnamed variable, before the colon.
UNNAMED = "Variable"
# Attributes that TensorFlow itself sets on modules.
_INTERNAL = ("_self_", "_tf_", "_setattr_")
_PATHS = contextvars.ContextVar("paths", default=True)


@contextlib.contextmanager
def names_of_tensorflow() -> Iterator[None]:
    """Keep TensorFlow's names for unnamed variables."""
    token = _PATHS.set(False)
    try:
        yield
    finally:
        _PATHS.reset(token)


def held_names(function: object) -> dict[int, str]:
    """Paths of the variables that a function refers to, such as `params/dense/kernel`, by `id`.

    It refers to dictionaries, lists and modules by nonlocal and global names, and to the module
    that it is a method of. Paths begin inside a module.
    """
    names: dict[int, str] = {}
    seen: set[int] = set()
    kind = import_tensorflow().Module
    for path, value in _referred(function) if _PATHS.get() else ():
        for inside, variable in _variables(value, path, seen, kind):
            names.setdefault(id(variable), "/".join(inside))
    return names


def paths_of(holder: TfObject) -> Iterator[tuple[str, TfObject]]:
    """The variables that an object holds, a loaded SavedModel too, each with all its paths."""
    for path, variable in _variables(holder, (), set(), tf_restored_class("user_object")):
        yield "/".join(path), variable


def _referred(function: object) -> Iterator[tuple[tuple[str, ...], TfObject]]:
    """The objects that a function refers to, with the paths that begin their names."""
    tf = import_tensorflow()
    plain = inspect.unwrap(function) if callable(function) else None
    owner = getattr(plain, "__self__", None)
    # TensorFlow binds methods to a wrapper that refers to the real owner.
    owner = owner if isinstance(owner, tf.Module) else getattr(owner, "target", None)
    if isinstance(owner, tf.Module):
        yield (), owner
    plain = getattr(plain, "__func__", plain)
    try:
        found = inspect.getclosurevars(cast(FunctionType, plain))
    except (TypeError, ValueError):  # not a Python function, or an empty cell
        return
    for name, value in {**found.nonlocals, **found.globals}.items():
        yield () if isinstance(value, tf.Module) else (name,), value


def _variables(
    value: object, path: tuple[str, ...], seen: set[int], kind: type
) -> Iterator[tuple[tuple[str, ...], TfObject]]:
    """The variables in dictionaries, lists and objects of a class, with their paths."""
    tf = import_tensorflow()
    if isinstance(value, tf.Variable):
        yield path, value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    # Other sequences, such as a long range, hold no variables.
    if isinstance(value, Mapping):
        items = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(i), part) for i, part in enumerate(value)]
    elif isinstance(value, kind):
        held = vars(value).items()
        items = [(n.lstrip("_"), part) for n, part in held if not n.startswith(_INTERNAL)]
    else:
        return
    for name, part in items:
        yield from _variables(part, (*path, *name.split("/")), seen, kind)
