"""Calls: functions of the module, composites and custom calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np

from invert import _opaque
from invert._errors import Problem
from invert._private.jax import eval_closed, trace_closed
from invert._private.mlir import attribute_names
from invert.ir.composite import composite
from invert.ir.interpret import inline_calls
from invert.ir.size_algebra import Sizes
from invert.primitives.stablehlo import chlo, dynamic, sharding
from invert.stablehlo.ops.attributes import (
    aval,
    boolean,
    dense_elements,
    integer,
    is_tuple,
    location_text,
    real,
    string,
    symbol_name,
)
from invert.stablehlo.ops.interpreter import Context, Op, Value, call_function, data, raises


@raises("func.call")
def _call(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    op.get("no_inline")
    return call_function(ctx, symbol_name(op["callee"]), operands)


@raises("stablehlo.composite")
def _composite(ctx: Context, op: Op, *operands: Value) -> Any:
    name = string(op["name"])
    decomposition = symbol_name(op["decomposition"])
    attributes = _plain(op.get("composite_attributes"))
    version = op.get("version")
    number = 0 if version is None else integer(version)
    if (rule := NAMED.get(name)) is not None:
        return rule(attributes, *map(data, operands))

    # Traced now: differentiation and batching may come when the module is gone.
    held = [isinstance(x, Sizes) for x in operands]
    arrays = [x for x, size in zip(operands, held, strict=True) if not size]

    def call(*values: Value) -> list[Value]:
        rest = iter(values)
        args = [x if size else next(rest) for x, size in zip(operands, held, strict=True)]
        return call_function(ctx, decomposition, args)

    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    closed = inline_calls(trace_closed(call, *avals))
    mark = composite(name, number, attributes)
    return mark(lambda *xs: eval_closed(closed, xs))(*arrays)


def _plain(attribute: Any) -> dict[str, Any]:
    """A dictionary attribute as Python values that `lax.composite` turns into the same again."""
    if attribute is None:
        return {}
    found = {}
    for entry in attribute:
        name = entry.name
        # Not `entry.attr`: a complex constant would end the process there, and is an error here.
        value = attribute[name]
        for decode in (boolean, integer, string):
            if type(value).__name__ == _ATTRIBUTE_TYPES[decode]:
                found[name] = decode(value)
                break
        else:
            if type(value).__name__ == "FloatAttr":
                found[name] = float(real(value))
            elif type(value).__name__.startswith("Dense"):
                found[name] = np.asarray(dense_elements(value))
            else:
                found[name] = str(value)
    return found


_ATTRIBUTE_TYPES = {
    boolean: "BoolAttr",
    integer: "IntegerAttr",
    string: "StringAttr",
}


def _named_top_k(attributes: dict[str, Any], x: Value) -> Any:
    return chlo.top_k(x, int(attributes["k"]), bool(attributes.get("largest", True)))


# Composites and custom calls that stand for one function: name -> rule of (attributes, operands).
NAMED: dict[str, Callable[..., Any]] = {
    "chlo.top_k": _named_top_k,
    "mhlo.topk": _named_top_k,
}


def _name_function(name: str, function: Callable) -> None:
    for prefix in ("chlo.", "mhlo."):
        NAMED[prefix + name] = lambda attributes, *operands: function(*operands)


for _name, _function in (chlo.UNARY | chlo.BINARY).items():
    _name_function(_name, _function)


# Targets that call back into the process that wrote the file: what they hold is an address.
_CALLBACK = re.compile(r"python.*callback|CustomSPMDPartitioning|InspectSharding|callback_handler")


def custom_call_problem(op: Any) -> Problem | None:
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
    return None


def route_of(op: Any) -> Literal["rule", "opaque", "none"]:
    """What becomes of a custom call before patterns are applied."""
    if custom_call_problem(op) is not None:
        return "none"
    known = string(op.attributes["call_target_name"]) in _CUSTOM_CALLS
    return "rule" if known else "opaque"


# The computations are kept as jaxprs. The others guide the partitioner of the exporting JAX.
_DROPPED = frozenset(
    {
        "called_computations",
        "indices_of_shape_operands",
        "sdy.sharding_rule",
        "mhlo.frontend_attributes",
    }
)


_OPEN_TOP_K = "stablehlo.dynamic_approx_top_k"


@raises("stablehlo.custom_call")
def _custom_call(ctx: Context, op: Op, *operands: Value) -> Any:
    target = string(op["call_target_name"])
    rule = _CUSTOM_CALLS.get(target)
    if rule is not None:
        op.unread.clear()  # what the target needs is read by its rule
        return rule(ctx, op, *operands)
    called = op.get("called_computations")
    computations = tuple(_computation(ctx, c) for c in called or ())
    names = set(attribute_names(op.op)) - _DROPPED
    texts = {n: str(op.op.attributes[n]) for n in names}
    # The last operand of that target is a number.
    last = len(operands) - 1 if target == _OPEN_TOP_K else None
    shapes = dynamic.shape_places(op)
    operands = tuple(x if i in (*shapes, last) else data(x) for i, x in enumerate(operands))
    arrays, avals = dynamic.result_avals(op, operands)
    if len(arrays) < len(operands) and "operand_layouts" in texts:
        declared: Any = op.op.attributes["operand_layouts"]
        layouts = list(map(str, declared))
        kept = [t for x, t in zip(operands, layouts, strict=True) if any(x is a for a in arrays)]
        texts["operand_layouts"] = f"[{', '.join(kept)}]"
    if target == _OPEN_TOP_K:  # its last operand is the number that `ApproxTopK` has as an option
        *arrays, k = arrays
        target, (k,) = "ApproxTopK", dynamic.sizes(k, op)
        options = texts["mhlo.backend_config"].removesuffix("}")
        texts["mhlo.backend_config"] = f"{options}, top_k = {k} : i64}}"
        texts["call_target_name"] = f'"{target}"'
    op.unread.clear()  # all of them are kept
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


def _computation(ctx: Context, symbol: Any) -> Any:
    function = ctx.functions[symbol_name(symbol)]
    avals = [aval(a.type) for a in function.regions[0].blocks[0].arguments]
    return trace_closed(ctx.region(function.regions[0]), *avals)


def _identity(ctx: Context, op: Op, *operands: Value) -> Any:
    return list(map(data, operands))


def _composite_call(target: str) -> Callable:
    def rule(ctx: Context, op: Op, *operands: Value) -> Any:
        attributes = (
            _plain(op.op.attributes["mhlo.attributes"])
            if ("mhlo.attributes" in op.op.attributes)
            else {}
        )
        return NAMED[target](attributes, *map(data, operands))

    return rule


_CUSTOM_CALLS: dict[str, Callable] = {
    **{target: _composite_call(target) for target in NAMED},
    **dynamic.RULES,
    "Sharding": sharding.annotation,
    "SPMDFullToShardShape": sharding.annotation,
    "SPMDShardToFullShape": sharding.annotation,
    "annotate_device_placement": _identity,
    "xla.sdy.FuncResultSharding": _identity,
}
