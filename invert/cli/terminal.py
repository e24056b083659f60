"""Terminal output: colours, progress, and standard error without other libraries' logs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self, TextIO

from invert._errors import plain

_CODES: Mapping[str, str] = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}


def coloured(text: str, *styles: str, to: TextIO | None = None) -> str:
    """The text in a style, if `to` (by default standard output) shows colours.

    A terminal does, unless `NO_COLOR` is set or it is `dumb`; with `FORCE_COLOR` every file does.
    """
    if not text or not _has_colours(sys.stdout if to is None else to):
        return text
    return f"\x1b[{';'.join(_CODES[s] for s in styles)}m{text}\x1b[0m"


def _has_colours(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


# absl's messages before and after a program has set up its log: severity, date or seconds, thread,
# file and line.
_LOG = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|[IW]\d{4} [\d:.]+\s+\d+ [\w./-]+:\d+\]"
    rb"|\d{4}-\d\d-\d\d [\d:.]+: [IW] (?:external/|tensorflow/|[\w./-]+:\d+\])"
)


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
    """Drop log lines of TensorFlow and XLA from standard error; keep Python's warnings.

    These libraries write to the file descriptor. It becomes a pipe from which other lines are
    copied; `sys.stderr` writes to the original meanwhile.
    """
    try:
        number = sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):  # a stream in a test or notebook
        yield
        return
    sys.stderr.flush()
    real = os.dup(number)
    begin, end = os.pipe()
    os.dup2(end, number)
    os.close(end)
    before = sys.stderr
    sys.stderr = open(real, "w", buffering=1, encoding=before.encoding, errors=before.errors,  # noqa: SIM115
                      closefd=False)  # fmt: skip
    reader = threading.Thread(target=_forward, args=(begin, real), daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before
        os.write(number, _END)  # child processes may keep the pipe open
        os.dup2(real, number)
        reader.join()
        os.close(real)


_END = b"\0end of the command\0"


def _forward(source: int, target: int) -> None:
    """Copy lines from a pipe to a file without logs, up to `_END`."""
    rest = b""
    with open(source, "rb", buffering=0) as pipe, contextlib.suppress(OSError):
        while not rest.endswith(_END) and (data := pipe.read(65536)):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                _write(target, line + b"\n")
        _write(target, rest.removesuffix(_END))


def _write(target: int, line: bytes) -> None:
    if line and not _LOG.match(line):
        os.write(target, line)


# -- progress


class Progress:
    """Reports progress on stderr. On a terminal a single line is updated, then erased.

    **Arguments:**

    - `wanted`: `True`: always; `False`: never; `None`: if stderr is a terminal.
    """

    def __init__(self, wanted: bool | None = None):
        self._stream = sys.stderr
        self._terminal = self._stream.isatty()
        self._on = self._terminal if wanted is None else wanted
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        if not self._on:
            return
        line = f"[{time.monotonic() - self._start:6.1f} s] {plain(text)}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            line = f"\r\x1b[K{line[:width]}"
        else:
            line += "\n"
        self._stream.write(line)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._on and self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
