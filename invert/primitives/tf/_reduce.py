"""Reductions over axes that are known while raising."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ._node import Node
from ._registry import Context, Rule, add_table
from ._static import array, ints, is_static, static


def _mean(x: Any, axis: tuple[int, ...]) -> Any:
    return jnp.mean(x, axis=axis)


# op: (function on arrays, the same on static shape values or None)
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "All": (jnp.all, np.all),
    "Any": (jnp.any, np.any),
    "Max": (jnp.max, np.max),
    "Mean": (_mean, None),
    "Min": (jnp.min, np.min),
    "Prod": (lambda x, axis: jnp.prod(x, axis=axis, dtype=x.dtype), None),
    "Sum": (lambda x, axis: jnp.sum(x, axis=axis, dtype=x.dtype), None),
}


def _reduction(fn: Callable[..., Any], fold: Callable[..., Any] | None) -> Rule:
    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        keep = bool(node.attr("keep_dims", False))
        rank = np.ndim(values[0])
        axes = tuple(sorted({a % rank for a in ints(static(node, values, 1))})) if rank else ()
        if is_static(values[0]) and rank == 1 and axes == (0,) and not keep:
            items = ints(values[0])
            if node.op in ("Prod", "Sum"):
                total = math.prod(items) if node.op == "Prod" else sum(items)
                dtype = values[0].dtype if isinstance(total, int) else object
                return [np.asarray(total, dtype)]
            if fold is not None and values[0].dtype != object:
                return [np.asarray(fold(values[0]))]
        x = array(values[0])
        y = fn(x, axis=axes)
        if keep:
            shape = tuple(1 if i in axes else d for i, d in enumerate(np.shape(x)))
            y = lax.reshape(y, shape)
        return [y]

    return rule


add_table({op: _reduction(fn, fold) for op, (fn, fold) in REDUCTIONS.items()})
