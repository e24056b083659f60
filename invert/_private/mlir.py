"""Private parts of the MLIR bindings."""

from __future__ import annotations

from typing import Any, TypeAlias

from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir as ir

# `builtin` and `func`, so that it is not the first walk over a module that imports them.
from jaxlib.mlir.dialects import builtin as _builtin
from jaxlib.mlir.dialects import chlo as chlo_dialect
from jaxlib.mlir.dialects import func as _func
from jaxlib.mlir.dialects import sdy as sdy_dialect
from jaxlib.mlir.dialects import stablehlo as stablehlo_dialect

# An attribute, a type or an operation with fields that the type stubs lack.
MlirObject: TypeAlias = Any

make_ir_context = jax_mlir.make_ir_context


def make_reading_context() -> ir.Context:
    """Make a context that loads dialects only when a module uses them.

    It knows those that JAX's exports hold. For others there is `make_ir_context`, which loads all
    of XLA's and imports MHLO.
    """
    context = jax_mlir.JaxIrContext()
    context.append_dialect_registry(jax_mlir.upstream_dialects)
    context.set_thread_pool(jax_mlir.global_thread_pool)
    for dialect in (sdy_dialect, chlo_dialect, stablehlo_dialect):
        dialect.register_dialect(context)
    return context


def text_of(attribute: MlirObject) -> str:
    """Text of a string attribute."""
    return attribute.value


def attribute_names(op: ir.Operation) -> list[str]:
    """Names of the attributes of `op`; their values are not touched."""
    return list(op.attributes)


# Source that a bare child process runs to get `ir`, `stablehlo_dialect`, `make_ir_context` and
# `hlo_to_bytecode` (see stablehlo/parse.py) in a quarter of the time that importing JAX takes. The
# dialects are those of jax/_src/interpreters/mlir.py `make_ir_context`, jax 0.10.2 and 0.12.
READER_PRELUDE = """
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, mpmd, sdy
from jaxlib.mlir.dialects import stablehlo as stablehlo_dialect

def make_ir_context():
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    context.enable_multithreading(False)
    sdy.register_dialect(context)
    mpmd.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo_dialect.register_dialect(context)
    return context

def hlo_to_bytecode(blob, text):
    from jaxlib import _jax
    if text:
        from jaxlib import _hlo
        blob = _hlo.hlo_module_from_text(blob.decode()).as_serialized_hlo_module_proto()
    return _jax.mlir.hlo_to_stablehlo(blob)
"""
