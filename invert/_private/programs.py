"""Parts of jaxprs by name, and jaxprs made of their parts, without a trace.

Works with jax 0.10.2 to 0.12.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np
from jax import lax
from jax._src import api, config, core, source_info_util
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lax.control_flow.solves import _LinearSolveTuple
from jax._src.literals import TypedFloat, TypedInt, TypedNdArray
from jax._src.named_sharding import UNSPECIFIED
from jax._src.random import prng

from invert._private.jax import (
    ClosedJaxpr,
    DimSize,
    Eqn,
    JaxFunction,
    Jaxpr,
    Literal,
    Params,
    Value,
    Var,
    full_tracebacks,
)
from invert._private.meshes import on_whole_values

jaxlib_version: str = jaxlib.__version__
unspecified: object = UNSPECIFIED
no_mesh = jax.sharding.Mesh(np.empty((), object), ())
typed_array, typed_int, typed_float = TypedNdArray, TypedInt, TypedFloat
Generator = prng.PRNGImpl
KeyType = prng.KeyTy
# Named tuples and enumerations in the parameters of equations.
RECORDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        lax.ConvDimensionNumbers,
        lax.DotAlgorithm,
        lax.GatherDimensionNumbers,
        lax.ScatterDimensionNumbers,
        _LinearSolveTuple,
    )
}
CHOICES: Mapping[str, type[enum.Enum]] = {
    kind.__name__: kind
    for kind in (
        *(lax.AccuracyMode, lax.DotAlgorithmPreset, lax.FftType, lax.GatherScatterMode),
        *(lax.Precision, lax.RandomAlgorithm, lax.RoundingMethod),
        *(lax.linalg.EigImplementation, lax.linalg.EighImplementation, lax.linalg.SvdAlgorithm),
        getattr(api, "Inline", lax.Precision),  # of jax 0.12
    )
}
_PACKAGES = {"jax", "jaxlib", "equinox", "invert"}


@functools.cache
def primitives() -> Mapping[str, core.Primitive]:
    """The primitives that lower for the CPU, by name; without those of equal names."""
    by_name: dict[str, core.Primitive | None] = {}
    for p in {**jax_mlir._lowerings, **jax_mlir._platform_specific_lowerings["cpu"]}:
        by_name[p.name] = p if by_name.get(p.name, p) is p else None
    return {name: p for name, p in by_name.items() if p is not None}


def generators() -> Mapping[str, prng.PRNGImpl]:
    """The generators of random numbers, by name."""
    return prng.prngs


@dataclasses.dataclass
class _Settings:
    """The settings and lowering rules at one moment."""

    values: Mapping[str, object]
    context: Sequence[object]
    rules: Sequence[object]
    text: str | None


_last: list[_Settings] = []


def settings() -> str | None:
    """The settings of this process on which lowering for the CPU depends, as text.

    `None` if a package other than JAX has registered a lowering or a generator of random numbers,
    which no text can identify.
    """
    # The settings under which programs are lowered, whatever the caller's.
    with on_whole_values(), full_tracebacks():
        values, context, rules = jax.config.values, config.trace_context(), _rules()
    for known in _last:
        # Comparing takes a hundredth of the time of building the text.
        if known.context == context and known.rules == rules and known.values == values:
            return known.text
    stated = [x for x in context if not isinstance(x, core.AxisEnv)]
    released = {module.partition(".")[0] for module in map(_module, rules)} <= _PACKAGES
    text = repr((sorted(values.items()), stated)) if released else None
    _last[:] = [_Settings(dict(values), context, rules, text), *_last[:3]]
    return text


def _rules() -> list[object]:
    lowerings = (jax_mlir._lowerings, jax_mlir._platform_specific_lowerings["cpu"])
    rules = [rule for of_primitive in lowerings for rule in of_primitive.values()]
    return [*rules, *(generator.seed for generator in prng.prngs.values())]


def _module(function: Value) -> str:
    """The module of a function, seen through `functools.partial` and `mlir.lower_fun`."""
    while True:
        function = getattr(function, "rule", function)
        if isinstance(function, functools.partial):
            function = function.func
        elif getattr(function, "__name__", "") == "f_lowered" and _traced(function) is not None:
            function = _traced(function)
        else:
            return getattr(function, "__module__", None) or type(function).__module__


def _traced(rule: Value) -> Value:
    """The function that a rule traces, if `mlir.lower_fun` made it."""
    names = getattr(getattr(rule, "__code__", None), "co_freevars", ())
    return rule.__closure__[names.index("fun")].cell_contents if "fun" in names else None


def array_type(shape: Sequence[DimSize], dtype: object, weak: bool) -> core.ShapedArray:
    """The type of an array, without a mesh."""
    return core.ShapedArray(tuple(shape), dtype, weak)


def is_plain(eqn: core.JaxprEqn) -> bool:
    """Return whether `new_equation` makes such an equation of its parts."""
    return not eqn.effects and eqn.ctx is core.current_jaxpr_eqn_context()


def name_text(eqn: core.JaxprEqn) -> str:
    """The name scopes and transforms of an equation."""
    return str(eqn.source_info.name_stack)


def scopes(eqn: core.JaxprEqn) -> list[str | list[str]]:
    """Names of an equation's scopes; those of transforms are lists."""
    stack = eqn.source_info.name_stack.stack
    return [x.name if isinstance(x, source_info_util.Scope) else [x.name] for x in stack]


def new_equation(
    primitive: core.Primitive,
    invars: Sequence[Var | Literal],
    outvars: Sequence[Var],
    params: Params,
    scopes: Sequence[str | list[str]],
) -> core.JaxprEqn:
    """An equation without effects, in scopes as `scopes` gives them."""
    stack = source_info_util.NameStack()
    for name in scopes:
        stack = stack.extend(name) if isinstance(name, str) else stack.transform(*name)
    source = source_info_util.new_source_info().replace(name_stack=stack)
    return core.new_jaxpr_eqn(
        list(invars), list(outvars), primitive, params, core.no_effects, source
    )


def described(jaxpr: Jaxpr) -> list[object] | None:
    """Names of a function, its arguments and results; `None` if not plain text."""
    names = jaxpr.debug_info
    texts = [names.arg_names, names.result_paths]
    if not all(x is None or (type(x) is tuple and {*map(type, x)} <= {str}) for x in texts):
        return None
    lists = (x if x is None else list(x) for x in texts)
    return [names.traced_for, names.func_src_info, *lists]


def new_jaxpr(
    constvars: Sequence[Var],
    invars: Sequence[Var],
    outvars: Sequence[Var | Literal],
    eqns: Sequence[Eqn],
    description: Sequence[Value] = ("jit", "<unknown>", None, None),
) -> Jaxpr:
    """A jaxpr without effects."""
    traced_for, name, *texts = description
    names = core.DebugInfo(traced_for, name, *(x if x is None else tuple(x) for x in texts))
    parts: Sequence[Value] = [
        *map(list, (constvars, invars, outvars, eqns)),
        core.no_effects,
        names,
    ]
    return Jaxpr(*parts)


def close(jaxpr: Jaxpr, consts: Iterable[Value]) -> ClosedJaxpr:
    """Close a jaxpr over the values of its constants."""
    make: JaxFunction = ClosedJaxpr
    return make(jaxpr, list(consts))


# The parts of a `scan` are trees in jax 0.12, and counted in jax 0.10.
_TREES: Any = importlib.util.find_spec("jax._src.flattree") and importlib.import_module(
    "jax._src.flattree"
)


def bind_scan(
    body: Jaxpr,
    consts: Sequence[Value],
    init: Sequence[Value],
    xs: Sequence[Value],
    *,
    length: DimSize,
    reverse: bool,
) -> list[Value]:
    """The results of a `scan` over a program of `consts`, the carry and one row of each of `xs`."""
    counts = scan_counts(len(consts), len(init), len(xs), len(body.outvars) - len(init))
    params = {"jaxpr": close(body, ()), "length": length, "reverse": reverse, "unroll": 1, **counts}
    return lax.scan_p.bind(*consts, *init, *xs, **params)


def scan_counts(consts: int, carry: int, xs: int, ys: int) -> Params:
    """The parameters of a `scan` that tell its operands and results apart."""
    if not _TREES:
        return {"num_consts": consts, "num_carry": carry}
    parts = [_TREES.nones(count) for count in (consts, carry, xs)]
    kept = _TREES.nones(ys).filter_with_mask([True] * ys)
    return {"ft_in": _TREES.pack(tuple(parts)), "ft_out": _TREES.pack((parts[1], kept))}
