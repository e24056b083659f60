"""Expressions for equations that move elements: shapes, slices, indices."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.emission.expressions import helpers, literals
from invert.emission.expressions.proposals import axes_index
from invert.emission.layers.ties import may_be_same
from invert.emission.python import syntax
from invert.emission.python.syntax import call, item, method, number
from invert.emission.sizes.program import Program, is_half
from invert.ir.graph import is_var
from invert.ir.sizes import DimSize, is_open
from invert.ir.types import Eqn, Literal

Expressions = Iterator[ast.expr]
_ALL = syntax.slice_of
# Coordinates and colors, which are counted.
_FEW = 3


_index = syntax.one_or_tuple


def broadcast(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    shape = tuple(eqn.params["shape"])
    dims = tuple(eqn.params["broadcast_dimensions"])
    operand = eqn.invars[0]
    rank = len(operand.aval.shape)
    if rank == 0:
        dtype = literals.dtype(operand.aval.dtype)
        if isinstance(operand, Literal):
            value = operand.val
            if value == 0:
                yield call("jnp.zeros", literals.shape(shape), dtype)
            if value == 1:
                yield call("jnp.ones", literals.shape(shape), dtype)
            yield call("jnp.full", literals.shape(shape), args[0], dtype)
        yield call("jnp.full", literals.shape(shape), args[0])
        yield call("lax.full", literals.shape(shape), args[0])
    inserted = [i for i in range(len(shape)) if i not in dims]
    if rank and all(shape[i] == 1 for i in inserted) and len(inserted) <= 3:
        parts = [_ALL() if i in dims else number(None) for i in range(len(shape))]
        first = len(parts)
        while first and isinstance(parts[first - 1], ast.Slice):
            first -= 1
        leading = parts[:first]
        if len(inserted) < len(leading) and isinstance(leading[-1], ast.Constant):
            # `x[..., None]` rather than `x[:, :, None]`
            last = len(leading) - 1
            while last and isinstance(leading[last - 1], ast.Constant):
                last -= 1
            # Indices along a single axis are `i[:, None]`.
            least = 0 if jnp.issubdtype(operand.aval.dtype, jnp.inexact) else 1
            if all(isinstance(p, ast.Slice) for p in leading[:last]) and last > least:
                yield item(args[0], _index([ast.Constant(...), *leading[last:]]))
        yield item(args[0], _index(leading))
    yield call("jnp.broadcast_to", args[0], literals.shape(shape))
    if rank and (index := axes_index(dims, len(shape))) is not None:
        yield call("jnp.broadcast_to", item(args[0], index), literals.shape(shape))
    yield call(
        "lax.broadcast_in_dim", args[0], literals.shape(shape), syntax.tuple_of(map(number, dims))
    )


def reshape(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    sizes = eqn.params["new_sizes"]
    if is_var(eqn.invars[0]):
        if len(sizes) == 1:
            yield method(args[0], "reshape", number(-1))
        ones = sum(n == 1 for n in sizes)
        if len(sizes) > 1 and ones == len(sizes) - 1:
            # The size of a bias is left open, so that layers of different sizes share a text.
            parts = [number(1) if n == 1 else number(-1) for n in sizes]
            yield method(args[0], "reshape", *parts)
        old = eqn.invars[0].aval.shape
        if len(sizes) == 2 < len(old) and str(old[0]) == str(sizes[0]) and not is_open(sizes[1]):
            yield method(args[0], "reshape", literals.size(sizes[0]), number(-1))
        if sizes:
            yield method(args[0], "reshape", *(literals.size(n) for n in sizes))
    yield call("jnp.reshape", args[0], literals.shape(sizes))
    yield call("lax.reshape", args[0], literals.shape(sizes))


def convolution(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    """`lax.conv_general_dilated` with layouts as letters and without default arguments."""
    yield from transposed_convolution(eqn, args)
    params = eqn.params
    keywords = _dilations(eqn, "lhs_dilation", "rhs_dilation") | _layout(eqn)
    for name in ("feature_group_count", "batch_group_count"):
        if params[name] != 1:
            keywords[name] = literals.size(params[name])
    strides = literals.shape(params["window_strides"])
    explicit = literals.value(tuple(params["padding"]))
    for kind in _kinds(eqn):
        for padding in (_same_padding(eqn, program), explicit):
            if padding is not None:
                yield call("lax.conv_general_dilated", *args, strides, padding, **keywords, **kind)


def transposed_convolution(
    eqn: Eqn, args: Sequence[ast.expr], **keywords: ast.expr
) -> Iterator[ast.expr]:
    """`lax.conv_transpose` with the strides by which a convolution dilates its images."""
    params = eqn.params
    dilated = any(n != 1 for n in params["lhs_dilation"])
    groups = params["feature_group_count"], params["batch_group_count"]
    if not dilated or {*params["window_strides"]} != {1} or groups != (1, 1):
        return
    keywords = _dilations(eqn, "rhs_dilation") | _layout(eqn) | keywords
    if _has_channels_last(eqn):
        keywords.pop("dimension_numbers", None)  # the default, unlike that of other convolutions
    for kind in _kinds(eqn):
        for padding in (number("SAME"), number("VALID")):
            upscaled = [*args, literals.shape(params["lhs_dilation"]), padding]
            yield call("lax.conv_transpose", *upscaled, **keywords, **kind)


def _has_channels_last(eqn: Eqn) -> bool:
    images, kernel, out = eqn.params["dimension_numbers"]
    axes = range(len(images) - 2)
    last = (0, len(axes) + 1, *(i + 1 for i in axes))
    return images == out == last and kernel == (len(axes) + 1, len(axes), *axes)


def _dilations(eqn: Eqn, *names: str) -> dict[str, ast.expr]:
    dilations = {n: eqn.params[n] for n in names}
    return {n: literals.shape(d) for n, d in dilations.items() if any(k != 1 for k in d)}


def _layout(eqn: Eqn) -> dict[str, ast.expr]:
    """The layouts and the precision of a convolution, as keywords."""
    params = eqn.params
    spatial = len(params["window_strides"])
    keywords: dict[str, ast.expr] = {}
    numbers = params["dimension_numbers"]
    features, kernel = "NC" + "DHW"[3 - spatial :], "OI" + "DHW"[3 - spatial :]
    if spatial <= 3:
        layout = [
            "".join(letters[i] for i in _inverse(spec))
            for letters, spec in zip((features, kernel, features), numbers, strict=True)
        ]
        if layout != [features, kernel, features]:
            keywords["dimension_numbers"] = syntax.tuple_of(map(number, layout))
    else:
        keywords["dimension_numbers"] = literals.value(numbers)
    if (precision := params["precision"]) is not None:
        same = isinstance(precision, tuple) and precision[0] == precision[1]
        keywords["precision"] = literals.value(precision[0] if same else precision)
    return keywords


def _kinds(eqn: Eqn) -> list[dict[str, ast.expr]]:
    """The keywords for the type of the results, the short form first."""
    wanted = eqn.params["preferred_element_type"]
    return [{}] if wanted is None else [{}, {"preferred_element_type": literals.dtype(wanted)}]


def _inverse(spec: Sequence[int]) -> list[int]:
    return [list(spec).index(i) for i in range(len(spec))]


def _same_padding(eqn: Eqn, program: Program) -> ast.expr | None:
    """`"SAME"` or `"VALID"` if the padding may be that; tracing decides."""
    padding = eqn.params["padding"]
    if all(tuple(p) == (0, 0) for p in padding):
        # For a kernel of one pixel both are equal; other convolutions decide.
        return number("SAME" if _is_pointwise(eqn) and program.pads else "VALID")
    # At some sizes half of the kernel is "SAME": other convolutions decide.
    half = eqn.primitive is lax.conv_general_dilated_p and is_half(eqn) and program.halves
    named = may_be_same(padding) and not (half and max(eqn.params["window_strides"]) > 1)
    return number("SAME") if named else None


def _is_pointwise(eqn: Eqn) -> bool:
    """Return whether an equation is a convolution of single pixels."""
    numbers = eqn.params.get("dimension_numbers")
    if numbers is None:
        return False
    shape = eqn.invars[1].aval.shape
    return all(shape[axis] == 1 for axis in numbers.rhs_spec[2:])


_WINDOW = ("window_dimensions", "window_strides")


def pooling(name: str, init: str) -> Callable[[Eqn, Sequence[ast.expr], Program], Expressions]:
    """`lax.reduce_window` with the function of a monoid."""

    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        params = eqn.params
        aval = eqn.invars[0].aval
        start = syntax.template(init)
        if aval.dtype == np.bool_ and name != "add":
            start = literals.typed(np.asarray(name == "min"))
        elif not jnp.issubdtype(aval.dtype, jnp.inexact) and name != "add":
            limit = np.iinfo(aval.dtype)
            start = literals.typed(
                np.asarray(limit.min if name == "max" else limit.max, aval.dtype)
            )
        keywords = {
            k: literals.shape(params[k])
            for k in ("base_dilation", "window_dilation")
            if any(n != 1 for n in params[k])
        }
        sizes = [literals.shape(params[k]) for k in _WINDOW]
        if name == "max" and (inner := window(eqn)) is not None:
            for padding in filter(None, (_same_padding(eqn, program), number("VALID"))):
                yield helpers.calling(helpers.max_pool, args[0], *inner, padding)
        for padding in (_same_padding(eqn, program), literals.value(tuple(params["padding"]))):
            if padding is not None:
                function = syntax.name(f"lax.{name}")
                yield call(
                    "lax.reduce_window", args[0], start, function, *sizes, padding, **keywords
                )

    return row


def window(eqn: Eqn) -> list[ast.expr] | None:
    """A pooling's window and strides, if they leave the outer axes alone."""
    params = eqn.params
    channels_last = all(params[k][0] == params[k][-1] == 1 for k in _WINDOW)
    dilated = any(n != 1 for k in ("base_dilation", "window_dilation") for n in params[k])
    if not channels_last or dilated or len(eqn.invars[0].aval.shape) <= 2:
        return None
    return [literals.shape(params[k][1:-1]) for k in _WINDOW]


def squeeze(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    dims = eqn.params["dimensions"]
    axis = number(int(dims[0])) if len(dims) == 1 else syntax.tuple_of(number(int(d)) for d in dims)
    yield call("jnp.squeeze", args[0], axis=axis)
    yield call("lax.squeeze", args[0], syntax.tuple_of(number(int(d)) for d in dims))


def transpose(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    order = tuple(eqn.params["permutation"])
    if order == (1, 0):
        yield syntax.field(args[0], "T")
    moved = [i for i, axis in enumerate(order) if i != axis]
    if len(moved) == 2:
        yield call("jnp.swapaxes", args[0], number(moved[0]), number(moved[1]))
    yield call("jnp.transpose", args[0], syntax.tuple_of(map(number, order)))


def reverse(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    dims = eqn.params["dimensions"]
    backwards = syntax.slice_of(None, None, number(-1))
    parts = [backwards if i in dims else _ALL() for i in range(max(dims, default=0) + 1)]
    if len(parts) < 4:
        yield item(args[0], _index(parts))
    axis = number(int(dims[0])) if len(dims) == 1 else syntax.tuple_of(map(number, dims))
    yield call("jnp.flip", args[0], axis=axis)


def slice_parts(eqn: Eqn, program: Program) -> list[ast.expr]:
    """The index of a `slice` equation, a part for each axis."""
    params = eqn.params
    shape = program.shape(eqn.invars[0])
    strides = params["strides"] or (1,) * len(shape)
    parts = []
    for start, limit, step, size in zip(
        params["start_indices"], params["limit_indices"], strides, shape, strict=True
    ):
        parts.append(
            syntax.slice_of(
                None if start == 0 else literals.size(start),
                None if limit == size else _end(limit, size),
                None if step == 1 else number(int(step)),
            )
        )
    return parts


def _end(limit: DimSize, size: DimSize) -> ast.expr:
    """`-1` for all but the last of many: of a few, as of `rgba[..., :3]`, the number says more."""
    last = isinstance(limit, int) and isinstance(size, int) and _FEW < limit == size - 1
    return number(-1) if last else literals.size(limit)


def shortened(parts: list[ast.expr]) -> list[ast.expr]:
    """The index without trailing full slices."""
    whole = [isinstance(p, ast.Slice) and not (p.lower or p.upper or p.step) for p in parts]
    end = len(parts)
    while end > 1 and whole[end - 1]:
        end -= 1
    start = 0
    while start < end - 1 and whole[start]:
        start += 1
    if start > 2 and end == len(parts):
        return [ast.Constant(...), *parts[start:end]]
    return parts[:end]


def slices(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    if is_var(eqn.invars[0]):
        yield item(args[0], _index(shortened(slice_parts(eqn, program))))
    params = eqn.params
    bounds = [literals.shape(params[n]) for n in ("start_indices", "limit_indices")]
    strides = [] if params["strides"] is None else [literals.shape(params["strides"])]
    shape = program.shape(eqn.invars[0])
    steps = params["strides"] or (1,) * len(shape)
    ends = zip(params["start_indices"], params["limit_indices"], steps, shape, strict=True)
    cut = [
        (axis, start, number(None) if limit == n else literals.size(limit), step)
        for axis, (start, limit, step, n) in enumerate(ends)
        if start != 0 or limit != n or step != 1
    ]
    if len(cut) == 1:
        ((axis, start, limit, step),) = cut
        stride = [] if step == 1 else [number(int(step))]
        part = (literals.size(start), limit, *stride)
        yield call("lax.slice_in_dim", args[0], *part, axis=number(axis))
    yield call("lax.slice", args[0], *bounds, *strides)


def dynamic_slice(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    sizes = literals.shape(eqn.params["slice_sizes"])
    for keywords in ({}, _IN_BOUNDS):
        yield call("lax.dynamic_slice", args[0], syntax.tuple_of(args[1:]), sizes, **keywords)


def dynamic_update_slice(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    for keywords in ({}, _IN_BOUNDS):
        yield call("lax.dynamic_update_slice", *args[:2], syntax.tuple_of(args[2:]), **keywords)


# Indices are not counted from the end.
_IN_BOUNDS = {"allow_negative_indices": number(False)}


# The names of the modes of lookups.
MODES: Mapping[object, str] = {
    lax.GatherScatterMode.CLIP: "clip",
    lax.GatherScatterMode.FILL_OR_DROP: "fill",
    lax.GatherScatterMode.PROMISE_IN_BOUNDS: "promise_in_bounds",
}


def gather(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    params = eqn.params
    keywords = {}
    for name, default in (("unique_indices", False), ("indices_are_sorted", False)):
        if params[name] is not default:
            keywords[name] = number(params[name])
    mode = params["mode"]
    if mode is not None:
        keywords["mode"] = number(MODES[mode]) if mode in MODES else literals.value(mode)
    if params["fill_value"] is not None:
        keywords["fill_value"] = literals.value(params["fill_value"])
    numbers = params["dimension_numbers"]
    if len(numbers.start_index_map) == 1 and not numbers.operand_batching_dims:
        axis = number(int(numbers.start_index_map[0]))
        column = call("jnp.squeeze", args[1], axis=number(-1))
        yield call("jnp.take", args[0], column, axis=axis, **keywords)
    if keywords.keys() == {"mode"} and mode == lax.GatherScatterMode.CLIP:
        yield helpers.calling(helpers.gather_nd, *args)
    fields = {f: getattr(numbers, f) for f in numbers._fields if getattr(numbers, f)}
    dims = call(
        "lax.GatherDimensionNumbers",
        **{
            f: literals.value(getattr(numbers, f))
            for f in numbers._fields
            if f in fields or "batching" not in f
        },
    )
    yield call(
        "lax.gather", *args, dims, slice_sizes=literals.shape(params["slice_sizes"]), **keywords
    )
