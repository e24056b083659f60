"""Gradient arrays of tensor arrays, created before the body that uses them."""

from __future__ import annotations

from invert.tf.interpreter.context import Context
from invert.tf.values import tensor_list as lists


def gradient_arrays(ctx: Context, inner: Context) -> bool:
    """Create gradient arrays before the body that creates them; return whether there were any.

    Each loop step and each branch requests the gradient array again, and means the same one.
    """
    new = [r for r in inner.state if r.kind == "tensor_array_gradient" and r not in ctx.state]
    for resource in new:
        lst = inner.state[resource]
        element = lists.known_element(lst)
        ctx.write(resource, lists.empty(lst.dtype, element, lst.size))
    return bool(new)
