"""Calls: functions of the module, composites and custom calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np

from invert import _opaque
from invert._errors import REPORT, Problem
from invert._private.jax import eval_closed, trace_closed
from invert._private.mlir import MlirObject, ir
from invert.ir.composite import composite
from invert.ir.interpret import inline_calls
from invert.ir.size_algebra import Sizes
from invert.ir.types import ClosedJaxpr, Params
from invert.primitives.stablehlo import dynamic
from invert.stablehlo.ops.attributes import (
    aval,
    boolean,
    dense_elements,
    discardable,
    integer,
    is_tuple,
    location_text,
    real,
    string,
    symbol_name,
)
from invert.stablehlo.ops.interpreter import Context, call_function
from invert.stablehlo.ops.registry import (
    CUSTOM_CALL,
    REGISTRY,
    Attribute,
    Entry,
    Ints,
    Op,
    Symbol,
    Value,
    has_rule,
    rule,
)
from invert.stablehlo.ops.values import data, sizes


@rule("func.call", ignores=("no_inline",))
def _call(*operands: Value, ctx: Context, callee: Symbol) -> Sequence[Value]:
    return call_function(ctx, callee, operands)


@rule("stablehlo.composite")
def _composite(
    *operands: Value,
    ctx: Context,
    op: Op,
    name: str,
    decomposition: Symbol,
    version: int = 0,
    composite_attributes: Attribute | None = None,
) -> Value:
    if name in _PRESERVED and version == 1 and (function := REGISTRY.get(name)) is not None:
        return _apply(ctx, function, Op(op.operation, name, composite_attributes), operands)

    # Traced now: differentiation and batching may happen after the module is freed.
    held = [isinstance(x, Sizes) for x in operands]
    arrays = [x for x, size in zip(operands, held, strict=True) if not size]

    def call(*values: Value) -> list[Value]:
        rest = iter(values)
        args = [x if size else next(rest) for x, size in zip(operands, held, strict=True)]
        return call_function(ctx, decomposition, args)

    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    closed = inline_calls(trace_closed(call, *avals))
    mark = composite(name, version, _plain(op, composite_attributes))
    return mark(lambda *xs: eval_closed(closed, xs))(*arrays)


# Ops that the serializer writes as composites of version 1, which XLA reads as those ops again. By
# the specification any other composite is its decomposition, whatever its name says.
_PRESERVED = frozenset(
    f"chlo.{name}"
    for name in (
        "acos acosh asin asinh atanh cosh erf erfc mulhi ragged_dot scan sinh top_k".split()
    )
)


def _function_of(target: str) -> Entry | None:
    """The function that custom calls of this target denote, if any."""
    for op in (target, target.replace("mhlo.", "chlo.", 1)):
        entry = REGISTRY.get(op) if op.startswith(("chlo.", "mhlo.")) else None
        if entry is not None and entry.is_function():
            return entry
    return None


def _apply(ctx: Context, entry: Entry, op: Op, operands: Sequence[Value]) -> Sequence[Value]:
    assert entry.call is not None
    if unknown := entry.unknown_attributes(op):
        raise op.error(f"unknown attributes {unknown}", REPORT)
    return entry.call(ctx, op, operands)


def _plain(op: Op, attribute: MlirObject) -> Params:
    """A dictionary attribute as Python values that `lax.composite` turns back into it."""
    if attribute is None:
        return {}
    found = {}
    for entry in attribute:
        name = entry.name
        try:
            # Not `entry.attr`: there a complex constant would end the process.
            value = attribute[name]
        except TypeError as error:
            reason = f"has an attribute {name!r} of a type that jaxlib cannot read: {error}"
            raise op.error(reason, "Write it as numbers of a real type.") from error
        for decode in (boolean, integer, string):
            if type(value).__name__ == _ATTRIBUTE_TYPES[decode]:
                found[name] = decode(value)
                break
        else:
            if type(value).__name__ == "FloatAttr":
                found[name] = float(real(value))
            elif type(value).__name__ in _NUMBER_ARRAYS:
                found[name] = np.asarray(list(value), _NUMBER_ARRAYS[type(value).__name__])
            elif type(value).__name__.startswith("Dense"):
                found[name] = np.asarray(dense_elements(value))
            else:
                found[name] = str(value)
    return found


# `lax.composite` writes them as elements attributes.
_NUMBER_ARRAYS = {
    "DenseBoolArrayAttr": "bool",
    **{f"DenseI{n}ArrayAttr": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"DenseF{n}ArrayAttr": f"float{n}" for n in (32, 64)},
}

_ATTRIBUTE_TYPES = {
    boolean: "BoolAttr",
    integer: "IntegerAttr",
    string: "StringAttr",
}


# Targets that call back into the process that wrote the file, by address.
_CALLBACK = re.compile(r"python.*callback|CustomSPMDPartitioning|InspectSharding|callback_handler")


def custom_call_problem(op: ir.Operation) -> Problem | None:
    """Why a custom call must not be raised, or `None`."""
    if op.name != "stablehlo.custom_call":
        return None
    target = string(op.attributes["call_target_name"])
    location = location_text(op.location)
    if _CALLBACK.search(target):
        return Problem(
            f"stablehlo.custom_call @{target}",
            "it calls Python code of the process that exported the program; the file holds only "
            "an address of that process, which is never used",
            location,
            "Export the program without host callbacks.",
        )
    if target == "tf.call_tf_function":
        return Problem(
            f"stablehlo.custom_call @{target}",
            "it calls a TensorFlow function that the StableHLO module does not hold",
            location,
            "Convert the tf.function or SavedModel that holds the module.",
        )
    if _is_only_effect(op, target):
        return Problem(
            f"stablehlo.custom_call @{target}",
            "it has a side effect, which a program of JAX would leave out, since nothing uses its "
            "results",
            location,
            "Export the program without it.",
        )
    return None


def _is_only_effect(op: ir.Operation, target: str) -> bool:
    """Return whether a call of an unknown target is there only for its side effect."""
    attributes = op.attributes
    if "has_side_effect" not in attributes or not boolean(attributes["has_side_effect"]):
        return False
    is_used = any(True for result in op.results for _ in result.uses)
    return not is_used and not _is_known(target)


def _is_known(target: str) -> bool:
    return has_rule(f"{CUSTOM_CALL} @{target}") or _function_of(target) is not None


def route_of(op: ir.Operation) -> Literal["rule", "opaque", "none"]:
    """Raise a custom call, before patterns are applied."""
    if custom_call_problem(op) is not None:
        return "none"
    target = string(op.attributes["call_target_name"])
    return "rule" if _is_known(target) else "opaque"


# Computations are kept as jaxprs. The other attributes are for the exporter's partitioner.
_DROPPED = frozenset(
    {
        "called_computations",
        "indices_of_shape_operands",
        "sdy.sharding_rule",
        "mhlo.frontend_attributes",
    }
)

# The defaults of attributes, as printed. JAX prints one of them, a serialized module none.
_DEFAULTS = {
    "api_version": "1 : i32",
    "backend_config": '""',
    "has_side_effect": "false",
    "output_operand_aliases": "[]",
}


_OPEN_TOP_K = "stablehlo.dynamic_approx_top_k"


@rule(CUSTOM_CALL, takes_any=True)
def _custom_call(
    *operands: Value,
    ctx: Context,
    op: Op,
    call_target_name: str,
    called_computations: Attribute = (),
    indices_of_shape_operands: Ints = (),
) -> Value:
    """Keep a call of an unknown target as an opaque equation with all attributes."""
    target, shapes = call_target_name, indices_of_shape_operands
    if (function := _function_of(target)) is not None:
        held = (
            discardable(op.attributes, "mhlo.attributes") if "mhlo.attributes" in op.names else None
        )
        return _apply(ctx, function, Op(op.operation, target, held), operands)
    computations = tuple(_computation(ctx, c) for c in called_computations)
    texts = {n: str(discardable(op.attributes, n)) for n in op.names - _DROPPED}
    texts = {n: text for n, text in texts.items() if text != _DEFAULTS.get(n)}
    # The last operand of that target is a number.
    last = len(operands) - 1 if target == _OPEN_TOP_K else None
    operands = tuple(x if i in (*shapes, last) else data(x) for i, x in enumerate(operands))
    arrays, avals = dynamic.result_avals(op, operands, shapes)
    if len(arrays) < len(operands) and "operand_layouts" in texts:
        layouts = list(map(str, op.attributes["operand_layouts"]))
        kept = [t for x, t in zip(operands, layouts, strict=True) if any(x is a for a in arrays)]
        texts["operand_layouts"] = f"[{', '.join(kept)}]"
    if target == _OPEN_TOP_K:  # its last operand is an option of `ApproxTopK`
        *arrays, k = arrays
        target, (k,) = "ApproxTopK", sizes(k, op.name)
        options = texts["mhlo.backend_config"].removesuffix("}")
        texts["mhlo.backend_config"] = f"{options}, top_k = {k} : i64}}"
        texts["call_target_name"] = f'"{target}"'
    types = op.result_types()
    packed = len(types) == 1 and is_tuple(types[0])
    results = _opaque.custom_call(
        *arrays,
        target=target,
        attributes=tuple(sorted(texts.items())),
        avals=tuple(avals),
        computations=computations,
    )
    return [tuple(results)] if packed else results


def _computation(ctx: Context, symbol: ir.Attribute) -> ClosedJaxpr:
    function = ctx.functions[symbol_name(symbol)]
    avals = [aval(a.type) for a in function.regions[0].blocks[0].arguments]
    return trace_closed(ctx.region(function.regions[0]), *avals)
