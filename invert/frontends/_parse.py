"""Reads StableHLO text, bytecode and portable artifacts into a verified MLIR module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from invert._compat import ir, make_ir_context, stablehlo_dialect
from invert._errors import MalformedModelError

_MAGIC = b"ML\xefR"
_PRODUCER = re.compile(rb"StableHLO_v(\d+)\.(\d+)\.(\d+)\x00")


def parse_module(blob: bytes | str, *, what: str = "StableHLO module") -> ir.Module:
    """Parses and verifies one StableHLO module.

    **Arguments:**

    - `blob`: MLIR text, MLIR bytecode, or a StableHLO portable artifact.
    - `what`: how messages name the module.

    **Returns:** the module, in a context of its own.

    **Raises:** `MalformedModelError` where the bytes are not such a module, where the module
        does not verify or has no single public function, or where it needs a newer jaxlib.
    """
    if isinstance(blob, (bytearray, memoryview)):
        blob = bytes(blob)
    if not isinstance(blob, (bytes, str)):
        raise MalformedModelError(
            f"The {what} must be bytes or text, but a {type(blob).__name__} was given."
        )
    if not blob.strip():
        raise MalformedModelError(f"The {what} is empty.")
    context = make_ir_context()
    with _diagnostics(context) as messages:
        try:
            if isinstance(blob, bytes) and _PRODUCER.match(blob, 5):
                module = stablehlo_dialect.deserialize_portable_artifact(context, blob)
            else:
                module = ir.Module.parse(blob, context)
            ok = module.operation.verify()
        except (ir.MLIRError, ValueError, RuntimeError, TypeError) as e:
            raise MalformedModelError(f"The {what} cannot be read: {e} {messages}") from e
    if not ok:
        raise MalformedModelError(f"The {what} does not verify: {messages}")
    return module


@contextmanager
def _diagnostics(context: ir.Context) -> Iterator[list[str]]:
    """Collects MLIR's diagnostics, which would otherwise go to stderr."""
    messages: list[str] = []

    def handle(diagnostic: ir.Diagnostic) -> bool:
        messages.append(str(diagnostic))
        return True

    handler = context.attach_diagnostic_handler(handle)
    try:
        yield messages
    finally:
        handler.detach()
