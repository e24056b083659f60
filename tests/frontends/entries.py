"""Calls entry points as their modules do."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from invert._entry import EntryPoint


class Pair(NamedTuple):
    """A pytree with named children."""

    a: object
    b: object


def call(entry: EntryPoint, *args: Any, **kwargs: Any) -> Any:
    """Call the function of an entry point on pytrees."""
    flat, tree = jax.tree_util.tree_flatten((args, kwargs))
    assert tree == jax.tree_util.tree_structure((entry.args, dict(entry.kwargs)))
    out = entry.fn([p.value for p in entry.params], *flat)
    return jax.tree_util.tree_unflatten(entry.out_tree, out)
