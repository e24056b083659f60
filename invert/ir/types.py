"""Types of JAX programs for signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from invert._private.jax import AnyJaxpr as AnyJaxpr
from invert._private.jax import Atom as Atom
from invert._private.jax import ClosedJaxpr as ClosedJaxpr
from invert._private.jax import Eqn as Eqn
from invert._private.jax import J as J
from invert._private.jax import Jaxpr as Jaxpr
from invert._private.jax import Literal as Literal
from invert._private.jax import ShapedArray as ShapedArray
from invert._private.jax import Var as Var

# Anything with a shape and a dtype: `ShapedArray`, `jax.ShapeDtypeStruct`.
Aval: TypeAlias = Any
# Values of an evaluator or a rule: arrays, tracers, NumPy arrays known at conversion, handles
# and pytrees such as a `TensorList`, atoms of another program, facts.
Value: TypeAlias = Any
# A function of arrays, as `jax.make_jaxpr` takes it.
JaxFunction: TypeAlias = Callable[..., Any]
# The parameters of an equation, by name.
Params: TypeAlias = dict[str, Any]
# What a caller passes: pytrees of arrays, and static values.
Arguments: TypeAlias = Sequence[Any]
Keywords: TypeAlias = Mapping[str, Any]
