"""Types of JAX programs for signatures."""

from __future__ import annotations

from invert._private.jax import AnyJaxpr as AnyJaxpr
from invert._private.jax import Arguments as Arguments
from invert._private.jax import Atom as Atom
from invert._private.jax import Aval as Aval
from invert._private.jax import CallArguments as CallArguments
from invert._private.jax import ClosedJaxpr as ClosedJaxpr
from invert._private.jax import Eqn as Eqn
from invert._private.jax import J as J
from invert._private.jax import JaxFunction as JaxFunction
from invert._private.jax import Jaxpr as Jaxpr
from invert._private.jax import Keywords as Keywords
from invert._private.jax import Literal as Literal
from invert._private.jax import Params as Params
from invert._private.jax import ShapedArray as ShapedArray
from invert._private.jax import Tree as Tree
from invert._private.jax import Value as Value
from invert._private.jax import Var as Var
