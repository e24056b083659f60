"""Calls: functions of the module, composites and custom calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.custom_batching
import numpy as np
from jax import lax

from invert import _compat, _opaque
from invert._compat import ir
from invert._errors import Problem
from invert._raise import Context, Op, Value, call_function, raises
from invert.primitives.stablehlo import _attributes, chlo, sharding


@raises("func.call")
def _call(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    op.get("no_inline")
    return call_function(ctx, _attributes.symbol_name(op["callee"]), operands)


@raises("stablehlo.composite")
def _composite(ctx: Context, op: Op, *operands: Value) -> Any:
    name = _attributes.string(op["name"])
    decomposition = _attributes.symbol_name(op["decomposition"])
    attributes = _plain(op.get("composite_attributes"))
    version = op.get("version")
    number = 0 if version is None else _attributes.integer(version)
    if (rule := NAMED.get(name)) is not None:
        return rule(attributes, *operands)

    # Traced now: differentiation and batching may come when the module is gone.
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    closed = _compat.trace_closed(lambda *xs: call_function(ctx, decomposition, xs), *avals)

    def decompose(*args: Value, **_: Any) -> list[Value]:
        return _compat.eval_closed(closed, args)

    return _transformable(lax.composite(decompose, name, version=number), decompose, attributes)(
        *operands
    )


def _transformable(
    composite: Callable[..., Any], decompose: Callable[..., Any], attributes: dict[str, Any]
) -> Callable[..., Any]:
    """The composite, with the derivatives and the batching rule of what it stands for.

    `lax.composite` has neither (jax 0.10 and 0.12).
    """

    @jax.custom_batching.custom_vmap
    def call(*args: Value) -> list[Value]:
        return list(composite(*args, **attributes))

    @call.def_vmap
    def batch(axis_size: int, batched: Sequence[bool], *args: Value) -> Any:
        axes = [0 if b else None for b in batched]
        results = jax.vmap(decompose, in_axes=axes, axis_size=axis_size)(*args)
        return results, [True] * len(results)

    @jax.custom_jvp
    def differentiable(*args: Value) -> list[Value]:
        return call(*args)

    @differentiable.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        return jax.jvp(decompose, primals, tangents)

    del batch, jvp  # registered
    return differentiable


def _plain(attribute: Any) -> dict[str, Any]:
    """A dictionary attribute as Python values that `lax.composite` turns into the same again."""
    if attribute is None:
        return {}
    found = {}
    for entry in attribute:
        name = entry.name
        # Not `entry.attr`: a complex constant would end the process there, and is an error here.
        value = attribute[name]
        for decode in (_attributes.boolean, _attributes.integer, _attributes.string):
            if type(value).__name__ == _ATTRIBUTE_TYPES[decode]:
                found[name] = decode(value)
                break
        else:
            if type(value).__name__ == "FloatAttr":
                found[name] = float(_attributes.real(value))
            elif type(value).__name__.startswith("Dense"):
                found[name] = np.asarray(_attributes.dense_elements(value))
            else:
                found[name] = str(value)
    return found


_ATTRIBUTE_TYPES = {
    _attributes.boolean: "BoolAttr",
    _attributes.integer: "IntegerAttr",
    _attributes.string: "StringAttr",
}


def _named_top_k(attributes: dict[str, Any], x: Value) -> Any:
    return chlo.top_k(x, int(attributes["k"]))


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
    target = _attributes.string(op.attributes["call_target_name"])
    location = _attributes.location_text(op.location)
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


def road_of(op: Any) -> Literal["rule", "opaque", "none"]:
    """What becomes of a custom call before patterns are applied."""
    if custom_call_problem(op) is not None:
        return "none"
    known = _attributes.string(op.attributes["call_target_name"]) in _CUSTOM_CALLS
    return "rule" if known else "opaque"


# The computations are kept as jaxprs. The others guide the partitioner of the exporting JAX.
_DROPPED = frozenset({"called_computations", "sdy.sharding_rule", "mhlo.frontend_attributes"})


@raises("stablehlo.custom_call")
def _custom_call(ctx: Context, op: Op, *operands: Value) -> Any:
    target = _attributes.string(op["call_target_name"])
    rule = _CUSTOM_CALLS.get(target)
    if rule is not None:
        op.unread.clear()  # what the target needs is read by its rule
        return rule(ctx, op, *operands)
    called = op.get("called_computations")
    computations = tuple(_computation(ctx, c) for c in called or ())
    names = set(_compat.attribute_names(op.op)) - _DROPPED
    texts = {n: str(op.op.attributes[n]) for n in names}
    op.unread.clear()  # all of them are kept
    types = op.result_types()
    packed = len(types) == 1 and isinstance(types[0], ir.TupleType)
    if packed:  # as older modules for TPUs return several results
        types = list(_attributes.tuple_types(types[0]))
    results = _opaque.custom_call(
        *operands,
        target=target,
        attributes=tuple(sorted(texts.items())),
        avals=tuple(None if _attributes.is_token(t) else _attributes.aval(t) for t in types),
        computations=computations,
    )
    return [tuple(results)] if packed else results


def _computation(ctx: Context, symbol: Any) -> Any:
    function = ctx.functions[_attributes.symbol_name(symbol)]
    avals = [_attributes.aval(a.type) for a in function.regions[0].blocks[0].arguments]
    return _compat.trace_closed(ctx.region(function.regions[0]), *avals)


def _identity(ctx: Context, op: Op, *operands: Value) -> Any:
    return list(operands)


def _nothing(ctx: Context, op: Op, *operands: Value) -> Any:
    return []


def _composite_call(target: str) -> Callable:
    def rule(ctx: Context, op: Op, *operands: Value) -> Any:
        attributes = (
            _plain(op.op.attributes["mhlo.attributes"])
            if ("mhlo.attributes" in op.op.attributes)
            else {}
        )
        return NAMED[target](attributes, *operands)

    return rule


def _shape_assertion(ctx: Context, op: Op, ok: Value, *values: Value) -> Any:
    """The constraint has been checked when the module was refined to static shapes."""
    return []


_CUSTOM_CALLS: dict[str, Callable] = {
    **{target: _composite_call(target) for target in NAMED},
    "shape_assertion": _shape_assertion,
    "Sharding": sharding.annotation,
    "SPMDFullToShardShape": sharding.annotation,
    "SPMDShardToFullShape": sharding.annotation,
    "annotate_device_placement": _identity,
    "xla.sdy.FuncResultSharding": _identity,
}
