"""Cumulative reductions, argmax and argmin, and windows that select."""

from __future__ import annotations

from collections.abc import Iterator

import jax
from jax import lax

from invert._rewrite import Call, Pattern, Site, bind

_CUMULATIVE = {
    "reduce_window_sum": (lax.cumsum_p,),
    "reduce_window_max": (lax.cummax_p,),
    "reduce_window_min": (lax.cummin_p,),
    "reduce_window": (lax.cumprod_p, lax.cumlogsumexp_p, lax.cummax_p, lax.cummin_p),
}


def _cumulative(site: Site) -> Iterator[Call]:
    """A window as long as its axis, padded on one side -> a cumulative reduction along it."""
    eqn = site.eqn
    x = site.aval(eqn.invars[0])
    window, padding = eqn.params["window_dimensions"], eqn.params["padding"]
    for axis, (n, size) in enumerate(zip(x.shape, window, strict=True)):
        if n != size or tuple(padding[axis]) not in ((n - 1, 0), (0, n - 1)):
            continue
        for reverse in (False, True) if n == 1 else (tuple(padding[axis]) != (n - 1, 0),):
            for primitive in _CUMULATIVE[eqn.primitive.name]:
                yield bind(primitive, x, axis=axis, reverse=reverse)


def _arg(site: Site) -> Iterator[Call]:
    """A reduction of (values, positions) -> argmax or argmin."""
    eqn = site.eqn
    axes = eqn.params["dimensions"]
    if len(eqn.invars) != 4 or len(axes) != 1:
        return
    x, dtype = site.aval(eqn.invars[0]), eqn.outvars[1].aval.dtype
    for primitive in (lax.argmax_p, lax.argmin_p):
        yield bind(primitive, x, axes=tuple(axes), index_dtype=dtype)


PATTERNS = (
    Pattern("cumulative", tuple(_CUMULATIVE), _cumulative),
    Pattern("argmax", ("reduce",), _arg),
)

_ = jax
