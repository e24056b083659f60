"""Nests parameters by the parts of their names."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from invert.ir.types import Value


@functools.lru_cache
def param_paths(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Paths into nested dictionaries for variable names such as `dense/kernel`.

    A name that has another name as a prefix keeps its slashes, so that both fit into one tree.
    """
    split = [tuple(n.split("/")) for n in names]
    leaves = set(split)
    return tuple(
        path if not any(path[:i] in leaves for i in range(1, len(path))) else ("/".join(path),)
        for path in split
    )


def nest(names: Sequence[str], values: Sequence[Value]) -> dict[str, Value]:
    """Values as nested dictionaries, see `param_paths`."""
    tree: dict[str, Value] = {}
    for path, value in zip(param_paths(tuple(names)), values, strict=True):
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return tree
