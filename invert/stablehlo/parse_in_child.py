"""Reads and rewrites a module in a child process; a crash there becomes an error here."""

from __future__ import annotations

import functools
import pathlib

from invert._child import Child, ChildError, ChildStartError
from invert._errors import InvertError, MalformedModelError
from invert._private.mlir import READER_PRELUDE

_WORKER = pathlib.Path(__file__).with_name("parse_worker.py")
REMEDY = {
    "text": "Correct the text, or export or copy the model again.",
    "bytecode": "The bytes are damaged or are not StableHLO; export or copy the model again.",
    "portable": "The bytes are damaged or are not StableHLO; export or copy the model again.",
    "hlo": "The bytes are damaged or are not an HLO module; export or copy the model again.",
    "hlotext": "Correct the text, or export or copy the model again.",
}
_START_SECONDS = 60.0
_SECONDS = 20.0
_TRUST = "For modules from a source you trust, pass `trusted=True`."
_SECONDS_PER_BYTE = 2e-6  # a slow machine reads about 10 MB in a second
_MAGIC = b"ML\xefR"  # by which bytecode begins, and no text


@functools.cache
def _child() -> Child:
    code = (
        f"{READER_PRELUDE}\nimport runpy\n"
        f"runpy.run_path({str(_WORKER)!r})['serve']"
        "(ir, stablehlo_dialect, make_ir_context, hlo_to_bytecode)"
    )
    # glibc overwrites freed memory, so that a read from it fails here rather than passes.
    return Child(["-c", code], {"MALLOC_PERTURB_": "165"}, start_seconds=_START_SECONDS)


def rewrite_in_child(kind: str, data: bytes, what: str) -> bytes:
    """The module as MLIR bytecode that the child process wrote after it had read `data`.

    **Raises:** `MalformedModelError` where the child cannot read it, crashes or hangs.
    """
    seconds = _SECONDS + _SECONDS_PER_BYTE * len(data)
    try:
        answer = _child().ask(f"{kind:8}".encode(), data, seconds=seconds)
    except ChildStartError as e:
        raise InvertError(f"The module cannot be checked: {e}. {_TRUST}") from e
    except ChildError as e:
        reason = f"reading {e}"
        if e.code is not None:
            reason = (
                f"the MLIR reader crashed on it (exit code {e.code}), as it does on damaged bytes "
                "and on regions or attributes nested in the thousands"
            )
    else:
        if answer.startswith(_MAGIC):
            return answer
        reason = answer.decode()
    raise MalformedModelError(f"The {what} cannot be read: {reason}. {REMEDY[kind]}")
