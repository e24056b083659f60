"""Cumulative reductions, argmax and argmin, selecting windows, and approximate top-k."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from invert.ir.types import Atom, Aval
from invert.rewriting.pattern import Call, Pattern, Site, bind

_CUMULATIVE = {
    "reduce_window_sum": (lax.cumsum_p,),
    "reduce_window_max": (lax.cummax_p,),
    "reduce_window_min": (lax.cummin_p,),
    "reduce_window": (lax.cumprod_p, lax.cumlogsumexp_p, lax.cummax_p, lax.cummin_p),
}


def _cumulative(site: Site) -> Iterator[Call]:
    """A window over its whole axis, padded on one side -> a cumulative reduction."""
    eqn = site.eqn
    x = site.aval(eqn.invars[0])
    window, padding = eqn.params["window_dimensions"], eqn.params["padding"]
    for axis, (n, size) in enumerate(zip(x.shape, window, strict=True)):
        if n != size or tuple(padding[axis]) not in ((n - 1, 0), (0, n - 1)):
            continue
        for reverse in (False, True) if n == 1 else (tuple(padding[axis]) != (n - 1, 0),):
            for primitive in _CUMULATIVE[eqn.primitive.name]:
                yield bind(primitive, x, axis=axis, reverse=reverse)


def _arg(site: Site) -> Iterator[Call]:
    """A reduction of (values, positions) -> argmax or argmin."""
    eqn = site.eqn
    axes = eqn.params["dimensions"]
    if len(eqn.invars) != 4 or len(axes) != 1:
        return
    x, dtype = site.aval(eqn.invars[0]), eqn.outvars[1].aval.dtype
    for primitive in (lax.argmax_p, lax.argmin_p):
        yield bind(primitive, x, axes=tuple(axes), index_dtype=dtype)


_WINDOW = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


def _select_and_gather_add(site: Site) -> Iterator[Call]:
    """A window over (keys, values) that returns the value of the extreme key."""
    eqn = site.eqn
    if len(eqn.invars) != 4:
        return
    operands = eqn.invars[:2]
    params = {name: eqn.params[name] for name in _WINDOW}
    # bfloat16 and float16 are computed in wider types, between conversions.
    sources = [s for a in operands if (s := site.producer(a, "convert_element_type")) is not None]
    narrow = [s.invars[0] for s in sources]
    for pair in (operands, narrow) if len(narrow) == 2 else (operands,):
        for prim in (lax.ge_p, lax.le_p):
            avals = map(site.aval, pair)
            yield bind(lax.select_and_gather_add_p, *avals, select_prim=prim, **params)


def _select_and_scatter_add(site: Site) -> Iterator[Call]:
    """`slice (select_and_scatter source (pad x))` -> `select_and_scatter_add[padding=...]`."""
    eqn = site.eqn
    source, x = eqn.invars[:2]
    if eqn.primitive.name == "select_and_scatter":
        source, x = x, source
    while (converted := site.producer(x, "convert_element_type")) is not None:
        (x,) = converted.invars
    if (pad := site.producer(x, "pad")) is None:
        return
    operand = site.aval(pad.invars[0])
    padding = tuple((low, high) for low, high, _ in pad.params["padding_config"])
    for prim in (lax.ge_p, lax.le_p):
        yield bind(
            lax.select_and_scatter_add_p,
            jax.ShapeDtypeStruct(source.aval.shape, operand.dtype),
            operand,
            select_prim=prim,
            window_dimensions=eqn.params["window_dimensions"],
            window_strides=eqn.params["window_strides"],
            padding=padding,
        )


def _approx_top_k(site: Site) -> Iterator[Call]:
    """The custom call `ApproxTopK`, with options in the backend configuration -> approx_top_k."""
    params = site.eqn.params
    if params["target"] not in ("ApproxTopK", "PartialReduce"):
        return
    text = dict(params["attributes"]).get("mhlo.backend_config", "")
    options = dict(re.findall(r"(\w+) = ([\w.+-]+)", text))
    x = site.aval(site.eqn.invars[0])
    out = site.eqn.outvars[0].aval
    dimension = int(options.get("reduction_dim", -1))
    aggregate = options.get("aggregate_to_topk") == "true"
    k = int(options.get("top_k", out.shape[dimension]))
    for is_max in (True, False):
        # The module holds the rate in float32; the author wrote a short decimal.
        rate = float(f"{float(options.get('recall_target', 0.95)):.7g}")
        for axis in (dimension, dimension - len(x.shape)):
            yield bind(
                lax.approx_top_k_p,
                x,
                k=k,
                reduction_dimension=axis,
                recall_target=rate,
                is_max_k=is_max,
                reduction_input_size_override=int(options.get("reduction_input_size_override", -1)),
                aggregate_to_topk=aggregate,
            )


def _dot_general(site: Site) -> Iterator[Call]:
    """Products of mixed types, whose narrower operand the lowering widens."""
    params = site.eqn.params
    operands = [site.aval(a) for a in site.eqn.invars]
    narrow = [_widened(site, a) for a in site.eqn.invars]
    (x, y), (a, b) = operands, narrow
    for pair in ((a, b), (a, y), (x, b)):
        types = [t for t in pair if t is not None]
        if len(types) == 2:
            yield bind(lax.dot_general_p, *types, **params)


def _widened(site: Site, atom: Atom) -> Aval | None:
    """The type before a widening conversion to `atom`, if there was one.

    Nobody writes a mixed product in order to round an operand.
    """
    if (eqn := site.producer(atom, "convert_element_type")) is None:
        return None
    before, after = site.aval(eqn.invars[0]), site.aval(atom)
    return before if _widens(before.dtype, after.dtype) else None


def _widens(before: DTypeLike, after: DTypeLike) -> bool:
    """Return whether a type promotes to another; floats of 8 bits and integers of fewer promote to
    none in JAX, and count by their bits."""
    ours, theirs = _narrow_bits(before), _narrow_bits(after)
    if ours is None and theirs is None:
        return jnp.promote_types(before, after) == after
    if ours is None:
        return False
    if not jnp.issubdtype(after, jnp.floating):
        return jnp.issubdtype(before, jnp.integer) and ours < jnp.iinfo(after).bits
    return jnp.issubdtype(before, jnp.integer) or ours < jnp.finfo(after).bits


def _narrow_bits(dtype: DTypeLike) -> int | None:
    """The bits of a type without implicit promotion."""
    if jnp.issubdtype(dtype, jnp.floating):
        return bits if (bits := jnp.finfo(dtype).bits) <= 8 else None
    if jnp.issubdtype(dtype, jnp.integer):
        return bits if (bits := jnp.iinfo(dtype).bits) < 8 else None
    return None


PATTERNS = (
    Pattern("cumulative", tuple(_CUMULATIVE), _cumulative),
    Pattern("argmax", ("reduce",), _arg),
    Pattern("select_and_gather_add", ("reduce_window",), _select_and_gather_add),
    Pattern(
        "select_and_scatter_add",
        ("select_and_scatter_add", "select_and_scatter"),
        _select_and_scatter_add,
    ),
    Pattern("approx_top_k", ("custom_call",), _approx_top_k),
    Pattern("dot_general", ("dot_general",), _dot_general),
)
