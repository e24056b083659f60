"""Applies a pattern and lists what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import invert


def calls(f: Callable[..., Any], *args: Any) -> list[str]:
    """The primitives of a function in order; calls by name."""
    eqns = jax.make_jaxpr(f)(*args).jaxpr.eqns
    return [e.params["name"] if e.primitive.name == "jit" else e.primitive.name for e in eqns]


def rewritten(
    f: Callable[..., Any], p: invert.Pattern, *args: Any, tolerance: float = 1e-6
) -> list[str]:
    """The primitives after the rewrite, which must preserve values."""
    new = invert.rewrite(f, [p])
    for got, want in zip(jax.tree.leaves(new(*args)), jax.tree.leaves(f(*args)), strict=True):
        got, want = np.asarray(got, float), np.asarray(want, float)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-6)
    return calls(new, *args)
