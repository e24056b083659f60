"""Errors for objects that another entry point takes."""

from __future__ import annotations

import os

import jax
import jax.export

from invert._errors import MalformedModelError


def wrong_kind(expected: str, given: object) -> MalformedModelError:
    """The error for an object that an entry point does not take, which names the one that does."""
    if isinstance(given, jax.export.Exported):
        remedy = "Pass it to invert.from_exported."
    elif isinstance(given, (jax.stages.Lowered, jax.stages.Compiled)):
        remedy = "Pass it to invert.from_stablehlo."
    elif isinstance(given, (str, os.PathLike)):
        remedy = "Pass the path of a file to invert.load, and text to invert.from_stablehlo."
    elif isinstance(given, jax.stages.Traced):
        remedy = "Pass its `lower()` to invert.from_stablehlo."
    elif callable(given):
        remedy = (
            "Pass jax.jit(f).lower(*args) to invert.from_stablehlo, or a TensorFlow function to "
            "invert.convert."
        )
    else:
        remedy = "Use invert.load for a file, and invert.convert for a TensorFlow function."
    return MalformedModelError(f"{expected}, but got a {type(given).__name__}", remedy=remedy)
