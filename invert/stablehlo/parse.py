"""Reads StableHLO text, bytecode and portable artifacts into a verified MLIR module.

jaxlib's reader is not safe on damaged bytes (seen in jaxlib 0.10.2 and 0.12.0.1): of random damage
to real modules, about one in a hundred ends the process (heap corruption, wrong attribute kinds, a
diagnostic that is not UTF-8) or never returns. The damage is inside attributes and types, which
only a second reader of the whole format could check. So a blob that is not `trusted` is first
checked twice. Python checks the sections of its container and their lengths, with the position of
the damage. Then a child process reads it. The child verifies it, checks that every name is UTF-8,
since the bindings end the process otherwise, and writes it again. This process reads only those
bytes. The child starts once (0.4 s) and is kept. Its cost is recovered, since bytecode is read
faster than text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from invert._errors import MalformedModelError, Problem, UnsupportedOpError
from invert._private.mlir import (
    MlirObject,
    ir,
    make_ir_context,
    make_reading_context,
    stablehlo_dialect,
)
from invert.protos import varints
from invert.protos.file_parts import FilePart
from invert.stablehlo.parse_in_child import (
    KnownBytes,
    rewrite_in_child,
    unreadable_module,
)
from invert.stablehlo.parse_worker import read

_MAGIC = b"ML\xefR"
_QUANTIZED = Problem(
    op="!quant",
    location="StableHLO module",
    reason="quantized types have no JAX dtype",
    remedy="Dequantize the model before you export it.",
)
_VERSION = re.compile(rb"StableHLO_v(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


# A module as bytes, as text or in a file, or a function that returns it.
Blob: TypeAlias = bytes | str | FilePart | Callable[[], bytes | str | FilePart]


def parse_module(
    blob: Blob,
    *,
    trusted: bool = False,
    large: list[np.ndarray] | None = None,
    known: KnownBytes | None = None,
) -> ir.Module:
    """Parse and verify one StableHLO module.

    **Arguments:**

    - `blob`: MLIR text, MLIR bytecode, a StableHLO portable artifact, or HLO as text or proto; or
        a function that returns the bytes, which are freed once another process has read them.
    - `trusted`: `True` for bytes made by this process. They are read directly; others are first
        read in a child process, because damaged bytes can crash the reader.
    - `large`: receives the bytes of large constants, which the module then only numbers.
        Constants of trusted bytes stay in the module.
    - `known`: bytes of such constants by digest, to share equal ones.

    **Returns:** the module. It holds StableHLO, CHLO, `func` and `sdy` ops, and at least one public
    function.

    **Raises:** `MalformedModelError` if the bytes are not such a module, if the module does not
    verify, or if it needs a newer jaxlib; `UnsupportedOpError` for quantized types.
    """
    data = _bytes_of(blob)
    del blob
    kind = _kind(data)
    form = kind
    if isinstance(data, FilePart):
        form = "bytecode"
        data = rewrite_in_child(kind, data.chunks(), len(data), large, known)
    elif kind == "text" and b"!quant." in data:
        # jaxlib 0.10.2 does not know the dialect, and its message names only MLIR's terms.
        raise UnsupportedOpError([_QUANTIZED])
    elif not trusted or kind.startswith("hlo"):
        if kind.startswith("hlo"):
            data = proto_of_hlo(data) or data
        sent, size = iter([data]), len(data)
        del data  # freed once it is sent
        form, data = "bytecode", rewrite_in_child(kind, sent, size, large, known)
    module = read(ir, stablehlo_dialect, make_reading_context, form, data)
    if isinstance(module, str):  # it may hold a dialect that JAX's exports do not
        module = read(ir, stablehlo_dialect, make_ir_context, form, data)
    if isinstance(module, str):
        raise unreadable_module(module, kind)
    if not _public_functions(module):
        raise MalformedModelError(
            "The StableHLO module has no public function", remedy="Make its entry function public."
        )
    return module


def _bytes_of(blob: Blob) -> bytes | FilePart:
    """The bytes of a module; bytecode stays in its file."""
    if callable(blob):
        blob = blob()
    if isinstance(blob, (bytearray, memoryview)):
        blob = bytes(blob)
    if isinstance(blob, FilePart) and blob.part(0, len(_MAGIC)) != _MAGIC:
        blob = bytes(blob)
    if not isinstance(blob, (bytes, str, FilePart)):
        raise MalformedModelError(
            f"The StableHLO module is a {type(blob).__name__}",
            remedy="Pass MLIR text as str, or bytecode as bytes.",
        )
    try:
        data = blob.encode() if isinstance(blob, str) else blob
    except UnicodeEncodeError as e:
        raise MalformedModelError(f"The StableHLO module is text with lone surrogates ({e})") from e
    if isinstance(data, bytes) and (not data or data.isspace()):
        raise MalformedModelError("The StableHLO module is empty")
    return data


def entry_function(module: ir.Module) -> ir.OpView:
    """The public `main` function of a module, or otherwise its only public function.

    It is valid as long as `module` is alive.

    **Raises:** `MalformedModelError` if there is neither.
    """
    public = _public_functions(module)
    if "main" in public:
        op = public["main"]
    elif len(public) == 1:
        (op,) = public.values()
    else:
        raise MalformedModelError(
            f"The StableHLO module has {len(public)} public functions ({', '.join(public)}) and "
            "none of them is `main`",
            remedy="Name the entry `main`, make the others private, or read all of them with "
            "invert.from_stablehlo.",
        )
    return op


def _public_functions(module: ir.Module) -> dict[str, ir.OpView]:
    """The public functions of a module by name.

    **Raises:** `MalformedModelError` if a name is not UTF-8.
    """
    public = {}
    for op in module.body.operations:
        if op.operation.name != "func.func":
            continue
        attributes: MlirObject = op.operation.attributes
        try:
            name = attributes["sym_name"].value_bytes.decode()
        except UnicodeDecodeError as e:
            raise MalformedModelError(
                f"A function of the StableHLO module has a name that is not UTF-8 ({e})"
            ) from e
        if "sym_visibility" not in attributes or attributes["sym_visibility"].value == "public":
            public[name] = op
    return public


def proto_of_hlo(data: bytes) -> bytes | None:
    """The `HloModuleProto` in the bytes, bare or inside an `HloProto`; otherwise `None`.

    A module begins with its name and that of its entry computation, as fields 1 and 2.
    """
    for _ in range(2):
        if not data.startswith(b"\n"):
            return None
        try:
            size, at = varints.read(data, 1, len(data), most=5)
        except ValueError:
            return None
        content, rest = data[at : at + size], data[at + size : at + size + 1]
        if rest == b"\x12" and _is_name(content):
            return data
        data = content
    return None


def _is_name(content: bytes) -> bool:
    try:
        return content.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _kind(data: bytes | FilePart) -> str:
    """`"portable"`, `"bytecode"`, `"text"`, `"hlo"` or `"hlotext"`.

    **Raises:** `MalformedModelError` for a container that is visibly broken.
    """
    if isinstance(data, bytes) and not data.startswith(_MAGIC):
        if proto_of_hlo(data) is not None:
            return "hlo"
        begin = f"which begins with {_MAGIC!r}"
        neither = f"The StableHLO module is neither MLIR bytecode, {begin}, nor text"
        try:
            # Text that holds weights is long, and nearly always ASCII.
            _ = data.isascii() or data.decode()
        except UnicodeDecodeError as e:
            raise MalformedModelError(f"{neither}: byte {e.start} is not UTF-8") from e
        if b"\0" in data:
            raise MalformedModelError(f"{neither}: byte {data.index(0)} is null")
        if re.match(rb"\s*HloModule", data):
            return "hlotext"
        if b"func.func" not in data and b"module" not in data:
            raise MalformedModelError(
                "The StableHLO module is text that is not StableHLO: it has no `module` and no "
                "`func.func`",
                remedy=(
                    "Pass MLIR text, MLIR bytecode or a portable artifact; for a file its "
                    "pathlib.Path."
                ),
            )
        return "text"
    try:
        _, at = _varint(data, 4)
        end = data.index(b"\0", at)
        producer = data[at:end] if isinstance(data, bytes) else data.part(at, end)
        match = _VERSION.fullmatch(producer)
        if match:  # before the sections: a newer version may have sections of its own
            _check_version(tuple(int(n) for n in match.groups()))
        _check_sections(data, end + 1)
    except MalformedModelError:
        raise
    except ValueError as e:  # from the checks of its parts
        raise MalformedModelError(f"The StableHLO module is broken MLIR bytecode: {e}") from e
    # Artifacts of 2023 do not name a StableHLO version, but hold VHLO too.
    if match or b"\0vhlo\0" in data:
        return "portable"
    if not producer.startswith(b"MLIR"):
        raise MalformedModelError(
            f"The StableHLO module is MLIR bytecode of an unknown producer {producer[:40]!r}; "
            "StableHLO_v* and MLIR* are known"
        )
    return "bytecode"


def _check_version(version: tuple[int, ...]) -> None:
    newest = stablehlo_dialect.get_current_version()
    if version > tuple(int(n) for n in newest.split(".")):
        text = ".".join(map(str, version))
        raise MalformedModelError(
            f"The StableHLO module is a portable artifact of StableHLO {text}, and this jaxlib "
            f"reads StableHLO {newest} at most",
            remedy=f"Upgrade jaxlib, or serialize the model for StableHLO {newest} or older.",
        )


def _check_sections(data: bytes | FilePart, at: int) -> None:
    """Walk the sections of the bytecode: id, length, alignment, contents."""
    seen = set()
    while at < len(data):
        start = at
        head = data[at]
        length, at = _varint(data, at + 1)
        if head & 0x80:
            alignment, at = _varint(data, at)
            if alignment == 0 or alignment & (alignment - 1) or alignment > 1 << 16:
                raise ValueError(f"section at byte {start} has the alignment {alignment}")
            at = -(-at // alignment) * alignment
        section = head & 0x7F
        if section > 16 or section in seen:
            raise ValueError(f"section at byte {start} has the unexpected id {section}")
        if length > len(data) - at:
            raise ValueError(
                f"section {section} at byte {start} declares {length} bytes, but "
                f"{max(0, len(data) - at)} follow"
            )
        seen.add(section)
        at += length
    missing = {0, 1, 2, 3, 4} - seen  # strings, dialects, attributes, their offsets, operations
    if missing:
        raise ValueError(f"sections {sorted(missing)} are missing")


def _varint(data: bytes | FilePart, at: int) -> tuple[int, int]:
    """A PrefixVarInt of MLIR bytecode: the low zero bits count the bytes that follow."""
    if at >= len(data):
        raise ValueError(f"the bytes end at {len(data)} within a header")
    first = data[at]
    size = 9 if first == 0 else (first & -first).bit_length()
    if at + size > len(data):
        raise ValueError(f"the bytes end at {len(data)} within a header")
    if size == 9:
        return _integer(data, at + 1, 8), at + 9
    return _integer(data, at, size) >> size, at + size


def _integer(data: bytes | FilePart, at: int, size: int) -> int:
    return sum(data[at + i] << 8 * i for i in range(size))
