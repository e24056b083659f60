"""Reads a module in a child process and turns a crash there into an error here."""

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
_SECONDS_PER_BYTE = 2e-6  # a slow machine reads about 10 MB in a second


class _Child:
    """One child process, started when first needed and replaced when it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, kind: str, data: bytes) -> str | None:
        """**Returns:** `None` where the child read the module, else the reason."""
        with self._lock:
            seconds = _SECONDS + _SECONDS_PER_BYTE * len(data)
            if self._process is None or self._owner != os.getpid():
                seconds += _START_SECONDS
                self._start()
            process = self._process
            assert process is not None and process.stdin and process.stdout
            timed_out = threading.Event()

            def give_up() -> None:
                timed_out.set()
                process.kill()

            timer = threading.Timer(seconds, give_up)
            timer.start()
            reply = b""
            try:
                process.stdin.write(struct.pack("<8sQ", kind.encode(), len(data)))
                process.stdin.write(data)
                process.stdin.flush()
                reply = process.stdout.readline()
            except OSError:
                reply = b""  # the pipe broke: the child died while it read
            finally:
                timer.cancel()
            if reply.endswith(b"\n"):
                return json.loads(reply)
            self.stop(kill=True)
            if timed_out.is_set():
                return f"reading it took more than {seconds:.0f} seconds"
            if process.returncode == _START_FAILED:
                raise InvertError(
                    f"The process that checks modules could not start ({sys.executable}). For "
                    "modules from a source you trust, pass `trusted=True`."
                )
            return (
                f"the MLIR reader crashed on it (exit code {process.returncode}), as it does on "
                "damaged bytes and on regions or attributes nested in the thousands"
            )

    def _start(self) -> None:
        code = (
            f"import sys\ntry:\n    exec({READER_PRELUDE!r})\n"
            f"except ImportError:\n    sys.exit({_START_FAILED})\n"
            f"import runpy\nrunpy.run_path({str(_WORKER)!r})['serve']"
            "(ir, stablehlo_dialect, make_ir_context)\n"
        )
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        # glibc overwrites freed memory, so that a read from it fails here rather than passes.
        environment["MALLOC_PERTURB_"] = "165"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as e:
            raise InvertError(
                f"The process that checks modules could not start ({sys.executable}): {e}. For "
                "modules from a source you trust, pass `trusted=True`."
            ) from e
        self._owner = os.getpid()

    def stop(self, *, kill: bool = False) -> None:
        """Ends the child; a forked copy of this object leaves its parent's child alone."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        if kill:
            process.kill()
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin
            process.stdin.close()
        process.wait()
        assert process.stdout
        process.stdout.close()


_START_FAILED = 83


@functools.cache
def _child() -> _Child:
    child = _Child()
    atexit.register(child.stop)
    return child


def check_in_child(kind: str, data: bytes, what: str) -> None:
    """Reads `data` in the child process.

    **Raises:** `MalformedModelError` where the child cannot read it, crashes or hangs.
    """
    reason = _child().ask(kind, data)
    if reason is not None:
        raise MalformedModelError(f"The {what} cannot be read: {reason}. {REMEDY[kind]}")
