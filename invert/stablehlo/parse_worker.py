"""The child process that reads untrusted modules first; `parse.py` says why.

Run by path in a bare interpreter: it must import neither `invert` nor JAX, which take seconds.
"""

from __future__ import annotations

import io
import re
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

# Anything of the MLIR bindings, which this process gets as arguments.
MlirObject: TypeAlias = Any
# The caller may read the module on a thread with a smaller stack, and recurse deeper. A module
# nested so deeply that it needs more is refused here.
_STACK_BYTES = 2 << 20
_REASON_CHARS = 2000
# Minimum size of constants whose bytes are sent separately.
_LARGE_BYTES = 1 << 16
_LENGTH = struct.Struct("<Q")


def read(
    ir: MlirObject,
    stablehlo: MlirObject,
    make_context: Callable[[], MlirObject],
    kind: str,
    blob: bytes,
) -> MlirObject:
    """Read one module. **Returns:** the module, or a string with the reason for failure."""
    context = make_context()
    messages: list[str] = []

    def handle(diagnostic: MlirObject) -> bool:
        # MLIR ends the process if a handler raises, and a message may quote damaged bytes.
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
    return _shortened("; ".join(messages))


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _REASON_CHARS else reason[:_REASON_CHARS] + " ..."


def serve(
    ir: object,
    stablehlo: object,
    make_context: Callable[[], object],
    hlo_to_bytecode: Callable[[bytes, bool], bytes],
) -> None:
    """Answer each module with MLIR's own serialization, or with the reason for failure.

    A request has eight letters for its kind, sixteen for the attribute that marks large constants,
    if any, and the module. The number of those constants and their bytes follow the answer.
    Messages are those of `_child.py`.
    """

    def reply(message: bytes | memoryview) -> None:
        sys.stdout.buffer.write(_LENGTH.pack(len(message)))
        sys.stdout.buffer.write(message)
        sys.stdout.buffer.flush()

    def loop() -> None:
        reply(b"")
        while len(header := sys.stdin.buffer.read(_LENGTH.size)) == _LENGTH.size:
            kind = sys.stdin.buffer.read(8).decode().rstrip()
            apart = sys.stdin.buffer.read(16).decode().rstrip()
            blob = sys.stdin.buffer.read(_LENGTH.unpack(header)[0] - 24)
            _limit_memory(len(blob))
            try:
                if kind.startswith("hlo"):
                    blob, kind = hlo_to_bytecode(blob, kind == "hlotext"), "bytecode"
                module = read(ir, stablehlo, make_context, kind, blob)
                del blob
            except (RuntimeError, ValueError, MemoryError) as e:  # the first is XLA's
                module = _shortened(str(e).strip())
            reason = module if isinstance(module, str) else _unreadable(module)
            if reason:
                del module  # a damaged heap shows when it is freed
                reply(reason.encode(errors="replace"))
                continue
            large = _take_large(ir, module, apart)
            answer = bytecode(module)
            if not large:
                del module
            reply(answer)
            sys.stdout.buffer.write(_LENGTH.pack(len(large)))
            for value in large:
                reply(_bytes_of(value))
            large, module = [], None

    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


# The configuration of a custom call may hold arbitrary bytes, such as kernels. It is only read as
# printed.
_TEXT = rb'"(?:[^"\\]|\\.)*+"'
_FLAT = rb'(?:[^"{}]|' + _TEXT + rb")*+"
_CONFIGURATION = re.compile(
    rb"backend_config = (?:"
    + _TEXT
    + rb"|\{"
    + _FLAT
    + rb"(?:\{"
    + _FLAT
    + rb"\}"
    + _FLAT
    + rb")*+\})"
)
# A backslash, and non-ASCII bytes of a string, in MLIR's printed form.
_ESCAPED = re.compile(rb"\\\\|(?:\\[89A-F][0-9A-F])+")


def _unreadable(module: MlirObject) -> str:
    """Why reading a name of the module would end the process; otherwise `""`.

    Names, attributes, types and locations are all printed, so the printed text contains every
    string that can be read. The bindings decode each, and end the process if it is not UTF-8.
    """
    text = module.operation.get_asm(
        binary=True, enable_debug_info=True, assume_verified=True, large_elements_limit=16
    )
    text = _CONFIGURATION.sub(b"", text)
    try:
        text.decode()
        for match in _ESCAPED.finditer(text):
            bytes.fromhex(match[0].replace(b"\\", b"").decode()).decode()
    except UnicodeDecodeError as e:
        return f"a name in it is not UTF-8 ({e.object[:40]!r})"
    return ""


# Types whose elements MLIR stores like NumPy; those without a buffer are read as printed.
_STORED = {*(f"{k}{n}" for k in ("i", "ui") for n in (8, 16, 32, 64)), "f16", "f32", "f64"}
_PRINTED = {"bf16"}


def _take_large(ir: MlirObject, module: MlirObject, attribute: str) -> list[MlirObject]:
    """Replace each large constant by zeros, with its number as an attribute.

    **Returns:** their values; none if the attribute has no name.
    """
    large: list[MlirObject] = []

    def visit(view: MlirObject) -> MlirObject:
        op = view.operation
        if attribute in op.attributes:  # a name of this package
            del op.attributes[attribute]
        if op.name == "stablehlo.constant":
            element = op.results[0].type.element_type
            name = str(element)
            # The value of a complex constant cannot be read.
            if name in _STORED | _PRINTED:
                value = op.attributes["value"]
                if (
                    isinstance(value, ir.DenseElementsAttr)
                    and not value.is_splat
                    and len(value) * element.width // 8 >= _LARGE_BYTES
                ):
                    whole = isinstance(element, ir.IntegerType)
                    zero = ir.IntegerAttr.get(element, 0) if whole else ir.FloatAttr.get(element, 0)
                    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(large))
                    op.attributes["value"] = ir.DenseElementsAttr.get_splat(value.type, zero)
                    op.attributes[attribute] = number
                    large.append(value)
        return ir.WalkResult.ADVANCE

    if attribute:
        with module.context, ir.Location.unknown():
            module.operation.walk(visit)
    return large


def _bytes_of(value: MlirObject) -> bytes | memoryview:
    try:
        view = memoryview(value)
    except (BufferError, TypeError, ValueError):
        text = str(value)
        start = text.index('"0x') + 3
        return bytes.fromhex(text[start : text.index('"', start)])
    return view.cast("B")


def bytecode(module: MlirObject) -> bytes:
    """The module as MLIR itself writes it."""
    out = io.BytesIO()
    module.operation.write_bytecode(file=out)
    return out.getvalue()


def _limit_memory(size: int) -> None:
    # With damaged sizes the reader allocates without bound.
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = (6 << 30) + 16 * size
    if hard == resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft < limit):
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
