"""The arguments of emitted modules, from their annotations."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from invert._errors import SignatureError
from invert.ir.types import Tree
from invert.modules.dimensions import at_numbers

# Sizes for open dimensions, in order of appearance: primes, so that products of sizes do not
# coincide.
SIZES = (7, 11, 13, 17, 19, 23)
# Tried next, for conditions such as a multiple of 32, or at most 8.
_OTHER_SIZES = ((8, 24, 40, 56), (96, 160, 224), (4, 6, 2), (1,))


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of an emitted module.

    **Arguments:**

    - `names`: the names of the flat arguments.
    - `tree`: the structure of the positional and keyword arguments, without the key.
    - `tried`: the types of the flat arguments, at several sizes.
    - `key`: the name of its argument for a random key, if any.
    """

    names: list[str]
    tree: Tree
    tried: list[list[jax.ShapeDtypeStruct]]
    key: str | None


@dataclasses.dataclass(frozen=True)
class _Kind:
    shape: tuple[int | str, ...]
    dtype: np.dtype


def annotated(model: eqx.Module) -> Arguments:
    """The arguments of an emitted module, at several sizes.

    **Raises:** `SignatureError` if an annotation does not state a type.
    """
    cls = type(model)
    made = inspect.signature(cls.__init__).parameters
    known = {name: p.default for name, p in made.items() if type(p.default) is int}
    args: list[Tree] = []
    kwargs: dict[str, Tree] = {}
    key = None
    for parameter in list(inspect.signature(cls.__call__).parameters.values())[1:]:
        by_name = parameter.kind is parameter.KEYWORD_ONLY
        if by_name and parameter.annotation == PRNGKeyArray:
            key = parameter.name
            continue
        if parameter.annotation is eqx.nn.State:
            raise with_state()
        kind = _kinds(parameter.annotation, known)
        if kind is None:
            raise SignatureError(
                f"{cls.__name__}: the type of {parameter.name!r} is not known",
                remedy="Compare it with the container that it came from.",
            )
        if by_name:
            kwargs[parameter.name] = kind
        else:
            args.append(kind)
    named = list(inspect.signature(cls.__call__).parameters)[1:]
    leaves, tree = jax.tree_util.tree_flatten_with_path((tuple(args), kwargs))
    names = [_name(path, named) for path, _ in leaves]
    kinds: list[_Kind] = [kind for _, kind in leaves]
    tried = [_types(kinds, row) for row in (SIZES, *_OTHER_SIZES)]
    return Arguments(names, tree, tried, key)


def with_state() -> SignatureError:
    """The error for an emitted module that takes a state."""
    return SignatureError(
        "a saved module with state cannot be compared",
        remedy="Compare the containers that the two came from.",
    )


def _types(kinds: Sequence[_Kind], numbers: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
    shapes = at_numbers([kind.shape for kind in kinds], numbers)
    return [jax.ShapeDtypeStruct(s, k.dtype) for s, k in zip(shapes, kinds, strict=True)]


def _name(path: Sequence[object], named: Sequence[str]) -> str:
    """`inputs.ids` for a path into the positional arguments and the keywords."""
    _, first, *rest = (jax.tree_util.keystr((k,), simple=True) for k in path)
    return ".".join([named[int(first)] if first.isdigit() else first, *rest])


def _kinds(annotation: Any, known: dict[str, int]) -> Tree | None:
    """The shapes and dtypes in an annotation; `None` if it does not state them.

    **Arguments:**

    - `known`: the default sizes of the class, by name.
    """
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return next((k for p in parts if (k := _kinds(p, known)) is not None), None)
    if origin is tuple:
        inner = [_kinds(part, known) for part in parts]
        return None if any(k is None for k in inner) else tuple(inner)
    if typing.is_typeddict(annotation):
        fields = {n: _kinds(part, known) for n, part in annotation.__annotations__.items()}
        return None if any(k is None for k in fields.values()) else fields
    dtypes = getattr(annotation, "dtypes", None)
    if not dtypes:
        return None
    usual = [k for k in ("float32", "int32", "uint32", "complex64", "bool") if k in dtypes]
    dims = re.sub(r"[A-Za-z_]\w*", lambda m: str(known.get(m[0], m[0])), annotation.dim_str).split()
    shape = tuple(int(d) if d.isdigit() else d for d in dims)
    return _Kind(shape, np.dtype((usual or list(dtypes))[0]))
