"""The gradients that TensorFlow registers for ops which go over the XLA bridge.

What XLA makes of an op need not have the derivative that TensorFlow gives the op: rounding has
none, where `FakeQuant…` passes gradients straight through; an iteration does not differentiate
backwards. So the gradient is traced by TensorFlow, on placeholders in a graph of its own, and the
results of the op are marked as those of a function with this gradient
(`invert.ir.gradient_marker`). A later stage keeps it where it differs from automatic
differentiation.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from invert._errors import UnsupportedOpError
from invert._private.tensorflow import tf_scratch_graph
from invert.ir.gradient_marker import Gradient, mark
from invert.tf.fallback.eager import constants_of, graph_of
from invert.tf.gradients.read import gradient_graph
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import REGISTRY
from invert.tf.ops.node import import_tensorflow

# The graph, its inputs and outputs by name, for each operand whether it has a gradient, and whether
# there are ops in it that go over the bridge in turn.
_Traced = tuple[Any, tuple[str, ...], tuple[str, ...], tuple[bool, ...], bool]


def marked(
    ctx: Context,
    location: str,
    key: tuple[Any, ...],
    operands: Sequence[Any],
    results: Sequence[Any],
) -> list[Any]:
    """The results of an op, with the gradient that TensorFlow has for it.

    **Arguments:**

    - `key`: the op, its proto, its library, and types and inputs, as the bridge compiled it.
    - `operands`: the inputs that are not constants in it.
    """
    traced = _trace(*key) if ctx.graph.reads_gradients else None
    if traced is None:
        return list(results)
    graph, inputs, outputs, has, nested = traced
    make = functools.lru_cache(
        functools.partial(gradient_graph, graph, ctx.graph, list(inputs), list(outputs))
    )

    def run(captures: Sequence[Any], cotangents: Sequence[Any], nested: bool) -> list[Any | None]:
        analysis = make(nested)
        if problems := analysis.problems():
            raise UnsupportedOpError(problems)
        found = iter(analysis.run([*captures, *cotangents]))
        return [next(found) if exists else None for exists in has]

    read_nested = functools.partial(make, True) if nested else None
    gradient = Gradient(location, run, read_nested=read_nested)
    return mark(gradient, results, operands, operands)


@functools.lru_cache(maxsize=1024)
def _trace(
    op: str, text: bytes, library: bytes, types: tuple[int, ...], inputs: tuple[Any, ...]
) -> _Traced | None:
    """The graph of the gradient; `None` where TensorFlow has none."""
    tf = import_tensorflow()
    scratch = tf_scratch_graph(f"gradient_of_{op}")
    with scratch.as_default():
        tensors = constants_of(types, inputs, tf.compat.v1.placeholder)
        operands = [t for t, (_, value) in zip(tensors, inputs, strict=True) if value is None]
        results = [t for t in graph_of(text, library, tensors) if _is_number(t)]
        numbers = [t for t in operands if _is_number(t)]
        if not results or not numbers:
            return None
        cotangents = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in results]
        try:
            found = tf.gradients(results, numbers, cotangents)
        # What TensorFlow raises where no gradient is registered, or its function refuses.
        except (LookupError, NotImplementedError, TypeError, ValueError, tf.errors.OpError):
            return None
        dense = [None if g is None else tf.identity(tf.convert_to_tensor(g)) for g in found]
    of = dict(zip(map(id, numbers), dense, strict=True))
    outputs = [of.get(id(t)) for t in operands]
    if all(g is None for g in outputs):
        return None
    return (
        scratch,
        tuple(t.name for t in (*operands, *cotangents)),
        tuple(g.name for g in outputs if g is not None),
        tuple(g is not None for g in outputs),
        any(REGISTRY.is_bridged(op.type) for op in scratch.get_operations()),
    )


def _is_number(tensor: Any) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex
