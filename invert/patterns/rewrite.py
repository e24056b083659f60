"""`invert.rewrite`: patterns on any JAX function, a user's own included."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeVar, cast

import jax

from invert._private.jax import eval_closed, trace_closed
from invert.ir import jaxprs
from invert.ir.types import JaxFunction, Tree, Value
from invert.patterns import STAGES
from invert.rewriting.driver import Rewriter
from invert.rewriting.pattern import EquationPattern, Pattern, Stage
from invert.rewriting.templates import written_call

_F = TypeVar("_F", bound=JaxFunction)


def rewrite(
    fn: _F,
    patterns: Sequence[Pattern | EquationPattern] | None = None,
    *,
    platform: str = "cpu",
) -> _F:
    """Apply patterns to the equations of a function.

    **Arguments:**

    - `fn`: any JAX function of arrays in pytrees.
    - `patterns`: the patterns to apply, in this order, each to a fixpoint; all of `invert`'s own by
        default.
    - `platform`: the platform for which preimage patterns lower their proposals.

    **Returns:** a function with the signature and values of `fn`. It is traced at every call, so
        wrap it in `jax.jit`. `jax.make_jaxpr` shows the rewritten program.

    ??? example

        ```python
        import jax
        import jax.numpy as jnp

        import invert


        def slow(x):
            return jax.lax.reduce_window(x, 0.0, jax.lax.add, (5,), (1,), ((4, 0),))


        print(jax.make_jaxpr(invert.rewrite(slow))(jnp.ones(5)))  # ... cumsum ...
        ```
    """
    stages = STAGES if patterns is None else tuple(Stage((p,)) for p in patterns)

    @functools.wraps(fn)
    def wrapper(*args: Value, **kwargs: object) -> Value:
        flat, in_tree = jax.tree_util.tree_flatten((args, kwargs))
        out_tree: list[Tree] = []

        def run(*values: Value) -> list[Value]:
            inner_args, inner_kwargs = jax.tree_util.tree_unflatten(in_tree, values)
            results, tree = jax.tree_util.tree_flatten(fn(*inner_args, **inner_kwargs))
            out_tree.append(tree)
            return results

        closed = jaxprs.canonicalize(trace_closed(run, *flat))
        rewriter = Rewriter(stages, written_call, platform)
        results = eval_closed(rewriter.run(closed), flat)
        return jax.tree_util.tree_unflatten(out_tree[-1], results)

    return cast(_F, wrapper)
