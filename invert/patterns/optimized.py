"""Rewrites for speed on a platform, equal up to rounding, derivatives included.

They recover nothing, so they are not in `STAGES`: `Config(optimize=...)` and `invert.optimize`
select them. `optimized.json`, written by `benchmarks/optimize.py`, says for which operands a
rewrite pays: for each kind it has the time of the rewritten program relative to the original,
forward and with the gradient.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import resources

import jax.numpy as jnp
from jax import lax

from invert.ir import fast
from invert.ir.sizes import is_open
from invert.ir.types import ClosedJaxpr, JaxFunction, Value
from invert.patterns import gradient_order
from invert.rewriting.pattern import (
    Call,
    EquationPattern,
    Pattern,
    ProgramPattern,
    Site,
    Stage,
)

FILE = "optimized.json"
# A rewrite pays if both passes together get faster, and neither gets slower, by more than the noise
# of a shared machine.
SLOWER, FASTER = 1.05, 0.9

Pays = Callable[[str, str], bool]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The replacement of an equation, and the kind of its operands."""

    kind: str
    function: JaxFunction


@functools.cache
def measured() -> Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]:
    """Time ratios of forward pass and gradient, by platform, rewrite and kind of operands."""
    return json.loads(resources.files("invert.patterns").joinpath(FILE).read_text())


def pays_on(platform: str) -> Pays:
    """Return whether a rewrite pays on a platform, for a measured kind of operands."""
    table = measured().get(platform, {})

    def pays(name: str, kind: str) -> bool:
        forward, gradient = table.get(name, {}).get(kind, (math.inf, math.inf))
        return max(forward, gradient) <= SLOWER and forward * gradient <= FASTER

    return pays


def stage(pays: Pays, disabled: Collection[str] = ()) -> Stage:
    """The rewrites, each only for operands where it pays."""
    of_equations = (
        EquationPattern(name, roots, functools.partial(_rewrite, name, plan, pays))
        for name, (roots, plan) in _PLANS.items()
    )
    of_several = (
        Pattern(name, roots, functools.partial(_calls, name, propose, pays))
        for name, (roots, propose) in _PROPOSALS.items()
    )
    of_programs = (
        ProgramPattern(name, functools.partial(rewrite, pays=functools.partial(pays, name)))
        for name, rewrite in _PROGRAMS.items()
    )
    patterns = (*of_equations, *of_several, *of_programs)
    return Stage(tuple(p for p in patterns if p.name not in disabled))


def names() -> tuple[str, ...]:
    """The names of the rewrites, which `Config(disabled_patterns=...)` takes too."""
    return (*_PLANS, *_PROPOSALS, *_PROGRAMS)


def _rewrite(
    name: str, plan: Callable[[Site], Plan | None], pays: Pays, site: Site
) -> JaxFunction | None:
    planned = plan(site)
    return planned.function if planned is not None and pays(name, planned.kind) else None


def _calls(
    name: str, propose: Callable[[Site], tuple[str, Call] | None], pays: Pays, site: Site
) -> Iterator[Call]:
    found = propose(site)
    if found is not None and pays(name, found[0]):
        yield found[1]


def _bound(n: int, bounds: Sequence[int]) -> int | None:
    """The first of `bounds` that is at least `n`; `None` if all are smaller."""
    return next((b for b in bounds if n <= b), None)


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """A convolution in the layout `(batch, *sizes, channels)`."""

    dtype: str
    sizes: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    spread: tuple[int, ...]
    dilation: tuple[int, ...]
    plain: bool
    orders: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

    @staticmethod
    def of(site: Site) -> _Convolution | None:
        """The convolution at a site; `None` if its types or sizes are not rewritten."""
        params = site.eqn.params
        x, kernel = (site.aval(a) for a in site.eqn.invars)
        numbers = params["dimension_numbers"]
        lhs, out = ((s[0], *s[2:], s[1]) for s in (numbers.lhs_spec, numbers.out_spec))
        # The kernel becomes (*window, in, out).
        results, inputs, *window = numbers.rhs_spec
        rhs = (*window, inputs, results)
        sizes = tuple(x.shape[i] for i in lhs[1:])
        if (
            x.dtype not in _DTYPES
            or not x.dtype == kernel.dtype == site.out.dtype
            or params["batch_group_count"] != 1
            or any(map(is_open, (*sizes, *kernel.shape, *site.out.shape[1:])))
            or 0 in (*sizes, *kernel.shape, *site.out.shape[1:])
        ):
            return None
        back = tuple(out.index(i) for i in range(len(out)))
        return _Convolution(
            x.dtype.name, sizes[:-1], sizes[-1], tuple(kernel.shape[i] for i in rhs),
            params["feature_group_count"], tuple(params["window_strides"]),
            tuple(map(tuple, params["padding"])), tuple(params["lhs_dilation"]),
            tuple(params["rhs_dilation"]),
            params["precision"] is None and params.get("out_sharding") is None,
            (lhs, rhs, back),
        )  # fmt: skip

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel[:-2])

    @property
    def strided(self) -> str:
        return ", strided" if set(self.strides) != {1} else ""

    def over(self, run: Callable[[Value, Value], Value]) -> JaxFunction:
        """`run`, which takes channels-last arrays, on arrays in the site's layout."""
        lhs, rhs, back = self.orders

        def function(x: Value, kernel: Value) -> list[Value]:
            return [_ordered(run(_ordered(x, lhs), _ordered(kernel, rhs)), back)]

        return function


_DTYPES = tuple(map(jnp.dtype, ("float16", "bfloat16", "float32", "float64")))


def _ordered(x: Value, order: Sequence[int]) -> Value:
    return x if list(order) == sorted(order) else lax.transpose(x, tuple(order))


def _depthwise(function: Callable[..., Value], site: Site) -> Plan | None:
    """A depthwise convolution -> a sum of shifted products."""
    conv = _Convolution.of(site)
    if conv is None or conv.groups != conv.channels or conv.channels == 1:
        return None
    taps, channels = _bound(conv.taps, (1, 9, 25, 49)), _bound(conv.channels, (4, 16, 64, 4096))
    if taps is None or channels is None:
        return None
    if function is fast.shifted_conv and (conv.kernel[-1] != conv.channels or not conv.plain):
        return None
    more = ", more results" if conv.kernel[-1] != conv.channels else ""
    kind = f"{conv.dtype} {conv.rank}d, taps <= {taps}, channels <= {channels}{conv.strided}{more}"
    padding = tuple((*p, n - 1) for p, n in zip(conv.padding, conv.spread, strict=True))

    def run(x: Value, kernel: Value) -> Value:
        return function(x, kernel, conv.strides, padding, conv.dilation)

    return Plan(kind, conv.over(run))


def _grouped(site: Site) -> Plan | None:
    """A grouped convolution -> a convolution of each group."""
    conv = _Convolution.of(site)
    if conv is None or conv.groups in (1, conv.channels) or set(conv.spread) != {1}:
        return None
    groups, width = _bound(conv.groups, (4, 16, 32)), _bound(conv.kernel[-2], (4, 16, 64, 1024))
    if groups is None or width is None or not conv.plain:
        return None
    taps = "1 tap" if conv.taps == 1 else "taps"
    kind = (
        f"{conv.dtype} {conv.rank}d, {taps}, groups <= {groups}, channels <= {width} in each"
        f"{conv.strided}"
    )

    def run(x: Value, kernel: Value) -> Value:
        return fast.grouped_conv(x, kernel, conv.groups, conv.strides, conv.padding, conv.dilation)

    return Plan(kind, conv.over(run))


def _one_tap(site: Site) -> _Convolution | None:
    """A convolution with a window of one, channels last."""
    conv = _Convolution.of(site)
    if (
        conv is None
        or conv.groups != 1
        or conv.taps != 1
        or set(conv.spread) != {1}
        or any(map(any, conv.padding))
        or conv.orders[0] != tuple(range(conv.rank + 2))
        or not conv.plain
    ):
        return None
    return conv


def _pointwise(site: Site) -> Plan | None:
    """A convolution with a window of one -> a matrix product."""
    if (conv := _one_tap(site)) is None:
        return None
    place = "one place" if math.prod(conv.sizes) == 1 else "places"
    channels = _bound(conv.channels, (64, 256, 1 << 20))
    kind = f"{conv.dtype} {conv.rank}d, {place}, channels <= {channels}{conv.strided}"

    def run(x: Value, kernel: Value) -> Value:
        if conv.strided:
            x = lax.slice(x, [0] * x.ndim, x.shape, (1, *conv.strides, 1))
        return fast.flat_product(x, lax.reshape(kernel, kernel.shape[-2:]), 1)

    return Plan(kind, conv.over(run))


def _strided(site: Site) -> Plan | None:
    """A convolution with a window of one and strides -> the same, differentiated as a product."""
    conv = _one_tap(site)
    if conv is None or not conv.strided or conv.rank > 3:
        return None
    channels = _bound(conv.channels, (16, 64, 256, 1 << 20))
    kind = f"{conv.dtype} {conv.rank}d, channels <= {channels}"
    return Plan(kind, conv.over(lambda x, kernel: fast.strided_conv(x, kernel, conv.strides)))


def _windowed(site: Site) -> _Convolution | None:
    """A convolution without strides with a window of several places, channels last."""
    conv = _Convolution.of(site)
    if (
        conv is None
        or conv.groups != 1
        or conv.taps == 1
        or conv.rank > 3
        or {*conv.strides, *conv.spread} != {1}
        or any(
            min(p) < 0 or max(p) > (n - 1) * d
            for p, n, d in zip(conv.padding, conv.kernel, conv.dilation, strict=False)
        )
        or conv.orders[0] != tuple(range(conv.rank + 2))
        or not conv.plain
    ):
        return None
    return conv


def _to_few(
    conv: _Convolution,
    function: Callable[..., Value],
    most_channels: Sequence[int],
    most_results: Sequence[int],
) -> Plan | None:
    taps, results = _bound(conv.taps, (3, 9, 25, 49)), _bound(conv.kernel[-1], most_results)
    channels = _bound(conv.channels, most_channels)
    if taps is None or channels is None or results is None:
        return None
    kind = (
        f"{conv.dtype} {conv.rank}d, taps <= {taps}, channels <= {channels}, results <= {results}"
    )
    run = conv.over(lambda x, kernel: function(x, kernel, conv.padding, conv.dilation))
    return Plan(kind, run)


def _narrow(site: Site) -> Plan | None:
    """A convolution to few results -> products with the window, then sums of shifted slices."""
    if (conv := _windowed(site)) is None:
        return None
    return _to_few(conv, fast.narrow_conv, (8, 16, 64, 4096), (1, 4, 8, 12))


def _paired(site: Site) -> Plan | None:
    """A convolution to few results -> two neighbours of the last axis at once."""
    conv = _windowed(site)
    if conv is None or conv.kernel[-3] == 1 or conv.dilation[-1] != 1:
        return None
    after = conv.sizes[-1] + sum(conv.padding[-1]) - conv.kernel[-3] + 1
    if conv.sizes[-1] % 2 or after % 2:
        return None
    return _to_few(conv, fast.paired_conv, (1, 4, 8, 16, 64), (4, 8, 16, 32))


def _winograd(site: Site) -> Plan | None:
    """A convolution with three places along each axis -> products of transformed tiles."""
    conv = _windowed(site)
    if (
        conv is None
        or set(conv.kernel[:-2]) != {3}
        or set(conv.dilation) != {1}
        or conv.dtype not in ("float32", "float64")  # tiles of 16 bits would be rounded
    ):
        return None
    # What the products save grows with both numbers of channels, the tiles with their sum.
    channels = max((n for n in (16, 32, 64, 128, 256) if n <= min(conv.kernel[-2:])), default=1)
    places = _bound(math.prod(conv.sizes), (64, 1024))
    size = f"places <= {places}" if places else "more places"
    kind = f"{conv.dtype} {conv.rank}d, {size}, channels >= {channels}"
    run = conv.over(lambda x, kernel: fast.winograd_conv(x, kernel, conv.padding))
    return Plan(kind, run)


def _transposed(site: Site) -> Plan | None:
    """A convolution with dilated input -> one for each part of the window."""
    conv = _Convolution.of(site)
    if (
        conv is None
        or conv.groups != 1
        or set(conv.spread) == {1}
        or set(conv.strides) != {1}
        or set(conv.dilation) != {1}
        or 0 in conv.sizes
        or not conv.plain
    ):
        return None
    steps, channels = _bound(max(conv.spread), (2, 4)), _bound(conv.channels, (16, 64, 4096))
    if steps is None or channels is None:
        return None
    longer = any(n % s for n, s in zip(conv.kernel, conv.spread, strict=False))
    apart = all(n <= s for n, s in zip(conv.kernel, conv.spread, strict=False))
    window = "apart" if apart else "uneven" if longer else "even"
    kind = f"{conv.dtype} {conv.rank}d, steps <= {steps}, {window}, channels <= {channels}"

    def run(x: Value, kernel: Value) -> Value:
        return fast.transposed_conv(x, kernel, conv.spread, conv.padding)

    return Plan(kind, conv.over(run))


def _pool(function: Callable[..., Value], site: Site) -> Plan | None:
    """A window reduction -> a reduction of shifted slices, axis by axis."""
    params, x = site.eqn.params, site.aval(site.eqn.invars[0])
    window, strides = tuple(params["window_dimensions"]), tuple(params["window_strides"])
    padding = tuple(map(tuple, params["padding"]))
    moved = [n for n, *rest in zip(x.shape, window, strides, padding, strict=True)
             if rest != [1, 1, (0, 0)]]  # fmt: skip
    if (
        x.dtype not in _DTYPES
        or set(params["base_dilation"]) != {1}
        or set(params["window_dilation"]) != {1}
        or any(map(is_open, moved))
        or 0 in site.out.shape
    ):
        return None
    sizes = [(w, s) for w, s in zip(window, strides, strict=True) if w > 1]
    largest = _bound(max((w for w, _ in sizes), default=1), (1, 2, 3, 5, 7, 13))
    if largest in (None, 1):
        return None
    apart = all(w == s for w, s in sizes) and not any(map(any, padding))
    steps = "apart" if apart else "strided" if any(s > 1 for _, s in sizes) else "stride 1"
    kind = f"{x.dtype.name} {len(sizes)}d, window <= {largest}, {steps}"
    return Plan(kind, lambda x: [function(x, window, strides, padding)])


def _arg(function: Callable[..., Value], site: Site) -> Plan | None:
    """A search for the place of an extremum -> one for the extremum, then one for its place."""
    params, x = site.eqn.params, site.aval(site.eqn.invars[0])
    (axis,) = params["axes"]
    n = x.shape[axis]
    if x.dtype not in _DTYPES or is_open(n) or 0 in x.shape:
        return None
    numbers = _bound(n, (16, 64, 256, 1024, 1 << 20))
    if numbers is None:
        return None
    place = "last axis" if axis == x.ndim - 1 else "other axis"
    kind = f"{x.dtype.name}, {place}, numbers <= {numbers}"
    return Plan(kind, lambda x: [function(x, axis, params["index_dtype"])])


def _flat(site: Site) -> Plan | None:
    """A product of a matrix with several axes of rows -> one of two matrices.

    For its gradient by the second operand, XLA would transpose both factors, and compute each once
    more from what it is made of.
    """
    params = site.eqn.params
    (left, right), (batch, _) = params["dimension_numbers"]
    x, y = (site.aval(a) for a in site.eqn.invars)
    axes, rows = len(left), x.ndim - len(left)
    order = (*right, *(i for i in range(y.ndim) if i not in right))
    sizes = [y.shape[i] for i in order]
    if (
        batch
        or rows < 2
        or axes in (0, y.ndim)
        or tuple(left) != tuple(range(rows, x.ndim))
        or (y.ndim > 2 and order != tuple(range(y.ndim)))
        or any(params[n] is not None for n in ("precision", "out_sharding"))
        or x.dtype not in _DTYPES
        or not x.dtype == y.dtype == site.out.dtype
        or any(map(is_open, sizes))
    ):
        return None
    terms, results = math.prod(sizes[:axes]), math.prod(sizes[axes:])
    more = "more" if results > terms else "fewer"
    kind = f"{x.dtype.name}, terms <= {_bound(terms, _TERMS)}, {more} results"
    return Plan(kind, lambda x, y: [fast.flat_product(x, _ordered(y, order), axes)])


def _product_order(site: Site) -> tuple[str, Call] | None:
    """A product with transposed result -> its operands swapped, to move less.

    `jnp.einsum` writes attention weights times values with the values first.
    """
    product = site.producer(site.eqn.invars[0], "dot_general")
    if product is None or any(product.params[n] is not None for n in ("precision", "out_sharding")):
        return None
    (left, right), (left_batch, right_batch) = product.params["dimension_numbers"]
    x, y = (site.aval(a) for a in product.invars)
    batch, ours = len(left_batch), x.ndim - len(left) - len(left_batch)
    order = tuple(site.eqn.params["permutation"])
    theirs = len(order) - batch - ours
    terms = math.prod(x.shape[i] for i in left)
    if (
        not (batch and ours and theirs)
        or any(order.index(i) < order.index(k) for i in range(batch, batch + ours)
               for k in range(batch + ours, len(order)))
        or x.dtype not in _DTYPES
        or not x.dtype == y.dtype == site.out.dtype
        or any(is_open(n) for n in (terms, *site.out.shape[1:]))
    ):  # fmt: skip
        return None
    moved = [*range(batch), *range(batch + theirs, len(order)), *range(batch, batch + theirs)]
    kind = f"{x.dtype.name}, terms <= {_bound(terms, _TERMS)}"

    def before(x: Value, y: Value) -> Value:
        numbers = (left, right), (left_batch, right_batch)
        made = lax.dot_general(x, y, numbers, preferred_element_type=site.out.dtype)
        return lax.transpose(made, order)

    def after(x: Value, y: Value) -> Value:
        numbers = (right, left), (right_batch, left_batch)
        made = lax.dot_general(y, x, numbers, preferred_element_type=site.out.dtype)
        return _ordered(made, tuple(moved[i] for i in order))

    key = "product_order", product.params["dimension_numbers"], order
    return kind, Call(key, after, (x, y), before=before)


# Bounds of the number of terms that a product sums for each result.
_TERMS = (64, 256, 1024, 1 << 30)

# Rewrites of several equations.
_PROPOSALS: Mapping[str, tuple[tuple[str, ...], Callable[[Site], tuple[str, Call] | None]]] = {
    "product_order": (("transpose",), _product_order),
}

# Rewrites of whole programs.
_PROGRAMS: Mapping[str, Callable[..., ClosedJaxpr | None]] = {
    "gradient_order": gradient_order.regrouped,
}

# The first that applies is used.
_PLANS: Mapping[str, tuple[tuple[str, ...], Callable[[Site], Plan | None]]] = {
    "depthwise_conv": (
        ("conv_general_dilated",), functools.partial(_depthwise, fast.depthwise_conv),
    ),
    "shifted_conv": (
        ("conv_general_dilated",), functools.partial(_depthwise, fast.shifted_conv),
    ),
    "grouped_conv": (("conv_general_dilated",), _grouped),
    "pointwise_conv": (("conv_general_dilated",), _pointwise),
    "strided_conv": (("conv_general_dilated",), _strided),
    "narrow_conv": (("conv_general_dilated",), _narrow),
    "paired_conv": (("conv_general_dilated",), _paired),
    "winograd_conv": (("conv_general_dilated",), _winograd),
    "transposed_conv": (("conv_general_dilated",), _transposed),
    "flat_product": (("dot_general",), _flat),
    "max_pool": (("reduce_window_max",), functools.partial(_pool, fast.max_pool)),
    "sum_pool": (("reduce_window_sum",), functools.partial(_pool, fast.sum_pool)),
    "two_pass_argmax": (("argmax",), functools.partial(_arg, fast.two_pass_argmax)),
    "two_pass_argmin": (("argmin",), functools.partial(_arg, fast.two_pass_argmin)),
}  # fmt: skip
