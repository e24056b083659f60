"""The child process in which untrusted modules are read first; see `_parse.py` for the reason.

Run by path in a bare interpreter: it must import neither `invert` nor JAX, which take seconds.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

# The caller may read the module on a thread with a smaller stack, and recurse deeper over it.
# A module nested so deep that it needs more than this is refused here.
_STACK_BYTES = 2 << 20
_REASON_CHARS = 2000


def read(ir: Any, stablehlo: Any, make_context: Callable[[], Any], kind: str, blob: bytes) -> Any:
    """Reads one module. **Returns:** the module, or a string that says why there is none."""
    context = make_context()
    messages: list[str] = []

    def handle(diagnostic: Any) -> bool:
        # MLIR ends the process where a handler raises, and a message may quote damaged bytes.
        try:
            messages.append(f"{diagnostic.location}: {diagnostic.message}")
        except UnicodeDecodeError:
            messages.append("a message that is not UTF-8")
        return True

    handler = context.attach_diagnostic_handler(handle)
    try:
        if kind == "portable":
            module = stablehlo.deserialize_portable_artifact(context, blob)
        else:
            module = ir.Module.parse(blob.decode() if kind == "text" else blob, context)
        if module.operation.verify():
            return module
        messages.append("the module does not verify")
    except (ir.MLIRError, ValueError, TypeError, RuntimeError, MemoryError) as e:
        messages.append(str(e).strip())
    finally:
        handler.detach()
    reason = "; ".join(messages)
    return reason if len(reason) <= _REASON_CHARS else reason[:_REASON_CHARS] + " ..."


def serve(ir: Any, stablehlo: Any, make_context: Callable[[], Any]) -> None:
    """Writes a line once ready, then one line of JSON for each module read from stdin."""

    def loop() -> None:
        print("ready", flush=True)
        while len(header := sys.stdin.buffer.read(16)) == 16:
            kind, size = struct.unpack("<8sQ", header)
            blob = sys.stdin.buffer.read(size)
            _limit_memory(size)
            result = read(ir, stablehlo, make_context, kind.rstrip(b"\0").decode(), blob)
            if not isinstance(result, str):
                _touch(ir, result)
            reply = json.dumps(result if isinstance(result, str) else None)
            del result  # a damaged heap shows when it is freed
            sys.stdout.write(reply + "\n")
            sys.stdout.flush()

    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


def _touch(ir: Any, module: Any) -> None:
    """Visits every location: the bindings end the process where a name in one is not UTF-8."""

    def visit(op: Any) -> Any:
        pending = [op.location]
        while pending:
            loc = pending.pop()
            if isinstance(loc, ir.NameLoc):
                _ = loc.name_str
                pending.append(loc.child_loc)
            elif isinstance(loc, ir.CallSiteLoc):
                pending += loc.callee, loc.caller
            elif isinstance(loc, ir.FusedLoc):
                pending += loc.locations
            elif isinstance(loc, ir.FileLineColLoc):
                _ = loc.filename
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _limit_memory(size: int) -> None:
    # Damaged sizes make the reader allocate without bound.
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = (6 << 30) + 16 * size
    if hard == resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft < limit):
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
