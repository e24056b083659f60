"""Reads and rewrites modules in a child process; crashes become errors."""

from __future__ import annotations

import functools
import hashlib
import itertools
import pathlib
from collections.abc import Iterator
from typing import IO

import numpy as np

from invert._child import (
    Child,
    ChildError,
    ChildStartError,
    read_into,
    read_length,
    read_message,
    write_message,
)
from invert._errors import InvertError, MalformedModelError
from invert._private.mlir import READER_PRELUDE
from invert.ir.arrays import KnownBytes, aligned_room
from invert.stablehlo.ops.constants import LARGE

_WORKER = pathlib.Path(__file__).with_name("parse_worker.py")
_START_SECONDS = 60.0
_SECONDS = 20.0
_TRUST = "For modules from a source you trust, pass `trusted=True`."
_SECONDS_PER_BYTE = 2e-6  # a slow machine reads about 10 MB in a second
_MAGIC = b"ML\xefR"  # prefix of bytecode, never of text


@functools.cache
def _child() -> Child:
    code = (
        f"{READER_PRELUDE}\nimport runpy\n"
        f"runpy.run_path({str(_WORKER)!r})['serve']"
        "(ir, stablehlo_dialect, make_ir_context, hlo_to_bytecode)"
    )
    # glibc overwrites freed memory, so that a read from it fails.
    return Child(["-c", code], {"MALLOC_PERTURB_": "165"}, start_seconds=_START_SECONDS)


def rewrite_in_child(
    kind: str,
    parts: Iterator[bytes],
    size: int,
    large: list[np.ndarray] | None = None,
    known: KnownBytes | None = None,
) -> bytes:
    """The module in `parts`, as MLIR bytecode read and rewritten by the child process.

    **Arguments:**

    - `size`: total number of bytes of the parts.
    - `large`, `known`: as for `parse.parse_module`.

    **Raises:** `MalformedModelError` if the child cannot read it, crashes or hangs.
    """
    seconds = _SECONDS + _SECONDS_PER_BYTE * size
    order = f"{kind:8}{'' if large is None else LARGE:16}".encode()

    def send(stream: IO[bytes]) -> None:
        write_message(stream, itertools.chain([order], parts), len(order) + size)

    def receive(stream: IO[bytes]) -> bytes | None:
        answer = read_message(stream)
        if answer is None or not answer.startswith(_MAGIC):
            return answer
        values = _large_values(stream, {} if known is None else known)
        if values is None:
            return None
        if large is not None:
            large.extend(values)
        return answer

    try:
        answer = _child().exchange(send, receive, seconds=seconds)
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
    raise unreadable_module(reason, kind)


def unreadable_module(reason: str, kind: str) -> MalformedModelError:
    """The error for a module that cannot be read. Text need not be damaged: it may be wrong."""
    is_text = kind in ("text", "hlotext")
    remedy = "Correct the text, or export or copy the model again." if is_text else None
    return MalformedModelError(f"The StableHLO module cannot be read: {reason}", remedy=remedy)


def _large_values(stream: IO[bytes], known: KnownBytes) -> list[np.ndarray] | None:
    """The bytes of constants that follow a module; `None` if the stream ends early."""
    values: list[np.ndarray] = []
    for _ in range(read_length(stream) or 0):
        size = read_length(stream)
        if size is None:
            return None
        room = aligned_room(size)
        if not read_into(stream, room.data):
            return None
        room.flags.writeable = False
        digest = hashlib.sha256(room.data).digest()
        values.append(known.setdefault(digest, room))
    return values
