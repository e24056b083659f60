"""Errors for objects that another entry point takes."""

from __future__ import annotations

import os

import jax
import jax.export

from invert._errors import MalformedModelError

# What JAX makes of a function before it is called.
STAGES = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled, jax.export.Exported)


def wrong_kind(expected: str, given: object) -> MalformedModelError:
    """The error for an object that an entry point does not take, which names the one that does."""
    return MalformedModelError(f"{expected}, but got a {type(given).__name__}", remedy=taken(given))


def taken(given: object) -> str:
    """Which entry point takes an object."""
    if isinstance(given, jax.export.Exported):
        return "Pass it to invert.from_exported."
    if isinstance(given, (jax.stages.Lowered, jax.stages.Compiled)):
        return "Pass it to invert.from_stablehlo."
    if isinstance(given, (str, os.PathLike)):
        return "Pass the path of a file to invert.load, and text to invert.from_stablehlo."
    if isinstance(given, jax.stages.Traced):
        return "Pass its `lower()` to invert.from_stablehlo."
    if callable(given):
        return (
            "Pass jax.jit(f).lower(*args) to invert.from_stablehlo, or a TensorFlow function to "
            "invert.convert."
        )
    return "Use invert.load for a file, and invert.convert for a TensorFlow function."
