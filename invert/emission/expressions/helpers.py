"""Helper functions with names known from libraries, copied into texts that use them.

Their expressions are proved like all others; a file gets a copy of each one it calls.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from invert.emission.python import syntax
from invert.emission.python.syntax import call
from invert.ir.types import JaxFunction

if TYPE_CHECKING:
    from invert.emission.expressions.writer import Writer


def max_pool(x: Array, window: tuple[int, ...], strides: tuple[int, ...], padding: str) -> Array:
    """The largest number in each window; `x` is (batch, *sizes, channels)."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, *window, 1), (1, *strides, 1), padding)


def avg_pool(x: Array, window: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The mean in each window; `x` is (batch, *sizes, channels)."""
    total = lax.reduce_window(x, 0.0, lax.add, (1, *window, 1), (1, *strides, 1), "VALID")
    return total / math.prod(window)


def avg_pool_same(x: Array, window: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The mean of the numbers in each window around a pixel; those outside do not count."""

    def total(x: Array) -> Array:
        return lax.reduce_window(x, 0.0, lax.add, (1, *window, 1), (1, *strides, 1), "SAME")

    return total(x) / total(jnp.ones((1, *x.shape[1:-1], 1), x.dtype))


def chain(layers: tuple[Callable[[Array], Array], ...], x: Array) -> Array:
    """Apply layers in turn."""
    for layer in layers:
        x = layer(x)
    return x


def dropout(x: Array, rate: float, key: PRNGKeyArray) -> Array:
    """Zero in the place of a share `rate` of the numbers; the others are scaled up."""
    kept = jax.random.uniform(key, x.shape, x.dtype) >= rate
    return jnp.where(kept, x * (1 / (1 - rate)), 0.0)


def gelu(x: Array) -> Array:
    """The GELU by `tanh`, multiplied in TensorFlow's order."""
    return 0.5 * x * (1.0 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def leaky_relu(x: Array, negative_slope: float) -> Array:
    """The leaky ReLU of TensorFlow, whose derivative at zero is the slope."""
    return jnp.where(x > 0.0, x, x * negative_slope)


@functools.partial(jax.jit, static_argnums=1)
def resize_bilinear(x: Array, size: tuple[int, int]) -> Array:
    """Interpolate (batch, height, width, channels) as `tf.image.resize` does, to its rounding."""
    for axis, n in ((2, size[1]), (1, size[0])):
        source = (np.arange(n, dtype=np.float32) + 0.5) * np.float32(x.shape[axis] / n) - 0.5
        low = np.floor(source)
        weight = np.expand_dims(source - low, [i for i in range(4) if i != axis])
        lower = np.maximum(low, 0).astype(np.int32)
        upper = np.minimum(np.ceil(source).astype(np.int32), x.shape[axis] - 1)
        below = jnp.take(x, lower, axis=axis, mode="clip")
        x = below + (jnp.take(x, upper, axis=axis, mode="clip") - below) * weight
    return x


@functools.partial(jax.jit, static_argnums=(1, 2))
def resize_corners(x: Array, size: tuple[int, int], align: bool) -> Array:
    """Interpolate (batch, height, width, channels) between the corners of pixels.

    With `align`, the last pixels of both images are at one place too.
    """
    for axis, n in ((2, size[1]), (1, size[0])):
        last = x.shape[axis] - 1
        scale = np.float32(last / max(n - 1, 1) if align else x.shape[axis] / n)
        source = np.arange(n, dtype=np.float32) * scale
        low = np.floor(source)
        weight = np.expand_dims(source - low, [i for i in range(4) if i != axis])
        upper = np.minimum(np.ceil(source).astype(np.int32), last)
        below = jnp.take(x, low.astype(np.int32), axis=axis, mode="clip")
        x = below + (jnp.take(x, upper, axis=axis, mode="clip") - below) * weight
    return x


@functools.partial(jax.jit, static_argnums=1)
def resize_pixels(x: Array, size: tuple[int, int]) -> Array:
    """Interpolate (batch, height, width, channels) as `tf.image.resize` does, to its rounding."""
    for axis, n in ((2, size[1]), (1, size[0])):
        scale = x.shape[axis] / jnp.asarray(n, jnp.float32)
        source = (lax.iota(jnp.float32, n) + 0.5) * scale - 0.5
        low = jnp.floor(source)
        weight = jnp.expand_dims(source - low, [i for i in range(4) if i != axis])
        lower = jnp.maximum(low, 0.0).astype(jnp.int32)
        upper = jnp.minimum(jnp.ceil(source).astype(jnp.int32), x.shape[axis] - 1)
        below = jnp.take(x, lower, axis=axis, mode="clip")
        x = below + (jnp.take(x, upper, axis=axis, mode="clip") - below) * weight
    return x


def gather_nd(x: Array, indices: Array) -> Array:
    """The parts of `x` at indices, whose last axis indexes the first axes of `x`, clipped to it."""
    axes, rank = tuple(range(indices.shape[-1])), indices.ndim - 1
    sizes = (*(1 for _ in axes), *x.shape[len(axes) :])
    offsets = tuple(range(rank, rank + x.ndim - len(axes)))
    numbers = lax.GatherDimensionNumbers(offsets, axes, axes)
    return lax.gather(x, indices, numbers, sizes, mode="clip")


def scatter_nd(scatter: Callable[..., Array], x: Array, indices: Array, updates: Array) -> Array:
    """`x` with updates at indices, whose last axis indexes the first axes of `x`.

    Updates with an index that is negative or too large are dropped.
    """
    axes = tuple(range(indices.shape[-1]))
    window = tuple(range(indices.ndim - 1, updates.ndim))
    numbers = lax.ScatterDimensionNumbers(window, axes, axes)
    return scatter(x, indices, updates, numbers, mode="drop")


_ANY_SIZES = "*sizes"  # in docstrings
# Arguments of these functions.
_WINDOW, _STRIDES, _PADDING = "window", "strides", "padding"

# By placeholder name, until the file assigns one.
FUNCTIONS: Mapping[str, JaxFunction] = MappingProxyType(
    {
        "helper_max_pool": max_pool,
        "helper_avg_pool": avg_pool,
        "helper_avg_pool_same": avg_pool_same,
        "helper_chain": chain,
        "helper_dropout": dropout,
        "helper_gelu": gelu,
        "helper_leaky_relu": leaky_relu,
        "helper_resize_bilinear": resize_bilinear,
        "helper_resize_corners": resize_corners,
        "helper_resize_pixels": resize_pixels,
        "helper_gather_nd": gather_nd,
        "helper_scatter_nd": scatter_nd,
    }
)


# The name of a copy, where the package has two functions of one name.
COPIED: Mapping[str, str] = MappingProxyType({"resize_pixels": "resize_bilinear"})


def calling(function: JaxFunction, *args: ast.expr) -> ast.expr:
    """The call of one of these functions."""
    return call(f"helper_{function.__name__}", *args)


def named(expression: ast.expr, writer: Writer) -> ast.expr:
    """An expression with these functions under their names in the file, which gets copies."""
    used = {n.id for n in syntax.walk(expression) if isinstance(n, ast.Name) and n.id in FUNCTIONS}
    if not used:
        return expression
    return syntax.renamed(expression, {n: writer.copied(FUNCTIONS[n]) for n in sorted(used)})


def arranged(definitions: Sequence[ast.stmt], names: Collection[str]) -> list[ast.stmt]:
    """A file's definitions, with copies after constants and before their first use.

    A padding that all calls of a copy share becomes a part of it; the sizes of windows and strides
    that are squares in all calls are numbers.

    **Arguments:**

    - `names`: those of the copies.
    """
    copied = [d for d in definitions if isinstance(d, ast.FunctionDef) and d.name in names]
    others = [d for d in definitions if d not in copied]
    for definition in copied:
        if calls := _calls_of(definition, definitions):
            _fix_padding(definition, calls)
            _square(definition, calls)
    first = next((i for i, d in enumerate(others) if not isinstance(d, ast.Assign)), len(others))
    return [*others[:first], *copied, *others[first:]]


def _calls_of(
    definition: ast.FunctionDef, definitions: Sequence[ast.stmt]
) -> Sequence[ast.Call] | None:
    """A function's calls with all arguments; `None` if used otherwise."""
    nodes = [n for d in definitions for n in syntax.walk(d)]
    uses = sum(syntax.is_named(n, definition.name) for n in nodes)
    count = len(definition.args.args)
    called = [
        n for n in nodes if isinstance(n, ast.Call) and syntax.is_named(n.func, definition.name)
    ]
    return called if len(called) == uses and all(len(c.args) == count for c in called) else None


def _fix_padding(definition: ast.FunctionDef, calls: Sequence[ast.Call]) -> None:
    parameters = [a.arg for a in definition.args.args]
    if _PADDING not in parameters:
        return
    place = parameters.index(_PADDING)
    given = {syntax.text_of(c.args[place]): c.args[place] for c in calls}
    (value, *others) = given.values()
    if not others and isinstance(value, ast.Constant):
        _bind(definition, calls, place, value)


def _bind(
    definition: ast.FunctionDef, calls: Sequence[ast.Call], place: int, value: ast.expr
) -> None:
    """Replace an argument by a value in the body."""
    for each in calls:
        del each.args[place]
    parameter = definition.args.args.pop(place)
    _renumber_static(definition, place)
    definition.body = [syntax.substitute(s, {parameter.arg: value}) for s in definition.body]


def _renumber_static(definition: ast.FunctionDef, removed: int) -> None:
    """Keep the static arguments of a jitted function static without the argument at a place."""
    for decorator in definition.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "static_argnums":
                old = ast.literal_eval(keyword.value)
                places = old if isinstance(old, tuple) else (old,)
                kept = [p - (p > removed) for p in places if p != removed]
                keyword.value = syntax.tuple_of([syntax.number(p) for p in kept])


def _square(definition: ast.FunctionDef, calls: Sequence[ast.Call]) -> None:
    """Write sizes that are squares as numbers: `max_pool(x, 3, 2)`, or `max_pool(x, 2)`."""
    places = {a.arg: i for i, a in enumerate(definition.args.args)}
    if not {_WINDOW, _STRIDES} <= places.keys():
        return
    for name in (_WINDOW, _STRIDES):
        rows = [_number_and_rank(c.args[places[name]]) for c in calls]
        ranks = {rank for _, rank in rows}
        if 0 in ranks or len(ranks) > 1:
            continue
        for each, (size, _) in zip(calls, rows, strict=True):
            each.args[places[name]] = syntax.number(size)
        definition.args.args[places[name]].annotation = syntax.name("int")
        whole = _Whole(name, *ranks)
        definition.body = [whole.visit(s) for s in definition.body]
        _state_axes(definition, *ranks)
    pairs = [(c.args[places[_WINDOW]], c.args[places[_STRIDES]]) for c in calls]
    if all(ast.dump(window) == ast.dump(strides) for window, strides in pairs):
        _bind(definition, calls, places[_STRIDES], syntax.name(_WINDOW))


def _state_axes(definition: ast.FunctionDef, rank: int) -> None:
    """Write the axes of images in a docstring for one number of axes."""
    sizes = {1: "length", 2: "height, width", 3: "depth, height, width"}.get(rank, _ANY_SIZES)
    for node in syntax.walk(definition.body[0]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = node.value.replace(_ANY_SIZES, sizes)


def _number_and_rank(value: ast.expr) -> tuple[int, int]:
    """`3, 2` for `(3, 3)`; the rank is 0 for other expressions."""
    items = value.elts if isinstance(value, ast.Tuple) else []
    sizes = {i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, int)}
    plain = len(sizes) == 1 and all(isinstance(i, ast.Constant) for i in items)
    return (sizes.pop(), len(items)) if plain else (0, 0)


class _Whole(ast.NodeTransformer):
    """Writes `*window` as `window, window`, and the product of the sizes as a power."""

    def __init__(self, name: str, rank: int):
        self._name, self._rank = name, rank

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        items: list[ast.expr] = []
        for item in node.elts:
            own = isinstance(item, ast.Starred) and syntax.is_named(item.value, self._name)
            items += [syntax.name(self._name)] * self._rank if own else [item]
        node.elts = items
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if syntax.text_of(node) != f"math.prod({self._name})":
            return node
        size = syntax.name(self._name)
        return size if self._rank == 1 else syntax.infix(size, "**", syntax.number(self._rank))
