"""The types of JAX's programs, as signatures name them."""

from __future__ import annotations

from typing import Any, TypeAlias

from invert._private.jax import ClosedJaxpr as ClosedJaxpr
from invert._private.jax import Eqn as Eqn
from invert._private.jax import Jaxpr as Jaxpr
from invert._private.jax import Literal as Literal
from invert._private.jax import ShapedArray as ShapedArray
from invert._private.jax import Var as Var

Atom: TypeAlias = Var | Literal
# A closed jaxpr, or an open one.
AnyJaxpr: TypeAlias = ClosedJaxpr | Jaxpr
# Whatever tells a shape and a dtype: `ShapedArray`, `jax.ShapeDtypeStruct`.
Aval: TypeAlias = Any
# Whatever an evaluator computes with: arrays, tracers, atoms of another program, facts.
Value: TypeAlias = Any
