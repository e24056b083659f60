"""Turns arguments that hold weights into parameters."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from invert._entry import ArgSpec, EntryPoint, Param, Shardings, unique
from invert._errors import SignatureError
from invert._private.jax import Tree, Value, from_words
from invert.ir.avals import type_text

# The keys that lead to an array in a tree.
_Path = tuple[str, ...]


def as_parameters(entry: EntryPoint, values: Mapping[str, Tree]) -> EntryPoint:
    """The entry point with some of its arguments as parameters; it has none yet.

    A parameter is named by its path in the argument, such as `dense/kernel`. The name of the
    argument comes first if there are several, and stands alone if the argument is an array. Where
    an artifact is read without a class of its arguments, paths are the author's all the same, and
    values may be objects of the class.

    **Arguments:**

    - `values`: trees of arrays by the names of their arguments; `arg0`, `arg1`, ... work too.

    **Raises:** `SignatureError` that lists all mismatches.
    """
    check_mapping(values)
    specs, tree = jax.tree_util.tree_flatten((entry.args, dict(entry.kwargs)))
    places, keywords = jax.tree_util.tree_unflatten(tree, range(len(specs)))
    known = {**dict(zip(entry.arg_names, places, strict=True)), **keywords}
    positions = {f"arg{i}": name for i, name in enumerate(entry.arg_names)}
    problems: list[str] = []
    params: dict[int, Param] = {}
    chosen: set[str] = set()
    taken: set[str] = set()
    for given, value in values.items():
        if (name := given if given in known else positions.get(given, "")) not in known:
            problems.append(f"there is no argument {given!r}")
            continue
        if name in chosen:
            problems.append(f"{given!r} is given twice")
        chosen.add(name)
        arrays, given_names = _by_path(value)
        wanted, short = _by_path(known[name])
        short |= {p: specs[i].keys for p, i in wanted.items() if specs[i].keys not in ((), p)}
        if authors := _authors_paths(wanted, specs, arrays):
            wanted = {authors.get(p, p): i for p, i in wanted.items()}
            short = {p: given_names.get(p, p) for p in wanted}
        problems += [f"{_joined(name, p)} is missing" for p in wanted if p not in arrays]
        problems += [f"there is no {_joined(name, p)}" for p in arrays if p not in wanted]
        for path, i in wanted.items():
            if path not in arrays:
                continue
            full = _joined(name, path)
            array = _array(arrays[path], full, specs[i], problems)
            alone = len(values) == 1 and short[path]
            own = unique("/".join(short[path]) if alone else _joined(name, short[path]), taken)
            params[i] = Param(own, array, trainable=_is_trained(path or (name,), array.dtype))
    if problems:
        lines = "".join(f"\n  - {p}" for p in problems)
        raise SignatureError(
            f"the weights do not fit the program, whose arguments are {list(known)}:{lines}",
            remedy="Pass each argument's arrays in its own tree, with its shapes and dtypes.",
        )
    params = dict(sorted(params.items()))

    def fn(weights: Sequence[Value], *rest: Value) -> Sequence[Value]:
        own, others = iter(weights), iter(rest)
        flat = [
            from_words(next(own), spec.dtype) if i in params else next(others)
            for i, spec in enumerate(specs)
        ]
        return entry.fn((), *flat, *others)

    free = [i for i, name in enumerate(entry.arg_names) if name not in chosen]
    return dataclasses.replace(
        entry,
        fn=fn,
        args=tuple(entry.args[i] for i in free),
        arg_names=tuple(entry.arg_names[i] for i in free),
        kwargs={n: tree for n, tree in entry.kwargs.items() if n not in chosen},
        params=tuple(params.values()),
        shardings=None if entry.shardings is None else _shared(entry.shardings, params),
    )


def check_mapping(params: object, what: str = "params") -> None:
    """Check that weights are given by name.

    **Raises:** `SignatureError`.
    """
    remedy = "Give a mapping from names to values."
    if not isinstance(params, Mapping):
        raise SignatureError(f"`{what}` is a {type(params).__name__}", remedy=remedy)
    if wrong := [name for name in params if not isinstance(name, str)]:
        raise SignatureError(f"`{what}` has keys that are not text: {wrong}", remedy=remedy)


def _by_path(tree: Tree) -> tuple[dict[_Path, Any], dict[_Path, _Path]]:
    """The leaves of a tree and their names, by path; container types do not matter.

    The array in a box of Flax, `kernel.value`, is named `kernel`.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    boxes = collections.Counter(path[:-1] for path, _ in leaves)
    arrays: dict[_Path, Any] = {}
    names: dict[_Path, _Path] = {}
    for path, leaf in leaves:
        texts = tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
        boxed = path and boxes[path[:-1]] == 1 and path[-1] == jax.tree_util.GetAttrKey("value")
        arrays[texts], names[texts] = leaf, texts[:-1] if boxed else texts
    return arrays, names


def _authors_paths(
    wanted: Mapping[_Path, int], specs: Sequence[ArgSpec], arrays: Mapping[_Path, Any]
) -> dict[_Path, _Path]:
    """The author's paths of arrays that are given by them, not by those of the artifact's tree.

    They differ where an artifact is read without a class of its arguments. An array that the
    program does not use has no such path; those take the paths that are left, in order.
    """
    stated = {path: specs[i].keys for path, i in wanted.items() if specs[i].keys}
    if not any(keys in arrays and path not in arrays for path, keys in stated.items()):
        return {}
    free = [path for path in arrays if path not in stated.values()]
    rest = [path for path in wanted if path not in stated]
    return stated | (dict(zip(rest, free, strict=True)) if len(free) == len(rest) else {})


def _joined(name: str, path: Sequence[str]) -> str:
    return "/".join((name, *path))


def _array(given: Any, name: str, spec: Any, problems: list[str]) -> np.ndarray:
    """A weight as an array; adds to `problems` if it does not have the type of its argument.

    Keys of random numbers, which Flax keeps among its variables, are held as their words.
    """
    is_key = isinstance(given, jax.Array) and jnp.issubdtype(given.dtype, jax.dtypes.prng_key)
    try:
        array = given if is_key else np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        problems.append(f"{name} is not an array: {error}")
        return np.zeros(())
    if array.shape != spec.shape or array.dtype != spec.dtype:
        got, want = (type_text(x.dtype, x.shape) for x in (array, spec))
        problems.append(f"{name} is {got}, expected {want}")
    return np.asarray(jax.random.key_data(array)) if is_key else np.asarray(array)


def _is_trained(path: Sequence[str], dtype: np.dtype) -> bool:
    """Return whether a weight has real or complex numbers and is not one of Flax's statistics."""
    parts = [part for name in path for part in name.split("/")]
    return jnp.issubdtype(dtype, np.inexact) and "batch_stats" not in parts


def _shared(shardings: Shardings, params: Mapping[int, Param]) -> Shardings:
    """The shardings once the flat arguments of these numbers have become parameters."""
    specs = dict(enumerate(shardings.arguments))
    own = {p.name: spec for i, p in params.items() if (spec := specs.get(i)) is not None}
    rest = tuple(spec for i, spec in specs.items() if i not in params)
    return dataclasses.replace(shardings, arguments=rest, params=own)
