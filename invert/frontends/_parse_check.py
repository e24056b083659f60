"""Reads and rewrites a module in a child process; a crash there becomes an error here."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import pathlib
import struct
import subprocess
import sys
import threading

from invert._compat import READER_PRELUDE
from invert._errors import InvertError, MalformedModelError

_WORKER = pathlib.Path(__file__).with_name("_parse_worker.py")
REMEDY = {
    "text": "Correct the text, or export or copy the model again.",
    "bytecode": "The bytes are damaged or are not StableHLO; export or copy the model again.",
    "portable": "The bytes are damaged or are not StableHLO; export or copy the model again.",
}
_START_SECONDS = 60.0
_SECONDS = 20.0
_NOT_STARTED = f"The process that checks modules could not start ({sys.executable})"
_TRUST = "For modules from a source you trust, pass `trusted=True`."
_SECONDS_PER_BYTE = 2e-6  # a slow machine reads about 10 MB in a second


class _Child:
    """One child process, started when first needed and replaced when it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, kind: str, data: bytes) -> bytes | str:
        """**Returns:** the module as MLIR writes it, or why the child could not read it."""
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._start()
            seconds = _SECONDS + _SECONDS_PER_BYTE * len(data)
            reply, late = self._exchange(
                struct.pack("<8sQ", kind.encode(), len(data)), data, seconds=seconds
            )
            if reply:
                reason, written = reply
                return reason or written
            code = self.stop(kill=True)
            if late:
                return f"reading it took more than {seconds:.0f} seconds"
            return (
                f"the MLIR reader crashed on it (exit code {code}), as it does on damaged bytes "
                "and on regions or attributes nested in the thousands"
            )

    def _exchange(self, *parts: bytes, seconds: float) -> tuple[tuple[str, bytes] | None, bool]:
        """Writes `parts` and reads what the child answers; whether it was late.

        **Returns:** a line of JSON, and the bytes that it announces; `None` where the child died.

        A timer that kills the child works on every platform; waiting on pipes does not.
        """
        process = self._process
        assert process is not None and process.stdin and process.stdout
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.start()
        try:
            for part in parts:
                process.stdin.write(part)
            process.stdin.flush()
            line = process.stdout.readline()
            text, size = json.loads(line) if line.endswith(b"\n") else ("", -1)
            written = process.stdout.read(size) if size >= 0 else b""
        except OSError:
            return None, late.is_set()  # the pipe broke: the child died while it read
        finally:
            timer.cancel()
        return ((text, written) if len(written) == size else None), late.is_set()

    def _start(self) -> None:
        code = (
            f"{READER_PRELUDE}\nimport runpy\n"
            f"runpy.run_path({str(_WORKER)!r})['serve'](ir, stablehlo_dialect, make_ir_context)"
        )
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        # glibc overwrites freed memory, so that a read from it fails here rather than passes.
        environment["MALLOC_PERTURB_"] = "165"
        try:
            self._process = subprocess.Popen(
                [sys.executable or "", "-P", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as e:
            raise InvertError(f"{_NOT_STARTED}: {e}. {_TRUST}") from e
        self._owner = os.getpid()
        ready, _ = self._exchange(seconds=_START_SECONDS)
        if not ready:
            code = self.stop(kill=True)
            raise InvertError(f"{_NOT_STARTED} (exit code {code}). {_TRUST}")

    def stop(self, *, kill: bool = False) -> int | None:
        """Ends the child; a forked copy of this object leaves its parent's child alone.

        **Returns:** its exit code, negative where a signal ended it.
        """
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return None
        if kill:
            process.kill()
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin
            process.stdin.close()
        process.wait()
        assert process.stdout
        process.stdout.close()
        return process.returncode


@functools.cache
def _child() -> _Child:
    child = _Child()
    atexit.register(child.stop)
    return child


def rewrite_in_child(kind: str, data: bytes, what: str) -> bytes:
    """The module as MLIR bytecode that the child process wrote after it had read `data`.

    **Raises:** `MalformedModelError` where the child cannot read it, crashes or hangs.
    """
    answer = _child().ask(kind, data)
    if isinstance(answer, str):
        raise MalformedModelError(f"The {what} cannot be read: {answer}. {REMEDY[kind]}")
    return answer
