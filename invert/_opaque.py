"""The opaque equation: a custom call that no rule or pattern has recovered.

It keeps everything in the file, lowers to the same custom call, and runs if the target is
registered for the platform. It has no derivative and no batching rule; the error for requesting one
names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

import jax
from jax.interpreters import ad, batching, mlir

from invert._errors import Problem, UnsupportedOpError
from invert._private.jax import (
    Aval,
    Primitive,
    ShapedArray,
    Value,
    abstract_token,
    apply_primitive,
    custom_call_is_registered,
    emit_custom_call,
    load_lapack,
)
from invert._private.mlir import ir

custom_call_p = Primitive("custom_call")
custom_call_p.multiple_results = True

# Targets that the compiler itself implements on every platform; they are in no registry.
_BUILT_IN = frozenset({"TopK", "ApproxTopK", "LayoutConstraint", "Sharding", "PartialReduce"})
# Targets for GPUs, such as `__cudnn$fmhaSoftmax` and `__gpu$xla.gpu.triton`.
_BUILT_IN_ON_GPUS = re.compile(r"__(cu\w+|gpu)\$.*")

# Prefixes of the targets of a platform's libraries, and of the compiler's own on TPU.
_LIBRARIES = (
    ("lapack_", "cpu"),
    ("cu", "cuda"),
    ("hip", "rocm"),
    ("Eigh", "tpu"),
    ("Qr", "tpu"),
    ("LuDecomposition", "tpu"),
    ("ProductOfElementaryHouseholderReflectors", "tpu"),
)


def platform_of(targets: Iterable[str]) -> str | None:
    """The platform that a program was lowered for, if its custom calls reveal it."""
    for target in targets:
        for beginning, platform in _LIBRARIES:
            if target.startswith(beginning):
                return platform
    return None


def custom_call(
    *operands: object,
    target: str,
    attributes: tuple[tuple[str, str], ...],
    avals: tuple[jax.ShapeDtypeStruct | None, ...],
    computations: tuple[object, ...] = (),
) -> list[Value]:
    """Bind the opaque equation.

    **Arguments:**

    - `target`: name of the custom call.
    - `attributes`: every attribute as text printed by MLIR, sorted by name.
    - `avals`: shapes and dtypes of the results; `None` for a token.
    - `computations`: closed jaxprs of its function arguments.
    """
    return custom_call_p.bind(
        *operands,
        target=target,
        attributes=attributes,
        avals=tuple(None if a is None else (a.shape, a.dtype) for a in avals),
        computations=computations,
    )


@custom_call_p.def_abstract_eval
def _abstract_eval(*operands: object, avals: Sequence[Aval], **_: object) -> list[Aval]:
    return [abstract_token if a is None else ShapedArray(*a) for a in avals]


custom_call_p.def_impl(apply_primitive(custom_call_p))


def _is_implemented(target: str, platform: str) -> bool:
    return (
        target in _BUILT_IN
        or (platform in ("cuda", "rocm") and _BUILT_IN_ON_GPUS.fullmatch(target) is not None)
        or custom_call_is_registered(target, platform)
    )


def _refuse(target: str, what: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        [
            Problem(
                f"stablehlo.custom_call @{target}",
                what,
                remedy="The program keeps it as an opaque equation because no pattern recovered "
                "the JAX function it came from; see the report of the module.",
            )
        ]
    )


def _lower(
    ctx: mlir.LoweringRuleContext,
    *operands: ir.Value,
    target: str,
    attributes: Sequence[tuple[str, str]],
    avals: Sequence[object],
    computations: Sequence[object],
) -> Sequence[ir.Value]:
    for platform in ctx.module_context.platforms:
        if not _is_implemented(target, platform):
            raise _refuse(target, f"its target is not registered for the platform {platform!r}")
    if target.startswith(("lapack_", "blas_")):
        load_lapack()
    return emit_custom_call(ctx, operands, attributes, computations)


mlir.register_lowering(custom_call_p, _lower)

# The variant for templates, which are lowered but never run: the target need not be registered.
template_call_p = Primitive("custom_call_template")
template_call_p.multiple_results = True
template_call_p.def_abstract_eval(_abstract_eval)


mlir.register_lowering(
    template_call_p,
    lambda ctx, *operands, attributes, computations, **_: emit_custom_call(
        ctx, operands, attributes, computations
    ),
)


def _jvp(primals: object, tangents: object, *, target: str, **_: object) -> NoReturn:
    raise _refuse(target, "it has no derivative")


def _batch(args: object, dims: object, *, target: str, **_: object) -> NoReturn:
    raise _refuse(target, "it has no batching rule")


ad.primitive_jvps[custom_call_p] = _jvp
batching.primitive_batchers[custom_call_p] = _batch
