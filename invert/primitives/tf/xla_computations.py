"""The ops of XLA that take a computation on scalars: reductions, windows, scatters, sorts.

Computations are functions of the graph. Those for which JAX has a primitive are recognized, so that
e.g. `reduce_max` is recovered and differentiable.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import close_like, eval_closed, live_part, open_jaxpr, trace_closed
from invert.ir.interpret import inline_calls
from invert.ir.traced_form import difference, strong
from invert.ir.types import Aval, ClosedJaxpr, JaxFunction
from invert.primitives.sorting import by_assumption, merge_sort, sorted_by
from invert.primitives.stablehlo.indexing import scatter
from invert.primitives.stablehlo.reduction import bind_select_and_scatter, of_sides, reduced
from invert.primitives.tf.elementwise import BINARY
from invert.primitives.tf.xla import message_of
from invert.protos.types import ScatterDimensionNumbers
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Ints, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays, axis_of


def _computation(ctx: Context, node: Node, name: str, types: Sequence[Aval]) -> ClosedJaxpr:
    """A graph function as a program on scalars of the arrays' dtypes."""

    def run(*scalars: Array) -> list[Array]:
        return arrays(ctx.on(dict(ctx.state)).call(name, scalars))

    closed = trace_closed(run, *(jax.ShapeDtypeStruct((), x.dtype) for x in types))
    program = strong(inline_calls(closed))
    if any(v.aval.shape for v in open_jaxpr(program).outvars):
        raise node.error(
            f"has a computation {name!r} whose results are not scalars",
            "Return one scalar for each operand.",
        )
    return program


def _function(program: ClosedJaxpr) -> JaxFunction:
    return lambda *scalars: eval_closed(program, scalars)


def _single(program: ClosedJaxpr) -> tuple[str, bool] | None:
    """The primitive of `(x, y) -> op(x, y)`, and whether operands keep this order."""
    jaxpr = open_jaxpr(program)
    if len(jaxpr.eqns) != 1 or jaxpr.outvars != jaxpr.eqns[0].outvars or len(jaxpr.invars) != 2:
        return None
    operands = jaxpr.eqns[0].invars
    if operands not in (jaxpr.invars, jaxpr.invars[::-1]):
        return None
    return jaxpr.eqns[0].primitive.name, operands == jaxpr.invars


_MONOIDS: dict[str, JaxFunction] = {
    "add": lax.add,
    "mul": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}


def _monoid(program: ClosedJaxpr) -> str | None:
    """The primitive that a computation consists of, if it is one."""
    single = _single(program)
    if single is not None:
        return single[0]
    scalars = [v.aval for v in open_jaxpr(program).invars]
    if len(scalars) != 2:
        return None
    # Their rules define the gradient at ties, which computations do not.
    for op, name in (("Maximum", "max"), ("Minimum", "min")):
        if difference(program, strong(trace_closed(BINARY[op][0], *scalars))) is None:
            return name
    return None


def _reducer(program: ClosedJaxpr) -> JaxFunction:
    """The computation for `lax.reduce`: the function of a monoid if it is one."""
    return _MONOIDS.get(_monoid(program) or "") or of_sides(_function(program))


def _reduce(
    ctx: Context, node: Node, operands: Sequence[Value], function: str, dimensions: Sequence[int]
) -> list[Array]:
    """Reduce arrays together; the operands are the arrays, then their initial values."""
    n = len(operands) // 2
    inputs = [_positions(v) for v in operands[:n]]
    # A known one stays a number, by which `lax` recognizes its own reductions.
    initial = [v if isinstance(v, np.ndarray) else array(v) for v in operands[n:]]
    axes = tuple(axis_of(d, inputs[0].ndim) for d in dimensions)
    program = _computation(ctx, node, function, [*inputs, *inputs])
    reduce = functools.partial(lax.reduce, dimensions=axes)
    return reduced(reduce, _reducer(program), [*inputs, *initial])


def _positions(value: Value) -> Array:
    """An operand; `iota` for positions along an axis, as in an argmax."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "i":
        for axis, size in enumerate(value.shape):
            if size > 1 and (np.moveaxis(value, axis, -1) == np.arange(size)).all():
                return lax.broadcasted_iota(value.dtype, value.shape, axis)
    return array(value)


@rule("XlaReduce", "XlaVariadicReduce", "XlaVariadicReduceV2", folds_operands=True)
def _reduction(
    *operands: Value, ctx: Context, node: Node, reducer: str, dimensions_to_reduce: list[int]
) -> list[Array]:
    return _reduce(ctx, node, operands, reducer, dimensions_to_reduce)


@rule("XlaReduceWindow", folds_operands=True)
def _reduce_window(
    x: Array,
    init_value: Value,
    window_dimensions: Ints,
    window_strides: Ints,
    base_dilations: Ints,
    window_dilations: Ints,
    padding: Ints,
    *,
    ctx: Context,
    node: Node,
    computation: str,
) -> Array:
    known = isinstance(init_value, np.ndarray)
    return lax.reduce_window(
        x,
        init_value if known else array(init_value),
        _reducer(_computation(ctx, node, computation, [x, x])),
        window_dimensions,
        window_strides,
        list(zip(padding[::2], padding[1::2], strict=True)),
        base_dilations,
        window_dilations,
    )


@rule("XlaSelectAndScatter", folds_operands=True)
def _select_and_scatter(
    operand: Array,
    window_dimensions: Ints,
    window_strides: Ints,
    padding: Ints,
    source: Array,
    init_value: Array,
    *,
    ctx: Context,
    node: Node,
    select: str,
    scatter: str,
) -> Array:
    selects = _computation(ctx, node, select, [operand, operand])
    scatters = _computation(ctx, node, scatter, [operand, operand])
    direction = _single(selects)
    adds = _single(scatters) in (("add", True), ("add", False))
    in_order = direction is not None and direction[1]
    return bind_select_and_scatter(
        operand,
        of_sides(_function(selects)),
        window_dimensions,
        window_strides,
        tuple(zip(padding[::2], padding[1::2], strict=True)),
        source,
        init_value,
        of_sides(_function(scatters)),
        direction[0].upper() if direction is not None and adds and in_order else None,
    )


_SCATTERS: dict[str, JaxFunction] = {
    "add": lax.scatter_add,
    "sub": lax.scatter_sub,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


def _scatter_kind(program: ClosedJaxpr) -> JaxFunction | None:
    """The scatter of an update: `(x, y) -> y` sets, one op combines."""
    jaxpr = open_jaxpr(program)
    if not jaxpr.eqns and jaxpr.outvars == jaxpr.invars[1:]:
        return lax.scatter
    reverse = _single(program) == ("sub", False)
    return None if reverse else _SCATTERS.get(_monoid(program) or "")


@rule("XlaScatter", ignores=("dimension_numbers",))
def _scatter(
    operand: Array,
    scatter_indices: Array,
    updates: Array,
    *,
    ctx: Context,
    node: Node,
    update_computation: str,
    indices_are_sorted: bool,
) -> Array:
    dims = message_of(node, "dimension_numbers", ScatterDimensionNumbers)
    program = _computation(ctx, node, update_computation, [operand, operand])
    return scatter(
        (operand, scatter_indices, updates),
        dims,
        dims.scatter_dims_to_operand_dims,
        _scatter_kind(program) or (open_jaxpr(program), ()),
        indices_are_sorted=indices_are_sorted,
        unique_indices=False,
    )


# -- sorts


@rule("XlaVariadicSort", folds_operands=True)
def _variadic_sort(
    *operands: Value, ctx: Context, node: Node, comparator: str, is_stable: bool
) -> list[Array]:
    *given, last = operands
    if not isinstance(last, np.ndarray):
        raise node.error(
            "sorts along a dimension that depends on data", "Sort along another dimension."
        )
    inputs = tuple(arrays(given))
    dimension = axis_of(int(last), inputs[0].ndim)
    pairs = [x for x in inputs for _ in range(2)]
    program = _computation(ctx, node, comparator, pairs)
    types = tuple(np.dtype(x.dtype) for x in inputs)
    for num_keys in range(1, len(inputs) + 1):
        if difference(program, _comparator(types, num_keys)) is None:
            keys = {"num_keys": num_keys, "is_stable": is_stable}
            return list(lax.sort(inputs, dimension=dimension, **keys))
    found = _sorted_by_key(program, inputs, dimension)
    if found is not None:
        return found
    with by_assumption():
        return merge_sort(_function(program), inputs, dimension)


@functools.lru_cache(maxsize=256)
def _comparator(types: tuple[np.dtype, ...], num_keys: int) -> ClosedJaxpr:
    """The comparator of jax2tf for a sort by keys: -0 equals 0, NaN last."""
    scalars = [jax.ShapeDtypeStruct((), t) for t in types for _ in range(2)]

    def compare(*pairs: Array) -> Array:
        keys = [
            part
            for x, y in zip(pairs[: 2 * num_keys : 2], pairs[1 : 2 * num_keys : 2], strict=True)
            for part in _parts(x, y)
        ]
        before: Array | None = None
        for x, y in reversed(keys):
            first = lax.lt(x, y)
            before = first if before is None else first | (lax.eq(x, y) & before)
        assert before is not None
        return before

    return strong(trace_closed(compare, *scalars))


def _parts(x: Array, y: Array) -> list[tuple[Array, Array]]:
    """The numbers that a key is compared by."""
    if jnp.iscomplexobj(x):
        return [*_parts(lax.real(x), lax.real(y)), *_parts(lax.imag(x), lax.imag(y))]
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return [(x, y)]
    return [(_ordered(x), _ordered(y))]


def _ordered(x: Array) -> Array:
    """An integer with the same order as the number, as jax2tf computed it."""
    without_sign = lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, 0), x)
    x = lax.select(lax.ne(x, x), lax.full_like(x, np.nan), without_sign)
    bits = x.dtype.itemsize * 8
    signed, unsigned = np.dtype(f"int{bits}"), np.dtype(f"uint{bits}")
    integer = lax.bitcast_convert_type(x, signed)
    sign = lax.shift_right_arithmetic(integer, np.asarray(bits - 1, signed))
    mask = lax.bitcast_convert_type(sign, unsigned)
    mask = lax.shift_right_logical(mask, np.asarray(1, unsigned))
    return lax.bitwise_xor(integer, lax.bitcast_convert_type(mask, signed))


def _sorted_by_key(
    program: ClosedJaxpr, operands: Sequence[Array], axis: int
) -> list[Array] | None:
    """A stable sort if the comparator is `key(a) < key(b)` or `>`; otherwise `None`."""
    jaxpr = open_jaxpr(program)
    last = jaxpr.eqns[-1] if jaxpr.eqns else None
    if last is None or last.outvars != jaxpr.outvars or last.primitive.name not in ("lt", "gt"):
        return None
    sides = [close_like(program, jaxpr.replace(outvars=[atom])) for atom in last.invars]
    used = [live_part(open_jaxpr(side), [True])[1] for side in sides]
    first = [any(u[::2]) for u in used]
    second = [any(u[1::2]) for u in used]
    if sorted(zip(first, second, strict=True)) != [(False, True), (True, False)]:
        return None

    def on_row(side: ClosedJaxpr, *row: Array) -> Array:
        return eval_closed(side, [x for x in row for _ in range(2)])[0]

    scalars = [jax.ShapeDtypeStruct((), x.dtype) for x in operands]
    keys = [trace_closed(functools.partial(on_row, side), *scalars) for side in sides]
    if difference(*keys) is not None:
        return None
    flat = jax.vmap(functools.partial(on_row, sides[0]))(*(x.reshape(-1) for x in operands))
    key = flat.reshape(operands[0].shape)
    descending = (last.primitive.name == "gt") == first[0]
    if not jnp.issubdtype(key.dtype, jnp.floating):
        return sorted_by(lax.bitwise_not(key) if descending else key, operands, axis)
    with by_assumption():  # NaN is neither before, after nor equal to another number
        return sorted_by(-key if descending else key, operands, axis)
